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
import tempfile
from collections.abc import Iterable
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt

from ...kernels.cache_folder import private_folder
from ...protocol.steps import LoadProgress, ReportProgress
from ..checkpoint.spec import ModelSpec
from ..low_priority import run_when_idle
from ..pages import has_huge_pages, mapped_pages, zeroed_pages

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

    def load(self, size: int, threads: Executor, report: ReportProgress) -> ByteArray | None:
        """The packed weights; None if the file is missing, of another model, damaged, or cannot be read."""
        try:
            with self.path.open("rb") as file:
                length = file.seek(0, os.SEEK_END)
                header = msgspec.json.decode(os.pread(file.fileno(), HEADER_BYTES, length - HEADER_BYTES), type=Header)
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
        """Write the file while the cores are idle. A server that ends before leaves the next one to pack again."""
        run_when_idle(lambda: self.save(source), "triolet-keeping")

    def save(self, source: ByteArray) -> None:
        """Write the file, or log why it cannot be written: the model runs without it."""
        unfinished = f".{self.path.name}-"
        try:
            for other in self.path.parent.iterdir():
                if other.name.startswith(unfinished):  # its writer was killed
                    other.unlink(missing_ok=True)
            free = shutil.disk_usage(self.path.parent).free
            if source.size + SPARE_BYTES > free:
                raise OSError(f"{source.size / 1e9:.1f} GB are too much for the {free / 1e9:.1f} GB that are free")
            handle, name = tempfile.mkstemp(prefix=unfinished, dir=self.path.parent)
            try:
                with open(handle, "wb") as file:
                    self._write(file.fileno(), source)
                Path(name).replace(self.path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            _LOG.warning("the packed weights are not kept in %s: %s", self.path, error)

    def _write(self, file: int, source: ByteArray) -> None:
        table = checksums(source).tobytes()
        header = Header(identity=self._identity, size=source.size, checksums=crc32(table))
        for part in (source.data, table, msgspec.json.encode(header).ljust(HEADER_BYTES)):
            left = memoryview(part).cast("B")
            while left:
                left = left[os.write(file, left) :]
        with suppress(OSError):  # not on every file system
            os.fsync(file)


def open_kept_weights(model: Path, files: Iterable[Path], spec: ModelSpec, weight_format: str) -> KeptWeights | None:
    """None, with a line in the log, if the cache folder cannot be used."""
    folder = private_folder("weights", "packed weights are not kept")
    return KeptWeights(folder, model, weight_format, identity_of(files, spec, weight_format)) if folder else None


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
        if copied and os.preadv(file, [part.data], start) < part.size:
            raise ValueError("it is cut short")
        if checksums(part)[0] != known[start // CHUNK]:
            raise ValueError(f"the {part.size} bytes at {start} are damaged")
        return part.size

    done = 0
    for count in threads.map(read, _starts(size)):
        done += count
        report(LoadProgress(stage="reading packed weights", done=done, total=size, unit="bytes"))
    return target
