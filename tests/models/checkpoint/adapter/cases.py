"""The fuzzer's target for LoRA adapters: a line with the configuration, then the file of tensors beside it."""

from pathlib import Path

from triolet.loadtest.device.random_model import TINY
from triolet.models.checkpoint.adapter import CONFIG_FILE, FORMS, WEIGHTS_FILE, load_adapter

from ..fuzz import write_parts


def read_input(folder: Path, data: bytes) -> bool:
    """Of a model with one layer."""
    in_torch = data.partition(b"\n")[2][:1] in (b"P", b"\x80")
    for name in FORMS:
        (folder / name).unlink(missing_ok=True)
    write_parts(folder, data, CONFIG_FILE, "adapter_model.bin" if in_torch else WEIGHTS_FILE)
    return load_adapter(folder, TINY).rank > 0
