"""A form that arrives in pieces: the same parts however it is cut, and bounds on all that is not the file."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from triolet.protocol.errors import ApiError
from triolet.web.arriving_body import BODY_SECONDS
from triolet.web.arriving_upload import (
    MOST_FIELD_BYTES,
    MOST_PARTS,
    PIECE,
    ArrivingUpload,
    FilePart,
    FormField,
    read_form,
)
from triolet.web.asgi import Application

MARK = "a-boundary"
CONTENT = b"one\r\n--a-bound\r\n\r\n--\r\n\xff two \r\n-"  # nearly a boundary, again and again


def form(*parts: tuple[str, bytes]) -> bytes:
    whole = b""
    for disposition, content in parts:
        whole += f"--{MARK}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n".encode() + content + b"\r\n"
    return whole + f"--{MARK}--\r\n".encode()


async def parts_of(data: bytes, piece: int = 1 << 16) -> list[FormField | FilePart | bytes]:
    """The parts of a form that comes in pieces of this size, the file's bytes joined."""
    upload = ArrivingUpload()

    async def arrive() -> None:
        for start in range(0, len(data), piece):
            await upload.add(data[start : start + piece])
        upload.end()

    found: list[FormField | FilePart | bytes] = []
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(arrive)
            async for part in read_form(upload, MARK):
                if isinstance(part, bytes) and found and isinstance(found[-1], bytes):
                    found[-1] += part
                else:
                    found.append(part)
            upload.release()  # what may follow the form is dropped
    except* ApiError as group:
        raise group.exceptions[0] from None
    return found


@pytest.mark.parametrize("before", range(PIECE - 60, PIECE + 3))
async def test_the_parser_s_own_cuts_make_no_difference(before: int) -> None:
    """The end of the file falls anywhere near the end of what is parsed at once."""
    head = len(form(('name="file"; filename="x"', b"\n"))) - len(f"--{MARK}--\r\n") - 3
    content = b"x" * (before - head - 2) + b"\n-"
    (_, whole) = await parts_of(form(('name="file"; filename="x"', content)), 1 << 20)
    assert whole == content


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 50, 1000])
async def test_the_cuts_make_no_difference(piece: int) -> None:
    data = form(('name="purpose"', b"batch"), ('name="file"; filename="in \xc3\xa9.jsonl"', CONTENT)) + b"after it"
    parts = await parts_of(data, piece)
    assert parts == [FormField("purpose", "batch"), FilePart("file", "in Ã©.jsonl"), CONTENT]


async def test_a_part_without_a_name_is_no_file() -> None:
    assert await parts_of(form(('x="y"', b"batch"))) == [FormField("", "batch")]


async def test_a_large_file_passes_in_pieces_and_is_never_held() -> None:
    content = bytes(range(256)) * 4096
    largest = 0
    upload = ArrivingUpload()
    data = form(('name="file"; filename="x"', content))

    async def arrive() -> None:
        await upload.add(data)
        upload.end()

    size = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(arrive)
        async for part in read_form(upload, MARK):
            if isinstance(part, bytes):
                largest, size = max(largest, len(part)), size + len(part)
    assert size == len(content)
    assert largest <= 2 * 65536


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not valid multipart"),
        (b"nothing of a form", "not valid multipart"),
        (b"x" * (1 << 20), "too many parts"),
        (form(('name="file"; filename="x"', CONTENT))[:-20], "not valid multipart"),
        (form(*[('name="a"', b"b")] * (MOST_PARTS + 1)), "too many parts"),
        (form(('name="purpose"', b"x" * (MOST_FIELD_BYTES + 1))), f"at most {MOST_FIELD_BYTES} bytes"),
        (form(('name="purpose"', b"\xff")), "not valid multipart"),
        (f"--{MARK}\r\nX-Other: 1\r\n\r\nabc\r\n--{MARK}--\r\n".encode(), "Content-Disposition"),
    ],
)
async def test_what_is_no_form_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(ApiError, match=problem) as refusal:
        await parts_of(data)
    assert refusal.value.status == 400


async def test_an_upload_that_stands_still_ends(autojump_clock: trio.testing.MockClock) -> None:
    upload = ArrivingUpload()
    began = trio.current_time()
    with pytest.raises(ApiError) as refusal:
        async for _ in read_form(upload, MARK):
            pass
    assert refusal.value.code == "request_timeout"
    assert trio.current_time() - began == pytest.approx(BODY_SECONDS)


async def test_pieces_that_nobody_reads_are_dropped() -> None:
    upload = ArrivingUpload()
    upload.release()
    await upload.add(b"x")
    upload.end()


async def test_a_refusal_is_answered_while_the_queue_is_full_of_the_upload(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """hypercorn puts a disconnect into the application's queue before it ends an answer, and waits for a place."""
    engine: Any = SimpleNamespace(gateway=None, settings=SimpleNamespace(access_log=False))
    app: Any = Application("uploads", engine, Counter(), max_body_bytes=1)
    app.uploads.add("/upload")

    @app.post("/upload")  # type: ignore[untyped-decorator]  # of Any, as the scope is
    async def refuse() -> str:
        await trio.testing.wait_all_tasks_blocked()  # the queue is full
        raise ApiError("content_too_large", "No room.")

    put, queue = trio.open_memory_channel[dict[str, Any]](2)
    statuses: list[int] = []

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])
        elif not message.get("more_body", False):
            await put.send({"type": "http.disconnect"})

    async def arrive() -> None:
        while True:
            await put.send({"type": "http.request", "body": b"x", "more_body": True})

    scope = {
        "type": "http",
        "http_version": "1.1",
        "asgi": {"version": "3.0", "spec_version": "2.1"},
        "method": "POST",
        "scheme": "http",
        "path": "/upload",
        "raw_path": b"/upload",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "extensions": {},
    }
    with trio.fail_after(BODY_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(arrive)
            await app(scope, queue.receive, send)
            nursery.cancel_scope.cancel()
    assert statuses == [413]
