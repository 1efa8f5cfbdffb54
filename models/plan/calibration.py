"""What this machine was measured to do, kept in the user's cache folder: `triolet bench offline` writes, a plan reads.

A file of another machine or another version of the program counts for nothing.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, structs

from .speed import Rates

_NAME: Final = "calibration.json"


class Calibration(Struct, frozen=True, kw_only=True):
    """`rates` by device, weights and threads, as `key_of` writes them."""

    machine: str
    version: str
    rates: dict[str, Rates] = {}


def calibration_file() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "triolet" / _NAME


def key_of(device: str, weights: str, threads: int) -> str:
    return f"{device}, {weights}, {threads} threads" if device == "cpu" else f"{device}, {weights}"


def read_rates(key: str, machine: str, version: str) -> Rates | None:
    """None: never measured here, or by another version."""
    return _read(machine, version).rates.get(key)


def keep_rates(key: str, rates: Rates, machine: str, version: str) -> None:
    """A rate that this run could not tell stays as it was. Nothing is kept where the folder cannot be written."""
    known = _read(machine, version)
    before = known.rates.get(key)
    if before is not None:
        rates = structs.replace(
            rates,
            bandwidth=before.bandwidth if rates.bandwidth is None else rates.bandwidth,
            operations=before.operations if rates.operations is None else rates.operations,
        )
    kept = structs.replace(known, rates={**known.rates, key: rates})
    file = calibration_file()
    with suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = file.with_name(f"{_NAME}.{os.getpid()}")
        part.write_bytes(msgspec.json.format(msgspec.json.encode(kept)))
        part.replace(file)


def _read(machine: str, version: str) -> Calibration:
    empty = Calibration(machine=machine, version=version)
    try:
        found = msgspec.json.decode(calibration_file().read_bytes(), type=Calibration)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return empty
    return found if (found.machine, found.version) == (machine, version) else empty
