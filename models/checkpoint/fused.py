"""Experts that a folder keeps in one tensor for each projection, shown as the matrices of each expert.

    experts.gate_up_proj [experts, 2 width, hidden], gates before ups; experts.down_proj [experts, hidden, width]

That is how transformers 5 has them in memory. gpt-oss has its matrices transposed, its gates and ups in turn, and
biases: `experts.gate_up_proj_bias` [experts, 2 width], `experts.down_proj_bias` [experts, hidden].
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import CheckpointError
from .experts import MAX_PIECES, ExpertSpec

GATE_UP, DOWN, BIAS = "gate_up_proj", "down_proj", "_bias"


class ExpertPiece(NamedTuple):
    """A matrix or bias of one expert, as a part of the tensor of all."""

    tensor: str
    expert: int
    rows: slice  # its outputs
    turned: bool  # the tensor has [inputs, outputs]

    def of(self, tensor: npt.NDArray[Any]) -> npt.NDArray[Any]:
        own = tensor[self.expert]
        matrix: npt.NDArray[Any] = (own.T if self.turned else own)[self.rows]
        return matrix

    def shape(self, tensor: tuple[int, ...]) -> tuple[int, ...]:
        """Its shape in a tensor of that shape."""
        return self.of(np.broadcast_to(np.uint8(0), tensor)).shape


def fused_experts(shapes: Mapping[str, tuple[int, ...]], spec: ExpertSpec) -> dict[str, ExpertPiece]:
    """The pieces of all such tensors by the names of an expert's own weights. `shapes`: of the tensors in the files."""
    found = dict[str, ExpertPiece]()
    for name, shape in shapes.items():
        start, _, last = name.rpartition(".")
        kind, biased = last.removesuffix(BIAS), last.endswith(BIAS)
        if kind not in (GATE_UP, DOWN) or not start.endswith(".experts"):
            continue
        if len(shape) != (2 if biased else 3) or shape[0] != spec.count or 0 in shape:
            raise CheckpointError(name, shape, f"expected a tensor of {spec.count} experts, as config.json has them")
        turned = spec.names.in_turn and not biased
        outputs = shape[-1] if turned else shape[1]
        if kind == DOWN:
            parts = {"down_proj": slice(None)}
        elif spec.names.in_turn:
            parts = {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2)}
        else:
            parts = {"gate_proj": slice(outputs // 2), "up_proj": slice(outputs // 2, None)}
        if spec.count + len(found) > MAX_PIECES:
            raise CheckpointError(name, spec.count, f"experts; at most {MAX_PIECES} matrices and biases are read")
        end = "bias" if biased else "weight"
        for index in range(spec.count):
            for part, rows in parts.items():
                found[f"{start}.{index}.{part}.{end}"] = ExpertPiece(name, index, rows, turned)
    return found
