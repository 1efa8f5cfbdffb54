"""What of a `ModelSpec` the GPU's kernels implement; everything else is refused by name before anything is loaded."""

from __future__ import annotations

from ..checkpoint.spec import ModelSpec
from ..errors import UnsupportedModel

REMEDY = "the GPU's kernels do not have this yet; use --device cpu"


def refuse_structure(spec: ModelSpec) -> None:
    """Raises UnsupportedModel, naming the first part of the structure that no kernel implements."""
    if spec.latent is not None:
        raise UnsupportedModel("latent attention", spec.family, REMEDY)
    if spec.parallel and spec.experts is not None:
        raise UnsupportedModel("experts beside attention", spec.family, REMEDY)
