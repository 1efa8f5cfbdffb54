"""The fuzzer's target for `tekken.json`."""

from pathlib import Path

from ..reading import encodes


def read_input(folder: Path, data: bytes) -> bool:
    (folder / "tekken.json").write_bytes(data)
    return encodes(folder)
