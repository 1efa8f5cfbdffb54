"""The fuzzer's target for safetensors: a file of which all is read."""

from pathlib import Path

from triolet.models.checkpoint.safetensors import SafetensorsFile
from triolet.models.errors import CheckpointError


def read_input(folder: Path, data: bytes) -> bool:
    (folder / "model.safetensors").write_bytes(data)
    try:
        file = SafetensorsFile(folder, "model.safetensors")
    except CheckpointError:
        return False
    for read in (file.read, file.raw):
        for tensor, info in file.tensors.items():
            try:
                array = read(tensor)
            except CheckpointError:  # a type that is no weight's
                continue
            assert array.shape == info.shape
    return True
