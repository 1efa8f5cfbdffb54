"""The fuzzer's target for an encoder's folder: a line for each of its JSON files, then its weights."""

from pathlib import Path

import numpy as np
import safetensors.numpy

from triolet.models.encoder.checkpoint import EncoderCheckpoint, holds_encoder
from triolet.models.encoder.weights import load_encoder_weights

from ..checkpoint.fuzz import write_parts

LINES = (
    "config.json", "modules.json", "1_Pooling/config.json", "2_Dense/config.json", "config_sentence_transformers.json",
    "sentence_bert_config.json",
)  # fmt: skip
DENSE = safetensors.numpy.save({"linear.weight": np.ones((2, 4), np.float32), "linear.bias": np.ones(2, np.float32)})


def read_input(folder: Path, data: bytes) -> bool:
    write_parts(folder, data, *LINES, "model.safetensors")
    (folder / "2_Dense" / "model.safetensors").write_bytes(DENSE)
    if not holds_encoder(folder):
        return False
    checkpoint = EncoderCheckpoint(folder)
    weights = load_encoder_weights(checkpoint, checkpoint.spec)
    return checkpoint.max_length > 0 and bool(checkpoint.head(weights.classifier).pooling)
