"""Packed weights kept on disk, so that a second start maps them instead of packing them again.

One file for each model folder and weight format: the packed bytes as they lie in memory, a checksum for every chunk,
and a page of JSON. A file that does not fit the checkpoint, the sources of the packing code or its own checksums is not
used, and is written anew. The file is mapped. Without huge pages a sequence decodes a third slower. Where the kernel or
the file system gives none to mapped files, several threads read the file into memory that has them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Iterable
from concurrent.futures import Executor
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt

from ...kernels.cache_folder import private_folder
from ...protocol.steps import LoadProgress, ReportProgress
from ..checkpoint.spec import ModelSpec
from ..low_priority import run_beside
from ..pages import has_huge_pages, mapped_pages, read_pages, zeroed_pages

ByteArray = npt.NDArray[np.uint8]
CHUNK: Final = 2 << 20  # bytes that one thread reads and checks at a time
HEADER_BYTES: Final = 4096
SPARE_BYTES: Final = 1 << 30  # that stay free on the disk
_FACTORS: Final = np.random.PCG64(0).random_raw(CHUNK // 8) | np.uint64(1)
_LOG = logging.getLogger("triolet.weights")


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The end of a file, padded with spaces. The weights are at the start, where huge pages can hold them."""

    identity: str
    size: int
    checksums: int  # CRC-32 of the table of checksums


def identity_of(files: Iterable[Path], spec: ModelSpec, weight_format: str) -> str:
    """Changes whenever the packed bytes could: with the files, the model's description, the format, or our code.

    A file is told by its size and the time of its last change, which no program can set back.
    """
    digest = hashlib.sha256(msgspec.json.encode((spec, weight_format)))
    for file in files:
        status = file.stat()
        digest.update(repr((file.name, status.st_size, status.st_ino, status.st_ctime_ns)).encode())
    root = Path(__file__).parents[2]
    for source in sorted([*(root / "kernels").rglob("*.py"), *(root / "models").rglob("*.py")]):
        digest.update(source.read_bytes())
    return digest.hexdigest()


class KeptWeights:
    """The file of one model in one format; it need not exist."""

    def __init__(self, folder: Path, model: Path, weight_format: str, identity: str) -> None:
        place = hashlib.sha256(os.fsencode(model.resolve())).hexdigest()[:16]
        self.path = folder / f"{model.name}-{weight_format}-{place}"
        self._identity = identity

    def is_current(self) -> bool:
        """Whether the file says that it is this model's; nothing else of it is read."""
        try:
            with self.path.open("rb") as file:
                return _read_header(file.fileno())[0].identity == self._identity
        except (OSError, ValueError, msgspec.MsgspecError):
            return False

    def load(self, size: int, threads: Executor, report: ReportProgress) -> ByteArray | None:
        """The packed weights; None if the file is missing, of another model, damaged, or cannot be read."""
        try:
            with self.path.open("rb") as file:
                header, length = _read_header(file.fileno())
                if header.identity != self._identity or header.size != size:
                    return None
                if length != size + _table_bytes(size) + HEADER_BYTES:
                    raise ValueError("it is cut short")
                table = os.pread(file.fileno(), _table_bytes(size), size)
                if crc32(table) != header.checksums:
                    raise ValueError("its table of checksums is damaged")
                return _load(file.fileno(), size, np.frombuffer(table, np.uint64), threads, report)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            _LOG.warning("the kept weights %s are not used, and are written anew: %s", self.path, error)
            return None

    def save_later(self, source: ByteArray) -> None:
        """Write the file beside the steps. A server that ends before leaves the next one to pack again."""
        run_beside(lambda: self.save(source), "triolet-keeping")

    def save(self, source: ByteArray) -> None:
        """Write the file, or log why it cannot be written: the model runs without it."""
        unfinished = self.path.with_name(f".{self.path.name}.unfinished")
        try:
            with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                flock(file, LOCK_EX | LOCK_NB)  # a writer that is killed lets go of it
                if not _is_at(file.fileno(), unfinished):
                    return  # another server has just finished it, and has it mapped, perhaps
                file.truncate(0)
                try:
                    self._write(file.fileno(), source)
                    unfinished.replace(self.path)
                except BaseException:
                    unfinished.unlink(missing_ok=True)
                    raise
        except BlockingIOError:
            _LOG.info("another server is writing %s", self.path)
        except OSError as error:
            _LOG.warning("the packed weights are not kept in %s: %s", self.path, error)

    def _write(self, file: int, source: ByteArray) -> None:
        free = shutil.disk_usage(self.path.parent).free
        if source.size + SPARE_BYTES > free:
            raise OSError(f"{source.size / 1e9:.1f} GB are too much for the {free / 1e9:.1f} GB that are free")
        table = checksums(source).tobytes()
        header = Header(identity=self._identity, size=source.size, checksums=crc32(table))
        for part in (source.data, table, msgspec.json.encode(header).ljust(HEADER_BYTES)):
            left = memoryview(part).cast("B")
            while left:
                left = left[os.write(file, left) :]


def _is_at(file: int, path: Path) -> bool:
    """Whether the path still names this open file."""
    return path.exists() and os.path.samestat(os.fstat(file), path.stat())


def open_kept_weights(model: Path, files: Iterable[Path], spec: ModelSpec, weight_format: str) -> KeptWeights | None:
    """None, with a line in the log, if the cache folder cannot be used."""
    folder = private_folder("weights", "packed weights are not kept")
    return KeptWeights(folder, model, weight_format, identity_of(files, spec, weight_format)) if folder else None


def _read_header(file: int) -> tuple[Header, int]:
    """And the length of the file."""
    length = os.fstat(file).st_size
    return msgspec.json.decode(os.pread(file, HEADER_BYTES, length - HEADER_BYTES), type=Header), length


def checksums(source: ByteArray) -> npt.NDArray[np.uint64]:
    """Of each chunk: its words times odd random numbers, modulo 2^64, so that no change of one word is missed.

    A core computes 12 GB/s of this and 3 GB/s of zlib's CRC-32 (Zen 4). All is one call, during which the GIL is free.
    """
    whole, factors = source.size // CHUNK * CHUNK, _FACTORS[: CHUNK // 8]
    sums: npt.NDArray[np.uint64] = np.dot(source[:whole].view(np.uint64).reshape(-1, factors.size), factors)
    if whole < source.size:
        rest = np.zeros(CHUNK, np.uint8)
        rest[: source.size - whole] = source[whole:]
        sums = np.append(sums, np.dot(rest.view(np.uint64), factors))
    return sums


def _starts(size: int) -> range:
    return range(0, size, CHUNK)


def _table_bytes(size: int) -> int:
    return 8 * len(_starts(size))


def _load(file: int, size: int, known: npt.NDArray[np.uint64], threads: Executor, report: ReportProgress) -> ByteArray:
    """Raises ValueError for a chunk that is damaged."""
    target = mapped_pages(file, size)
    if copied := not has_huge_pages(target):
        target = zeroed_pages(size)

    def read(start: int) -> int:
        part = target[start : start + CHUNK]
        if copied:
            _read_whole(file, part.data, start)
        elif not read_pages(target, start, part.size):  # touching them would end the process
            raise ValueError(f"the {part.size} bytes at {start} cannot be read")
        if checksums(part)[0] != known[start // CHUNK]:
            raise ValueError(f"the {part.size} bytes at {start} are damaged")
        return part.size

    done = 0
    for count in threads.map(read, _starts(size)):
        done += count
        report(LoadProgress(stage="reading packed weights", done=done, total=size, unit="bytes"))
    return target


def _read_whole(file: int, part: memoryview, start: int) -> None:
    done = 0
    while done < len(part):
        count = os.preadv(file, [part[done:]], start + done)
        if not count:
            raise ValueError("it is cut short")
        done += count
