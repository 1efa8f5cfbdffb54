"""Packed weights kept on disk, so that a second start reads them instead of packing them again.

One file for each model folder and weight format: a page of JSON, the packed bytes as they lie in memory, and a checksum
for every chunk. A file that does not fit the checkpoint, the sources of the packing code or its own checksums is not
used, and is written anew. Several threads read it: into huge pages, which a mapped file would not have, and without
which a sequence decodes a third slower.
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

ByteArray = npt.NDArray[np.uint8]
CHUNK: Final = 8 << 20  # bytes that one thread reads and checks at a time
HEADER_BYTES: Final = 4096  # so that the data starts at a page
SPARE_BYTES: Final = 1 << 30  # that stay free on the disk
_LOG = logging.getLogger("triolet.weights")


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first page of a file, padded with spaces."""

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

    def load(self, target: ByteArray, threads: Executor, report: ReportProgress) -> bool:
        """Fill the target; False if the file is missing, of another model, damaged, or cannot be read."""
        try:
            with self.path.open("rb") as file:
                header = msgspec.json.decode(file.read(HEADER_BYTES), type=Header)
                if header.identity != self._identity or header.size != target.size:
                    return False
                table = os.pread(file.fileno(), _table_bytes(target.size), HEADER_BYTES + target.size)
                if crc32(table) != header.checksums or len(table) != _table_bytes(target.size):
                    raise ValueError("its table of checksums is damaged")
                _read_all(file.fileno(), target, np.frombuffer(table, np.uint32), threads, report)
        except FileNotFoundError:
            return False
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            _LOG.warning("the kept weights %s are not used, and are written anew: %s", self.path, error)
            return False
        return True

    def save(self, source: ByteArray, threads: Executor) -> None:
        """Write the file, or log why it cannot be written: the model runs without it."""
        try:
            free = shutil.disk_usage(self.path.parent).free
            if source.size + SPARE_BYTES > free:
                raise OSError(f"{source.size / 1e9:.1f} GB are too much for the {free / 1e9:.1f} GB that are free")
            handle, name = tempfile.mkstemp(prefix=f".{self.path.name}-", dir=self.path.parent)
            try:
                with open(handle, "wb") as file:
                    self._write(file.fileno(), source, threads)
                Path(name).replace(self.path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            _LOG.warning("the packed weights are not kept in %s: %s", self.path, error)

    def _write(self, file: int, source: ByteArray, threads: Executor) -> None:
        def check(start: int) -> int:
            return crc32(source[start : start + CHUNK].data)

        checksums = np.array(list(threads.map(check, _starts(source.size))), np.uint32).tobytes()
        header = Header(identity=self._identity, size=source.size, checksums=crc32(checksums))
        for part in (msgspec.json.encode(header).ljust(HEADER_BYTES), source.data, checksums):
            left = memoryview(part).cast("B")
            while left:
                left = left[os.write(file, left) :]
        with suppress(OSError):  # not on every file system
            os.fsync(file)


def open_kept_weights(model: Path, files: Iterable[Path], spec: ModelSpec, weight_format: str) -> KeptWeights | None:
    """None, with a line in the log, if the cache folder cannot be used."""
    folder = private_folder("weights", "packed weights are not kept")
    return KeptWeights(folder, model, weight_format, identity_of(files, spec, weight_format)) if folder else None


def _starts(size: int) -> range:
    return range(0, size, CHUNK)


def _table_bytes(size: int) -> int:
    return 4 * len(_starts(size))


def _read_all(
    file: int, target: ByteArray, checksums: npt.NDArray[np.uint32], threads: Executor, report: ReportProgress
) -> None:
    """Raises ValueError for a chunk that is short or damaged."""

    def read(start: int) -> int:
        part = target[start : start + CHUNK].data
        done = 0
        while done < len(part):
            count = os.preadv(file, [part[done:]], HEADER_BYTES + start + done)
            if not count:
                raise ValueError("it is cut short")
            done += count
        if crc32(part) != checksums[start // CHUNK]:
            raise ValueError(f"the {len(part)} bytes at {start} are damaged")
        return done

    total = 0
    for count in threads.map(read, _starts(target.size)):
        total += count
        report(LoadProgress(stage="reading packed weights", done=total, total=target.size, unit="bytes"))
