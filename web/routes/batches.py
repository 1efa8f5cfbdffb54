"""/v1/batches: OpenAI's batches. Here they are created, shown and cancelled; their lines run beside the scheduler.

A key sees its own batches only. The runner (actors/batch/runner.py) finds new ones in the data folder.
"""

import time
from functools import partial
from typing import Final

import msgspec
from quart_trio.wrappers import TrioResponse as Response

from ...actors.batch import batches
from ...actors.batch.folder import DataFolder
from ...protocol.errors import ApiError
from ...protocol.openai_batches import BatchList, BatchObject, CreateBatch
from ..asgi import Application, current_exchange, quart_response
from ..exchange import json_content
from ..openai.decode import decode
from .paging import Query

PATH: Final = "/v1/batches"
PAGE: Final = 20  # OpenAI's default
MOST: Final = 100
_CREATE: Final = msgspec.json.Decoder(CreateBatch)


def register(app: Application, folder: DataFolder) -> None:
    settings = app.engine.settings
    create = partial(
        batches.create, storage=settings.limits.batch_storage, several_tenants=len(settings.key_digests) > 1
    )

    def missing(id: str) -> ApiError:
        return ApiError("not_found", f"There is no batch {id[:64]!r}.", param="batch_id")

    @app.post(PATH)
    async def create_batch() -> Response:
        body = await current_exchange().read_json(lambda data: decode(data, _CREATE))
        folder.refuse_if_foreign()
        if not folder.exists:
            raise ApiError("not_found", f"There is no file {body.input_file_id!r}.", param="input_file_id")
        return _answer(await folder.run(create, body, current_exchange().tenant, int(time.time())))

    @app.get(PATH)
    async def list_batches() -> Response:
        query = Query(("limit", "after"))
        limit, after = query.limit(PAGE, MOST), query.text("after")
        if not folder.exists and after is None:
            return _answer(BatchList(data=[], first_id=None, last_id=None, has_more=False))
        return _answer(await folder.read(partial(batches.page, limit=limit, after=after), current_exchange().tenant))

    @app.get(f"{PATH}/<id>")
    async def retrieve_batch(id: str) -> Response:
        if not folder.exists:
            raise missing(id)
        return _answer(await folder.read(batches.get, id, current_exchange().tenant))

    @app.post(f"{PATH}/<id>/cancel")
    async def cancel_batch(id: str) -> Response:
        if not folder.exists:
            raise missing(id)
        return _answer(await folder.run(batches.cancel, id, current_exchange().tenant, int(time.time())))


def _answer(body: BatchObject | BatchList) -> Response:
    return quart_response(json_content(msgspec.json.encode(body)))
