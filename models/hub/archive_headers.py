"""Of a file of torch.save on the hub, what its reader needs to describe the tensors: the pickle and the directory.

The pickle is at the beginning of such an archive and the directory at its end. The headers of the other records, which
lie between the weights, are written here, each with the storage right behind it; the weights themselves are holes.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from ..checkpoint.pytorch.archive import RECORD_HEAD, RECORD_MARK, find_directory, read_directory
from ..errors import CheckpointError, LoadError

FIRST: Final = 128 << 10  # holds the pickle of some hundred tensors
LAST: Final = 256 << 10  # holds the directory of two thousand storages
_NEEDED: Final = (b"/data.pkl", b"/byteorder")
_LARGEST: Final = 16 << 20  # of a record that is needed
_HEADER_ROOM: Final = 1024  # for a name and the bytes that align what follows


class NoHeaders(LoadError):
    """What the weights are stored in tells nothing before all of it is there."""

    code = "unsupported_model"


def fetch_archive(read: Callable[[int, int], bytes], path: Path, size: int) -> None:
    """Write the file with its holes. `read(first, end)` fetches bytes of it. Raises LoadError."""
    first = read(0, min(FIRST, size))
    if not first.startswith(RECORD_MARK):
        raise NoHeaders(f"{path.name} is no archive, and tells nothing before all of it is there: fetch it to plan it")
    parts = {0: first, max(0, size - LAST): read(max(0, size - LAST), size)}
    start = max(parts)
    begin, count, end = find_directory(parts[start], path.name)
    if begin < start:
        start, parts[begin] = begin, read(begin, end)
    for entry in read_directory(parts[start], begin - start, end - start, count, path.name):
        if entry.header >= size:
            raise CheckpointError(path.name, entry.header, f"is the place of a record, in {size} bytes: damaged")
        last = min(size, entry.header + _HEADER_ROOM + min(entry.size, _LARGEST))
        if not entry.name.endswith(_NEEDED):
            parts[entry.header] = RECORD_HEAD.pack(RECORD_MARK, *[0] * 8, len(entry.name), 0) + entry.name
        elif last > len(first):
            parts[entry.header] = read(entry.header, last)
    with path.open("wb") as file:
        file.truncate(size)
        for place, part in sorted(parts.items()):
            file.seek(place)
            file.write(part)
