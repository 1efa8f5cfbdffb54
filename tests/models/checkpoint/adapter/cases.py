"""The fuzzer's target for LoRA adapters: a line with the configuration, then the safetensors file beside it."""

from pathlib import Path

from triolet.loadtest.device.random_model import TINY
from triolet.models.checkpoint.adapter import CONFIG_FILE, WEIGHTS_FILE, load_adapter
from triolet.models.errors import CheckpointError


def read_input(folder: Path, data: bytes) -> bool:
    """Of a model with one layer."""
    config, _, weights = data.partition(b"\n")
    (folder / CONFIG_FILE).write_bytes(config)
    (folder / WEIGHTS_FILE).write_bytes(weights)
    try:
        return load_adapter(folder, TINY).rank > 0
    except CheckpointError:
        return False
