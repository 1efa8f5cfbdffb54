"""/v1/files: OpenAI's files, for batches. A key sees its own files only."""

import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import trio
from quart_trio.wrappers import TrioResponse as Response

from ...actors.batch import files
from ...actors.batch.folder import DataFolder
from ...actors.batch.incoming import IncomingFile
from ...protocol.errors import ApiError
from ...protocol.openai_batches import FILE_SECONDS, ExpiresAfter, FileDeleted, FileList, FileObject
from ..arriving_upload import FilePart, FormField, read_form
from ..asgi import Application, GenerationRequest, current_exchange, quart_response
from ..exchange import Content, json_content
from .paging import Query

PATH: Final = "/v1/files"
PAGE: Final = 10_000  # OpenAI's default, and most
MOST_NAME: Final = 255  # characters, as in file systems
_READ: Final = 256 * 1024
_FIELDS: Final = ("purpose", "expires_after[anchor]", "expires_after[seconds]")


def register(app: Application, folder: DataFolder) -> None:
    settings = app.engine.settings
    incoming: Any = partial(  # Any: IncomingFile with these arguments
        IncomingFile,
        folder,
        purpose="batch",
        keep_seconds=FILE_SECONDS,
        storage=settings.limits.batch_storage,
        several_tenants=len(settings.key_digests) > 1,
    )
    app.uploads.update({PATH, app.prefix + PATH})

    @app.post(PATH)
    async def create_file() -> Response:
        request = current_exchange()
        folder.refuse_if_foreign()
        return _answer(await _store(request, partial(incoming, tenant=request.tenant)))

    @app.get(PATH)
    async def list_files() -> Response:
        query = Query(("limit", "order", "after", "purpose"))
        limit, order = query.limit(PAGE, PAGE), query.word("order", ("asc", "desc"))
        after, purpose = query.text("after"), query.word("purpose", ("batch", "batch_output"))
        if not folder.exists and after is None:  # asking makes nothing
            return _answer(FileList(data=[], first_id=None, last_id=None, has_more=False))
        page = partial(files.page, limit=limit, after=after, purpose=purpose, ascending=order == "asc")
        return _answer(await folder.read(page, current_exchange().tenant, int(time.time())))

    async def find(id: str) -> FileObject:
        if not folder.exists:
            raise ApiError("not_found", f"There is no file {id[:64]!r}.", param="file_id")
        return await folder.read(files.get, id, current_exchange().tenant, int(time.time()))

    @app.get(f"{PATH}/<id>")
    async def retrieve_file(id: str) -> Response:
        return _answer(await find(id))

    @app.delete(f"{PATH}/<id>")
    async def delete_file(id: str) -> Response:
        await find(id)
        await folder.run(files.delete, id, current_exchange().tenant, int(time.time()))
        with suppress(FileNotFoundError):
            await trio.Path(folder.file_path(id)).unlink()
        return _answer(FileDeleted(id=id))

    @app.get(f"{PATH}/<id>/content")
    async def file_content(id: str) -> Response:
        file = await find(id)
        fields = ((b"content-type", b"application/octet-stream"), (b"content-length", b"%d" % file.bytes))
        return quart_response(Content(_content(folder.file_path(id)), fields))


def _answer(body: msgspec.Struct) -> Response:
    return quart_response(json_content(msgspec.json.encode(body)))


async def _content(path: Path) -> AsyncGenerator[bytes, None]:
    file = await trio.open_file(path, "rb")
    try:
        while data := await file.read(_READ):
            yield data
    finally:
        file.wrapped.close()


async def _store(request: GenerationRequest, incoming: Any) -> FileObject:  # Any: as above
    """The arriving file, on disk and in the table. Raises ApiError (400, 408, 413, 415)."""
    boundary = request.mimetype_params.get("boundary")
    if request.mimetype != "multipart/form-data" or not boundary or request.upload is None:
        raise ApiError("unsupported_media_type", "Send the file as multipart/form-data, in the field `file`.")
    if not boundary.isascii():
        raise ApiError("bad_request", "Content-Type: the boundary has characters that are not ASCII.")
    async with AsyncExitStack() as stack:
        parts = await stack.enter_async_context(aclosing(read_form(request.upload, boundary)))
        values: dict[str, str] = {}
        file: IncomingFile | None = None
        async for part in parts:
            match part:
                case FormField(name, value):
                    values[name] = _checked(name, value)
                case FilePart(name, filename):
                    if name != "file" or file is not None:
                        raise ApiError("invalid_value", "Send one file, in the field `file`.", param="file")
                    if not 0 < len(filename) <= MOST_NAME:
                        raise ApiError(
                            "invalid_value", f"file: its name has 1 to {MOST_NAME} characters.", param="file"
                        )
                    file = await stack.enter_async_context(incoming(filename=filename))
                case bytes():
                    assert file is not None, "bytes without a file"
                    await file.write(part)
        if file is None:
            raise ApiError("invalid_value", "Missing required parameter: file.", param="file")
        if "purpose" not in values:
            raise ApiError("invalid_value", "Missing required parameter: purpose; send batch.", param="purpose")
        keep_seconds = _keep_seconds(values)
        return await file.complete(keep_seconds)


def _checked(name: str, value: str) -> str:
    if name not in _FIELDS:
        text = f"Unknown parameter: {name[:64]}; there are file, {', '.join(_FIELDS)}."
        raise ApiError("unknown_parameter", text, param=name[:64])
    if name == "purpose" and value != "batch":
        text = "purpose: this server takes files for batches only; send batch."
        raise ApiError("invalid_value", text, param=name)
    return value


def _keep_seconds(values: dict[str, str]) -> int:
    """Raises ApiError (400)."""
    _, anchor, seconds = _FIELDS
    if anchor not in values and seconds not in values:
        return FILE_SECONDS
    after = {"anchor": values.get(anchor), "seconds": values.get(seconds)}
    try:
        return msgspec.convert(after, ExpiresAfter, strict=False).seconds
    except msgspec.ValidationError:
        text = f"expires_after: send the anchor created_at, and 3600 to {FILE_SECONDS} seconds."
        raise ApiError("invalid_value", text, param="expires_after") from None
