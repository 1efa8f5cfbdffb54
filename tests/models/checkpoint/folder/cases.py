"""The fuzzer's target for a decoder's folder: lines with config.json and the list of shards, then the weights."""

from pathlib import Path

import numpy as np
import safetensors.numpy

from ..fuzz import write_parts
from ..reading import read_weights

OTHER = safetensors.numpy.save({"lm_head.weight": np.ones((3, 4), np.float32)})  # a second shard, for lists that say so


def read_input(folder: Path, data: bytes) -> bool:
    write_parts(folder, data, "config.json", "model.safetensors.index.json", "model.safetensors")
    (folder / "other.safetensors").write_bytes(OTHER)
    return read_weights(folder)
