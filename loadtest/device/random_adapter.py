"""Random LoRA adapters, and models with an adapter merged into their weights. Imports no torch."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from triolet.kernels.gemm.pack import to_float32
from triolet.models.checkpoint.adapter import MODULES, AdapterWeights, LowRank, module_sizes
from triolet.models.checkpoint.spec import ModelSpec
from triolet.models.checkpoint.weights import DecoderWeights


def random_adapter(
    spec: ModelSpec,
    seed: int,
    rank: int = 16,
    modules: tuple[str, ...] = tuple(MODULES),
    scale: float = 0.2,
    *,
    alike: bool = False,
) -> AdapterWeights:
    """It changes each of these matrices by about its scale, relatively. `alike`: all layers are the same arrays."""
    rng = np.random.default_rng(seed)

    def drawn() -> dict[str, LowRank]:
        layer: dict[str, LowRank] = {}
        for module in modules:
            rows, columns = module_sizes(spec)[module]
            a = rng.standard_normal((rank, columns), dtype=np.float32) * np.float32(columns**-0.5)
            b = rng.standard_normal((rows, rank), dtype=np.float32) * np.float32(rank**-0.5)
            layer[module] = LowRank(a, b, scale)
        return layer

    layers = (drawn(),) * spec.num_layers if alike else tuple(drawn() for _ in range(spec.num_layers))
    return AdapterWeights(layers)


def scaled(adapter: AdapterWeights, factor: float) -> AdapterWeights:
    return AdapterWeights(
        tuple(
            {module: replace(part, scale=part.scale * factor) for module, part in layer.items()}
            for layer in adapter.layers
        )
    )


def merged(base: DecoderWeights, adapter: AdapterWeights) -> DecoderWeights:
    """The base with scale * B A added to its matrices, as float32."""
    layers = list(base.layers)
    for index, parts in enumerate(adapter.layers):
        for module, part in parts.items():
            name = module.removesuffix("_proj")
            added = np.float32(part.scale) * (to_float32(part.b) @ to_float32(part.a))
            layers[index] = replace(layers[index], **{name: to_float32(getattr(layers[index], name)) + added})
    return replace(base, layers=tuple(layers))
