"""Checks the lines of an input file, but not their bodies: each is validated when it runs, like a request's. Pure."""

from codecs import BOM_UTF8
from pathlib import Path
from typing import BinaryIO

import msgspec

from ...protocol.openai_batches import BatchEndpoint, BatchError, BatchLine
from .batches import PlacedLine

_LINE = msgspec.json.Decoder(BatchLine)


def check_line(
    data: bytes, number: int, start: int, endpoint: BatchEndpoint, max_bytes: int
) -> PlacedLine | BatchError:
    """The line's place, or what is wrong with it. `start` is its offset in the file."""
    if len(data) > max_bytes:
        text = f"The line is longer than {max_bytes} bytes, as bodies of requests may be (--max-body-bytes)."
        return BatchError(code="line_too_long", message=text, line=number)
    try:
        line = _LINE.decode(data)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        param = place.rstrip("`").lstrip(".") or None
        return BatchError(code="invalid_line", message=f"{problem}.", param=param, line=number)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return BatchError(code="invalid_json_line", message=f"The line is not valid JSON: {error}.", line=number)
    if line.url != endpoint:
        text = f"url: the batch runs {endpoint}, and this line asks for {line.url[:64]!r}."
        return BatchError(code="mismatched_endpoint", message=text, param="url", line=number)
    if not bytes(line.body).lstrip().startswith(b"{"):
        return BatchError(code="invalid_line", message="body: send a JSON object.", param="body", line=number)
    return PlacedLine(number, line.custom_id, start, len(data))


def duplicate(line: PlacedLine) -> BatchError:
    text = f"custom_id: {line.custom_id[:64]!r} is not unique in this file."
    return BatchError(code="duplicate_custom_id", message=text, param="custom_id", line=line.number)


def open_lines(path: Path) -> BinaryIO:
    """An input file, behind the byte order mark with which some editors begin UTF-8."""
    file = path.open("rb")
    if file.read(len(BOM_UTF8)) != BOM_UTF8:
        file.seek(0)
    return file


def next_line(file: BinaryIO, max_bytes: int) -> bytes:
    """The next line; empty at the end. Of one that is too long its first `max_bytes + 1` bytes; the rest is skipped."""
    line = file.readline(max_bytes + 1)
    rest = line
    while len(rest) > max_bytes and not rest.endswith(b"\n"):
        rest = file.readline(max_bytes + 1)
    return line
