"""How the launchers of row kernels read the request for a quantised output off its tensors."""

from __future__ import annotations

import torch

from .gpu import GROUP

E4M3_CAPABILITY = 89  # the first with conversion instructions to e4m3


def scale_groups(out: torch.Tensor, scales: torch.Tensor | None, capability: int) -> int:
    """How many scales a row of `out` [rows, size] has: 1, or one per GROUP values, by the shape of `scales`.

    Raises ValueError where the tensors contradict each other.
    """
    quantised = out.dtype in (torch.int8, torch.float8_e4m3fn)
    if quantised != (scales is not None):
        raise ValueError(f"scales go with an int8 or e4m3 output and with no other, and out is {out.dtype}")
    if out.dtype == torch.float8_e4m3fn and capability < E4M3_CAPABILITY:
        raise ValueError(f"e4m3 output needs compute capability {E4M3_CAPABILITY}, the device has {capability}")
    if scales is None:
        return 1
    rows, size = out.shape
    expected = (rows,) if scales.dim() == 1 else (rows, size // GROUP)
    fits = scales.shape == expected and not (scales.dim() == 2 and size % GROUP)
    if scales.dtype != torch.float32 or not fits or not scales.is_contiguous():
        raise ValueError(
            f"scales must be contiguous float32 [{rows}], or [{rows}, {size} / {GROUP}] where that divides: "
            f"they are {scales.dtype} {tuple(scales.shape)}"
        )
    return 1 if scales.dim() == 1 else size // GROUP
