"""What the fuzzer does with a decoder's checkpoint: its weights are read, one by one and as a start reads them."""

from pathlib import Path

from triolet.models.checkpoint.open import open_checkpoint
from triolet.models.checkpoint.stored import StoredMatrix
from triolet.models.checkpoint.weights import load_weights, outline_weights


def read_weights(model: Path) -> bool:
    checkpoint = open_checkpoint(model)
    for name in checkpoint.tensor_names:
        weight = checkpoint.read_tensor(name)
        if isinstance(weight, StoredMatrix):
            weight.rows(len(weight) // 3, len(weight))  # from within a head to the last
    outline_weights(checkpoint)
    load_weights(checkpoint)
    return True
