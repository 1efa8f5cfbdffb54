"""The MLP of a layer on a GPU: its launches, and what it reads."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ...kernels.activation.gpu import activate
from ..checkpoint.spec import ModelSpec
from .adapters import Adapted
from .arena import Arena
from .attention import Multiply
from .buckets import PassShape
from .linear import Activations
from .residual import Added, Residual
from .weights import DeviceLayer, DeviceMlp


class Mlp:
    """Enqueues the MLP of one layer."""

    def __init__(
        self,
        capability: int,
        spec: ModelSpec,
        layer: DeviceLayer,
        weights: DeviceMlp,
        residual: Residual,
        buffers: Arena,
        multiply: Multiply,
    ) -> None:
        self._weights, self._buffers, self._multiply = weights, buffers, multiply
        self._normed, self._gated = Activations.of(buffers, "normed"), Activations.of(buffers, "gated")
        # Beside attention it reads what attention read, which is in "normed" still.
        self._enter = residual.add if spec.parallel else partial(residual.enter, layer.mlp_norm)
        self._activate = partial(
            activate, activation=spec.activation, gated=spec.gated, bias=weights.gate_up_bias, capability=capability
        )

    def run(self, added: Added, adapted: Mapping[str, Adapted], shape: PassShape) -> None:
        """From the residual stream, to which `added` comes first, to "hidden"."""
        self._enter(added, shape)
        gate_up, gated = self._buffers["gate_up"][: shape.tokens], self._gated.first(shape.tokens)
        self._multiply(self._weights.gate_up, adapted.get("gate_up"), self._normed, gate_up, shape)
        self._activate(gate_up, gated.values, scales=gated.scales)
        hidden = self._buffers["hidden"][: shape.tokens]
        self._multiply(self._weights.down, adapted.get("down"), self._gated, hidden, shape)
