"""A server's files and batches, as the client of `triolet batch --url`."""

import secrets
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

import click
import msgspec

from ..protocol.errors import ErrorBody
from ..protocol.openai_batches import BatchEndpoint, BatchObject, CreateBatch, FileObject

HTTP_SECONDS: Final = 60.0  # for one reading or writing of a socket
_COPIED_AT_ONCE: Final = 1 << 18
T = TypeVar("T")


class ServerRefusal(click.ClickException):
    """What the server answered with an error status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ServerBatches:
    """Every method raises click.ClickException: ServerRefusal, or another if the server cannot be reached."""

    def __init__(self, url: str, api_key: str | None, seconds: float = HTTP_SECONDS) -> None:
        self._url = urlsplit(url)
        self._seconds = seconds
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def upload(self, path: Path) -> str:
        """The id of the new file."""
        boundary = secrets.token_hex(16)
        head, tail = _form(path.name, boundary)
        size = len(head) + path.stat().st_size + len(tail)

        def body() -> Iterator[bytes]:
            yield head
            with path.open("rb") as file:
                while data := file.read(_COPIED_AT_ONCE):
                    yield data
            yield tail

        kind = f"multipart/form-data; boundary={boundary}"
        answer = self.ask("POST", "/v1/files", body(), {"Content-Type": kind, "Content-Length": str(size)})
        return self._decoded(answer, FileObject).id

    def create(self, input_file: str, endpoint: BatchEndpoint) -> BatchObject:
        body = CreateBatch(input_file_id=input_file, endpoint=endpoint, completion_window="24h")
        return self._batch("POST", "", msgspec.json.encode(body))

    def batch(self, id: str) -> BatchObject:
        return self._batch("GET", f"/{id}")

    def cancel(self, id: str) -> None:
        self._batch("POST", f"/{id}/cancel")

    def download(self, id: str, into: Path) -> None:
        """Append a file's content."""
        with into.open("ab") as file, closing(self._open("GET", f"/v1/files/{id}/content")) as answer:
            while piece := self._read(answer, _COPIED_AT_ONCE):
                file.write(piece)

    def delete(self, id: str) -> None:
        self.ask("DELETE", f"/v1/files/{id}")

    def _batch(self, method: str, path: str, body: bytes | None = None) -> BatchObject:
        return self._decoded(self.ask(method, f"/v1/batches{path}", body), BatchObject)

    def _decoded(self, answer: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(answer, type=kind)
        except msgspec.MsgspecError as error:
            message = f"{self._url.geturl()} does not answer as a Triolet server does: {error}"
            raise click.ClickException(message) from error

    def ask(
        self, method: str, path: str, body: bytes | Iterator[bytes] | None = None, more: dict[str, str] | None = None
    ) -> bytes:
        with closing(self._open(method, path, body, more)) as answer:
            return self._read(answer)

    def _read(self, answer: HTTPResponse, most: int | None = None) -> bytes:
        """What comes next. With `most`, http.client takes a connection that ends too soon for the answer's end."""
        try:
            piece = answer.read(most)
            if not piece and answer.length:
                raise IncompleteRead(piece, answer.length)
        except (OSError, HTTPException) as error:
            raise click.ClickException(f"the answer of {self._url.geturl()} was cut off: {error}") from error
        return piece

    def _open(
        self, method: str, path: str, body: bytes | Iterator[bytes] | None = None, more: dict[str, str] | None = None
    ) -> HTTPResponse:
        url = self._url
        kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
        connection = kind(url.netloc.rpartition("@")[2], timeout=self._seconds)
        fields = {**self._headers, "Content-Type": "application/json", "Connection": "close", **(more or {})}
        try:
            with suppress(BrokenPipeError, ConnectionResetError):  # a refusal that came before the whole body
                connection.request(method, url.path.rstrip("/") + path, body, fields)
            answer = connection.getresponse()
            if answer.status < 300:
                return answer
            message = _reason(answer)
        except (OSError, HTTPException) as error:
            connection.close()
            raise click.ClickException(f"the server at {url.geturl()} cannot be reached: {error}") from error
        if answer.status == 401 and not self._headers:
            message = "add --api-key KEY, or @FILE: this server asks for a key"
        raise ServerRefusal(answer.status, f"{url.geturl()}: {message}")


def _reason(answer: HTTPResponse) -> str:
    """The server's own words, if it sent any."""
    with answer:
        try:
            detail = msgspec.json.decode(answer.read(), type=ErrorBody).error
        except msgspec.MsgspecError:
            return f"the server answered {answer.status} {answer.reason}"
    return f"{detail.message} ({detail.code})"


def _form(filename: str, boundary: str) -> tuple[bytes, bytes]:
    """What comes before and after the file's bytes, as RFC 7578 has it."""
    name = filename.encode("ascii", "replace").decode().translate({34: "%22", 10: "%0A", 13: "%0D"})
    return (
        f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    ).encode(), f"\r\n--{boundary}--\r\n".encode()
