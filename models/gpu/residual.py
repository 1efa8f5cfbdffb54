"""The residual stream of a pass, and the norms around the blocks that add to it.

It has its own buffer, and every norm before a block adds to it what the block before has left: so what a block gives
is not added until the next one begins.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ...kernels.rms_norm.gpu import norm_rows
from ..checkpoint.spec import ModelSpec
from .arena import Arena
from .buckets import PassShape
from .device import Device
from .linear import Activations
from .weights import Norm


class Added(NamedTuple):
    """What a block adds to the residual stream."""

    values: torch.Tensor
    bias: torch.Tensor | None


class Residual:
    """Enqueues norms."""

    def __init__(self, device: Device, spec: ModelSpec, buffers: Arena) -> None:
        self._capability, self._eps, self._centred = device.capability, spec.norm_eps, spec.layer_norm
        self._buffers, self._normed = buffers, Activations.of(buffers, "normed")

    def enter(self, norm: Norm | None, added: Added | None, shape: PassShape, out: Activations | None = None) -> None:
        """ "normed" (or `out`) = norm(residual + added), and the residual becomes the sum."""
        residual, out = self._buffers["residual"][: shape.tokens], out or self._normed.first(shape.tokens)
        values, x_bias = (residual, None) if added is None else added
        self.norm(norm, values, out, x_bias, None if added is None else residual)

    def add(self, added: Added, shape: PassShape) -> None:
        """The residual becomes the sum, and "normed" stays."""
        residual = self._buffers["residual"][: shape.tokens]
        self.norm(None, added.values, Activations(added.values), added.bias, residual)

    def leave(self, norm: Norm | None, bias: torch.Tensor | None, shape: PassShape) -> Added:
        """What a block with this norm behind it adds: its result is in "hidden", without this bias."""
        hidden = self._buffers["hidden"][: shape.tokens]
        if norm is None:
            return Added(hidden, bias)
        self.norm(norm, hidden, Activations(hidden), bias, None)
        return Added(hidden, None)

    def norm(
        self,
        norm: Norm | None,
        x: torch.Tensor,
        out: Activations,
        x_bias: torch.Tensor | None,
        residual: torch.Tensor | None,
    ) -> None:
        gain, bias = (None, None) if norm is None else (norm.gain, norm.bias)
        norm_rows(
            x, gain, self._eps, out.values, capability=self._capability, residual=residual,
            scales=out.scales, bias=bias, x_bias=x_bias, centred=self._centred,
        )  # fmt: skip
