"""What `triolet batch` reads of its FILE before a request of it runs, and what it refuses."""

from collections.abc import Mapping
from contextlib import suppress
from hashlib import file_digest
from pathlib import Path
from typing import Final, get_args

import msgspec

from ..actors.batch.check import next_line, open_lines
from ..protocol.openai_batches import BatchEndpoint, BatchLine, BatchObject
from .refusals import Refusal

LINE: Final = msgspec.json.Decoder(BatchLine)


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def endpoint_of(path: Path, max_line_bytes: int) -> BatchEndpoint:
    """The url of the first line that is not blank; the runner checks all others against it. Raises Refusal."""
    known: tuple[BatchEndpoint, ...] = get_args(BatchEndpoint)
    number = 1
    with open_lines(path) as file:
        while (line := next_line(file, max_line_bytes)) and not line.strip():
            number += 1
    with suppress(msgspec.MsgspecError, UnicodeDecodeError):
        url = LINE.decode(line).url
        for endpoint in known:
            if url == endpoint:
                return endpoint
        raise Refusal(f"{path}:{number}: url is {url[:64]!r}; send {' or '.join(known)}")
    raise Refusal(f"{path}:{number}: the line is not a request; triolet batch --help shows one")


def refuse_other(part: Path, began: Mapping[str, str], now: Mapping[str, str], words: Mapping[str, str]) -> None:
    """One output holds the answers of one model to one file. Raises Refusal, with the words for what differs."""
    for name, value in now.items():
        if began.get(name) != value:
            raise Refusal(
                f"{part} was begun with {words[name]}: give that to go on, delete that folder to begin anew, "
                "or give another --output"
            )


def refuse_invalid(path: Path, batch: BatchObject) -> None:
    """Raises Refusal for a batch that failed, with all its lines that are wrong."""
    if batch.errors is not None:
        problems = [f"{path}:{error.line or 1}: {error.message}" for error in batch.errors.data]
        raise Refusal("no request was run\n" + "\n".join(problems))
