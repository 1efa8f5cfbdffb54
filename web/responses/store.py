"""The responses that this server keeps, for later requests of the same API key."""

import time
from collections.abc import Collection, Sequence
from typing import Final

import msgspec
from msgspec import Raw, structs

from ...actors.database import Database, data_folder
from ...protocol.errors import ApiError
from ...protocol.response_answers import RESPONSE_PREFIX, ResponseObject
from ...protocol.response_items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputItem,
    InputTextPart,
    MessageItem,
    OutputTextPart,
    ReasoningItem,
)
from ...protocol.response_requests import CreateResponse
from ...protocol.settings import ServeSettings
from . import stored_rows
from .stored_rows import StoredRow

_PREFIXES: Final[dict[type[InputItem], str]] = {
    MessageItem: "msg",
    ReasoningItem: "rs",
    FunctionCallItem: "fc",
    FunctionCallOutputItem: "fco",
}


class ResponseStore:
    """Nothing is made on disk before the first response is to be stored."""

    def __init__(self, settings: ServeSettings) -> None:
        self._storage = settings.limits.response_storage
        self._by_default = settings.data is not None and self._storage > 0
        self._database = Database(data_folder(settings.data) / "responses.sqlite", stored_rows.SCHEMA)

    def wanted(self, body: CreateResponse) -> bool:
        """Whether a request's response is to be stored. Raises ApiError (400) if it cannot be."""
        asked = body.store
        if body.background:
            if asked is False:
                raise ApiError("invalid_value", "background: true needs store: true.", param="store")
            if body.stream:
                message = "A response that is made in the background is not streamed; leave stream out."
                raise ApiError("unsupported_parameter", message, param="stream")
            asked = True
        if asked and not self._storage:
            message = "This server stores no responses (--response-storage 0); leave store out, or send false."
            raise ApiError("unsupported_parameter", message, param="store")
        return self._by_default if asked is None else asked

    async def keep(self, row: StoredRow) -> None:
        """Raises sqlite3.Error or OSError if the disk does not take it."""
        await self._database.run(stored_rows.keep, row, self._storage, _now())

    async def begin(self, row: StoredRow, runner: str) -> None:
        """The same for a response that is made in the background."""
        await self._database.run(stored_rows.begin, row, runner, self._storage, _now())

    async def progress(self, row: StoredRow) -> None:
        await self._database.run(stored_rows.progress, row)

    async def end(self, row: StoredRow) -> None:
        await self._database.run(stored_rows.end, row, self._storage, _now())

    async def beat(self, runner: str, ids: Collection[str]) -> list[str]:
        return await self._database.run(stored_rows.beat, runner, ids, _now())

    async def cancel(self, id: str, tenant: str) -> bool:
        """Ask for the end of a response; False if it is not being made. Raises ApiError (404)."""
        self._check(id)
        return await self._database.run(stored_rows.cancel, id, tenant, _now())

    async def recall(
        self, previous: str | None, items: Sequence[InputItem], tenant: str
    ) -> tuple[list[InputItem], list[InputItem]]:
        """The conversation up to the response `previous`, and `items` with what they refer to.

        Raises ApiError (400, 404, 409).
        """
        self._check(previous or "", "input" if previous is None else "previous_response_id")
        return await self._database.read(stored_rows.recall, previous, items, tenant, _now())

    async def get(self, id: str, tenant: str) -> bytes:
        """The response as JSON. Raises ApiError (404)."""
        self._check(id)
        found = await self._database.read(stored_rows.look, id, tenant, _now())
        return await self._database.run(stored_rows.get, id, tenant, _now()) if found is None else found

    async def input_items(self, id: str, tenant: str) -> list[Raw]:
        """The items of its input, in their order. Raises ApiError (404)."""
        self._check(id)
        return await self._database.read(stored_rows.input_items, id, tenant, _now())

    async def delete(self, id: str, tenant: str) -> None:
        """Raises ApiError (404)."""
        self._check(id)
        await self._database.run(stored_rows.delete, id, tenant, _now())

    def _check(self, id: str, param: str = "response_id") -> None:
        if not self._database.exists:  # asking makes nothing
            raise stored_rows.unknown(id, param)


def stored_row(response: ResponseObject, items: Sequence[InputItem], tenant: str) -> StoredRow:
    return StoredRow(
        id=response.id,
        tenant=tenant,
        previous=response.previous_response_id,
        created_at=response.created_at,
        input=msgspec.json.encode(listed(items, response.id.removeprefix(RESPONSE_PREFIX))),
        response=msgspec.json.encode(response),
    )


def listed(items: Sequence[InputItem], request_id: str) -> list[InputItem]:
    """Items in the form in which they are listed: each with an id of its own, and its content in parts."""
    first = {item.id: place for place, item in reversed([*enumerate(items)])}
    return [
        _listed(item, f"{_PREFIXES[type(item)]}_{request_id}_in{place}", keeps=first[item.id] == place)
        for place, item in enumerate(items)
    ]


def _listed(item: InputItem, id: str, *, keeps: bool) -> InputItem:
    """`keeps`: no item before has its id. Pages of the list are found by id."""
    named = item if item.id is not None and keeps else structs.replace(item, id=id)
    if not isinstance(named, MessageItem):
        return named
    content = named.content
    if isinstance(content, str) and named.role == "assistant":
        content = [OutputTextPart(text=content, annotations=Raw(b"[]"))]
    elif isinstance(content, str):
        content = [InputTextPart(text=content)]
    return structs.replace(named, content=content, status=Raw(b'"completed"'))


def _now() -> int:
    return int(time.time())
