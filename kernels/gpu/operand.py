"""What a launcher asks of its tensors, so that a kernel reads no other memory than it was given."""

from __future__ import annotations

import torch


def need(name: str, tensor: torch.Tensor | None, dtype: torch.dtype, *shape: int) -> None:
    """Raises ValueError unless the tensor, if there is one, is contiguous and of this type and shape."""
    if tensor is not None and (tensor.dtype != dtype or tuple(tensor.shape) != shape or not tensor.is_contiguous()):
        found = f"{tensor.dtype} {list(tensor.shape)}{'' if tensor.is_contiguous() else ', not contiguous'}"
        raise ValueError(f"{name}: must be contiguous {dtype} {list(shape)}, and is {found}")
