"""The records of a zip archive as torch.save writes it: stored, never compressed, each where the directory says.

Nothing is unpacked: a record is a place in the mapped file. What the directory says is held against the header in front
of each record, and no two records may share a byte, so that an archive is never larger than its file.
Layout: APPNOTE.TXT of PKWARE, sections 4.3 to 4.5.
"""

from __future__ import annotations

import mmap
import struct
from typing import Final, NamedTuple

from ...errors import CheckpointError

MAX_RECORDS: Final = 1 << 16  # one for each storage; shards of the largest mixtures have some thousands
MAX_NAME_BYTES: Final = 256
RECORD_HEAD: Final = struct.Struct("<4s5H3I2H")  # in front of a record; its name and extra fields follow
RECORD_MARK: Final = b"PK\3\4"
_END: Final = struct.Struct("<4s4H2IH")
_END_64_PLACE: Final = struct.Struct("<4sIQI")
_END_64: Final = struct.Struct("<4sQ2H2I4Q")
_ENTRY: Final = struct.Struct("<4s6H3I5H2I")
_LONGEST_COMMENT: Final = 0xFFFF
_FIELD: Final = struct.Struct("<2H")
_IN_EXTRA_FIELD: Final = 0xFFFFFFFF  # of a size or an offset that takes 64 bits
_SIZES_64: Final = 1  # the extra field with them
_ENCRYPTED: Final = 1 << 0 | 1 << 6


class Entry(NamedTuple):
    """A record as the directory has it: its name, its size, and where its header begins."""

    name: bytes
    size: int
    header: int


class ArchiveRecord(NamedTuple):
    """The bytes of a record in the file."""

    begin: int
    end: int


def read_archive(data: mmap.mmap, file: str) -> dict[str, ArchiveRecord]:
    """The records by name. Raises CheckpointError for what is damaged, compressed, encrypted or overlapping."""
    directory, count, end = find_directory(data, file)
    entries = sorted(read_directory(data, directory, end, count, file), key=lambda entry: entry.header)
    records: dict[str, ArchiveRecord] = {}
    for index, entry in enumerate(entries):
        limit = entries[index + 1].header if index + 1 < len(entries) else directory
        name = entry.name.decode("utf-8", "replace")
        if name in records:
            raise CheckpointError(f"{file}: record", name, "occurs twice")
        records[name] = _placed(data, entry, limit, f"{file}: {name}")
    return records


def find_directory(data: mmap.mmap | bytes, file: str) -> tuple[int, int, int]:
    """Where the directory begins, how many entries it has, and where it ends. `data` is the file, or its end.

    Of an end of the file alone, the numbers are those in the whole file.
    """
    tail = max(0, len(data) - _END.size - _LONGEST_COMMENT)
    place = data.rfind(b"PK\5\6", tail)
    if place < 0 or place + _END.size > len(data):
        raise CheckpointError("file", file, "the directory at the end of the archive is missing: the file is truncated")
    _, _, _, _, count, size, begin, comment = _END.unpack_from(data, place)
    if place + _END.size + comment != len(data):
        raise CheckpointError("file", file, "the file goes on behind the end of its archive: damaged")
    locator = place - _END_64_PLACE.size
    if locator >= 0 and data[locator : locator + 4] == b"PK\6\7":
        place = locator - _END_64.size  # torch.save writes no more fields there
        if place < 0 or data[place : place + 4] != b"PK\6\6":
            raise CheckpointError("file", file, "the end of its archive is damaged")
        *_, count, size, begin = _END_64.unpack_from(data, place)
    if count > MAX_RECORDS:
        raise CheckpointError(f"{file}: records", count, f"at most {MAX_RECORDS} are read; save it as safetensors")
    if size > count * (_ENTRY.size + MAX_NAME_BYTES + 128):
        raise CheckpointError(f"{file}: directory", size, f"bytes are too many for {count} records: damaged")
    return begin, count, begin + size


def read_directory(data: mmap.mmap | bytes, begin: int, end: int, count: int, file: str) -> list[Entry]:
    """The entries of the directory that is there in `data`."""
    found, position = list[Entry](), begin
    end = min(end, len(data))
    for index in range(count):
        if position + _ENTRY.size > end or data[position : position + 4] != b"PK\1\2":
            raise CheckpointError(f"{file}: entry", index, "the directory of the archive is damaged")
        fields = _ENTRY.unpack_from(data, position)
        flags, method, stored, size = fields[3], fields[4], fields[8], fields[9]
        name_bytes, extra_bytes, comment_bytes, header = fields[10], fields[11], fields[12], fields[16]
        start = position + _ENTRY.size
        name = data[start : start + min(name_bytes, MAX_NAME_BYTES)]
        extra = data[start + name_bytes : start + name_bytes + extra_bytes]
        position = start + name_bytes + extra_bytes + comment_bytes
        place = f"{file}: {name.decode('utf-8', 'replace')}"
        if name_bytes > MAX_NAME_BYTES or position > end:
            raise CheckpointError(f"{file}: entry", index, "the directory of the archive is damaged")
        if flags & _ENCRYPTED:
            raise CheckpointError(place, flags, "the record is encrypted")
        if method != 0:
            raise CheckpointError(place, method, "the record is compressed, which torch.save never does: save it anew")
        size, stored, header = _in_64_bits([size, stored, header], extra, place)
        if size != stored:
            raise CheckpointError(place, (size, stored), "bytes: a stored record has one size")
        found.append(Entry(name, size, header))
    if position != end:
        raise CheckpointError(f"{file}: directory", end - begin, f"bytes, of which its entries take {position - begin}")
    return found


def _in_64_bits(sizes: list[int], extra: bytes, place: str) -> list[int]:
    """The numbers, those that do not fit into 32 bits from the extra field for them."""
    position = 0
    while _IN_EXTRA_FIELD in sizes and position + _FIELD.size <= len(extra):
        kind, length = _FIELD.unpack_from(extra, position)
        position += _FIELD.size
        if kind == _SIZES_64:
            field = extra[position : position + length]
            wide = [value for (value,) in struct.iter_unpack("<Q", field[: len(field) // 8 * 8])]
            missing = [index for index, size in enumerate(sizes) if size == _IN_EXTRA_FIELD]
            for index, value in zip(missing, wide, strict=False):
                sizes[index] = value
            if len(wide) >= len(missing):
                return sizes
        position += length
    if _IN_EXTRA_FIELD in sizes:
        raise CheckpointError(place, sizes, "the record's size in 64 bits is missing: the archive is damaged")
    return sizes


def _placed(data: mmap.mmap, entry: Entry, limit: int, place: str) -> ArchiveRecord:
    """Where the record's bytes are; they and their header end before `limit`."""
    name_begin = entry.header + RECORD_HEAD.size
    if name_begin > limit or data[entry.header : entry.header + 4] != RECORD_MARK:
        raise CheckpointError(place, entry.header, "there is no record at this place: the file is damaged")
    name_bytes, extra_bytes = RECORD_HEAD.unpack_from(data, entry.header)[-2:]
    if data[name_begin : name_begin + name_bytes] != entry.name:
        raise CheckpointError(place, entry.header, "another record is at this place: the file is damaged")
    begin = name_begin + name_bytes + extra_bytes
    if begin + entry.size > limit:
        raise CheckpointError(place, entry.size, "bytes reach into the next record: overlap, or truncated")
    return ArchiveRecord(begin, begin + entry.size)
