"""The fuzzer's target for files of torch.save on the hub, of which both ends come: they tell what the whole tells."""

from pathlib import Path
from unittest.mock import patch

from triolet.models.checkpoint.pytorch.file import PytorchFile
from triolet.models.errors import CheckpointError
from triolet.models.hub import archive_headers


def read_input(folder: Path, data: bytes) -> bool:
    """Also where the ends are shorter than what they should hold."""

    def read(first: int, end: int) -> bytes:
        return data[first:end]

    with patch.multiple(archive_headers, FIRST=256, LAST=128):
        try:
            archive_headers.fetch_archive(read, folder / "headers.bin", len(data))
            found = described(folder, "headers.bin")
        except archive_headers.NoHeaders:
            return False
        except CheckpointError:
            found = None
    (folder / "whole.bin").write_bytes(data)
    try:
        whole = described(folder, "whole.bin")
    except CheckpointError:
        return False
    assert found == whole
    return True


def described(folder: Path, name: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {tensor: (info.dtype, info.shape) for tensor, info in PytorchFile(folder, name).tensors.items()}
