"""Reads an input file once, before its first line runs, and notes where each line is. If one is invalid, none runs.

It takes turns with the event loop: a thread that runs Python for long would delay every stream of this process.
"""

import time
from typing import BinaryIO, Final

import trio

from ...protocol.openai_batches import MAX_LINES, BatchEndpoint, BatchError, BatchObject, BatchStatus
from . import batches
from .batches import PlacedLine
from .check import check_line, duplicate, next_line, open_lines
from .folder import DataFolder

LINES_AT_ONCE: Final = 64
BREATH_SECONDS: Final = 0.005  # between two readings; each takes about as long
MOST_ERRORS: Final = 100  # that a client is told of


async def validate(folder: DataFolder, batch: BatchObject, max_line_bytes: int) -> BatchStatus:
    """Move the batch to in_progress, or to failed; returns its status then. May be run again after being killed."""

    total, errors = 0, list[BatchError]()
    path = folder.file_path(batch.input_file_id)
    try:
        file = await trio.to_thread.run_sync(open_lines, path)
    except FileNotFoundError:
        gone = BatchError(code="missing_file", message="The input file is gone from the data folder.")
        return await folder.run(batches.fail, batch.id, [gone], int(time.time()))
    with file:
        await folder.run(batches.forget_lines, batch.id)
        reader = _Reader(file, batch.endpoint, max_line_bytes)
        while (
            len(errors) < MOST_ERRORS and total <= MAX_LINES and (found := await trio.to_thread.run_sync(reader.some))
        ):
            total += len(found)
            errors += [one for one in found if isinstance(one, BatchError)]
            lines = [one for one in found if isinstance(one, PlacedLine)]
            errors += map(duplicate, await folder.run(batches.add_lines, batch.id, lines))
            await trio.sleep(BREATH_SECONDS)
    if not total:
        errors = [BatchError(code="empty_file", message="The input file has no lines.")]
    elif total > MAX_LINES:
        text = f"The input file has more than {MAX_LINES:,} lines; divide it."
        errors = [BatchError(code="too_many_lines", message=text, line=reader.number)]
    if errors:
        errors.sort(key=lambda error: error.line or 0)
        return await folder.run(batches.fail, batch.id, errors[:MOST_ERRORS], int(time.time()))
    return await folder.run(batches.move, batch.id, ("validating",), "in_progress", int(time.time()))


class _Reader:
    """Reads and checks a file from its beginning, some lines at a time."""

    def __init__(self, file: BinaryIO, endpoint: BatchEndpoint, max_line_bytes: int) -> None:
        self.number = 0  # of the last line, blank ones included
        self._file = file
        self._endpoint: BatchEndpoint = endpoint
        self._max_line_bytes = max_line_bytes

    def some(self) -> list[PlacedLine | BatchError]:
        """The next lines that are not blank; none at the end."""
        found: list[PlacedLine | BatchError] = []
        while len(found) < LINES_AT_ONCE:
            start = self._file.tell()
            data = next_line(self._file, self._max_line_bytes)
            if not data:
                break
            self.number += 1
            if data.strip():
                found.append(check_line(data, self.number, start, self._endpoint, self._max_line_bytes))
        return found
