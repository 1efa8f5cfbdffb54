"""The generic decoder on a GPU: a list of launches on buffers that never move, for a padded shape.

The residual stream has its own buffer and every norm before a block adds into it. So a layer is ten launches where
every chunk is one token: a norm, a product, the rotation, two of attention, a product; a norm, a product, the
activation, a product. Longer chunks have a third of attention. There are more where quantised weights split a sum, and
where a model has norms behind its blocks or over rows of q and k. Padding tokens are computed like others, but write
nothing to the cache, and their results are ignored. A pass has two halves, the layers and the head, connected only by
the residual stream. In a pass with LoRA adapters, two more launches follow each of a layer's four products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch

from ...kernels.embedding.gpu import gather_rows
from ...kernels.logit_cap.gpu import cap_logits
from ...kernels.paged_attention.gpu_launch import paged_attention, plan_attention
from ...kernels.paged_attention.gpu_table import AttentionLaunch
from ...kernels.quantise.gpu import quantise_rows
from ...kernels.rope.gpu import LayerCache, rope_cache
from ..checkpoint.spec import ModelSpec
from .adapters import Adapted, DeviceAdapters
from .arena import Arena
from .buckets import PassShape
from .device import Device
from .expert_weights import DeviceExperts
from .experts import Mixture
from .linear import Activations, Linear
from .mlp import Mlp
from .residual import Added, Residual
from .rotation import Rotation, layer_rotations
from .weights import DeviceLayer, DeviceWeights, Norm
from .working_memory import attention_launch, windows


class LayerPlace(NamedTuple):
    """What attention needs of a layer besides its weights."""

    cache: LayerCache
    rotation: Rotation
    window: int  # 0: none
    plan: torch.Tensor


class Decoder:
    """Enqueues forward passes. `packet` is what a step brings, on the device."""

    def __init__(
        self,
        device: Device,
        spec: ModelSpec,
        weights: DeviceWeights,
        caches: Sequence[LayerCache],
        kv_cache_dtype: str,
        buffers: Arena,
        packet: Arena,
        adapters: DeviceAdapters | None,
    ) -> None:
        self._device, self._spec, self._weights = device, spec, weights
        self._kv_cache_dtype, self._buffers = kv_cache_dtype, buffers
        self._packet, self._adapters = packet, adapters
        self._plans = {window: buffers[f"plan.{index}"] for index, window in enumerate(windows(spec))}
        self._places = tuple(
            LayerPlace(cache, rotation, kind.window or 0, self._plans[kind.window or 0])
            for cache, rotation, kind in zip(caches, layer_rotations(spec, buffers), spec.layers, strict=True)
        )
        self._residual, self._normed = Residual(device, spec, buffers), Activations.of(buffers, "normed")
        self._feed_forwards = tuple(self._feed_forward(layer) for layer in weights.layers)
        self._finish: Callable[[torch.Tensor], None] | None = None
        if spec.logit_factor != 1.0 or spec.logit_cap is not None:
            self._finish = partial(cap_logits, factor=spec.logit_factor, cap=spec.logit_cap)
        self._mixed = Activations(buffers["mixed"])
        if self._normed.scales is not None:
            self._mixed = Activations.of(buffers, "mixed.quantised")

    def _feed_forward(self, layer: DeviceLayer) -> Mlp | Mixture:
        capability, spec, block = self._device.capability, self._spec, layer.feed_forward
        if isinstance(block, DeviceExperts):
            assert spec.experts is not None
            return Mixture(capability, spec.experts, layer, block, self._residual, self._buffers, self._packet)
        return Mlp(capability, spec, layer, block, self._residual, self._buffers, self._multiply)

    def layers(self, shape: PassShape) -> None:
        """From the ids of all tokens to the last layer's output: "hidden", to be added to "residual"."""
        spec, weights, buffers = self._spec, self._weights, self._buffers
        launch = attention_launch(spec, shape, self._device, self._kv_cache_dtype)
        starts, lengths = self._packet["starts"][: shape.chunks + 1], buffers["lengths"][: shape.chunks]
        for window, plan in self._plans.items():
            plan_attention(starts, lengths, plan, kv_heads=spec.num_kv_heads, launch=launch, window=window)
        gather_rows(
            buffers["ids"][: shape.tokens], weights.embedding, buffers["residual"][: shape.tokens],
            capability=self._device.capability, factor=spec.embedding_factor,
        )  # fmt: skip
        added: Added | None = None
        layers = zip(weights.layers, self._places, self._feed_forwards, strict=True)
        for index, (layer, place, feed_forward) in enumerate(layers):
            adapted: Mapping[str, Adapted] = {}
            if shape.adapted and self._adapters is not None:
                adapted = self._adapters.layers[index]
            self._residual.enter(layer.input_norm, added, shape)
            self._attention(layer, adapted, place, shape, launch)
            added = self._residual.leave(layer.attention_out_norm, layer.o_bias, shape)
            feed_forward.run(added, adapted, shape)
            added = self._residual.leave(layer.mlp_out_norm, layer.down_bias, shape)

    def _multiply(
        self, linear: Linear, adapted: Adapted | None, x: Activations, out: torch.Tensor, shape: PassShape
    ) -> None:
        """out = x W^T, and what each row's adapter adds."""
        x = x.first(shape.tokens)
        linear(x, out, self._buffers["workspace"], strict=shape.strict)
        if adapted is not None:
            adapted.add(x, self._packet["adapters"][: shape.tokens], out, self._buffers["shrunk"])

    def _attention(
        self,
        layer: DeviceLayer,
        adapted: Mapping[str, Adapted],
        place: LayerPlace,
        shape: PassShape,
        launch: AttentionLaunch,
    ) -> None:
        """From "normed" to "hidden"."""
        spec, buffers, tokens, chunks = self._spec, self._buffers, shape.tokens, shape.chunks
        qkv, mixed = buffers["qkv"][:tokens], buffers["mixed"][:tokens]
        cache, capability = place.cache, self._device.capability
        self._multiply(layer.qkv, adapted.get("qkv"), self._normed, qkv, shape)
        for row in layer.row_norms:
            part = qkv[:, row.columns]
            self._residual.norm(Norm(row.gain, None), part, Activations(part), row.x_bias, None)
        positions, slots = buffers["positions"][:tokens], buffers["slots"][:tokens]
        rope_cache(
            qkv, layer.heads, place.rotation.table, positions, slots, cache,
            capability=capability, strict=shape.strict, growth=place.rotation.growth,
        )  # fmt: skip
        paged_attention(
            qkv, cache.keys, cache.values, self._packet["starts"][: chunks + 1], buffers["lengths"][:chunks],
            buffers["block_tables"][:chunks], mixed.view(tokens, spec.num_heads, spec.head_dim),
            heads=spec.num_heads, kv_heads=spec.num_kv_heads, scale=spec.score_scale,
            plan=place.plan, workspace=buffers["partials"], launch=launch,
            longest_chunk=1 if shape.decode else tokens, window=place.window, soft_cap=spec.score_cap or 0.0,
            key_scales=cache.key_scales, value_scales=cache.value_scales, sinks=layer.sinks,
        )  # fmt: skip
        out = self._mixed.first(tokens)
        if out.scales is not None:
            quantise_rows(mixed, out.values, out.scales, capability=capability)
        self._multiply(layer.o, adapted.get("o"), self._mixed, buffers["hidden"][:tokens], shape)

    def head(self, rows: int, *, strict: bool) -> torch.Tensor:
        """Float32 logits [rows, vocab] of the tokens that the packet names: the last norm and the LM head."""
        buffers, weights = self._buffers, self._weights
        row_tokens = self._packet["row_tokens"][:rows]
        last_residual, last_hidden = buffers["last_residual"][:rows], buffers["last_hidden"][:rows]
        for source, out in (("residual", last_residual), ("hidden", last_hidden)):
            gather_rows(row_tokens, buffers[source], out, capability=self._device.capability)
        last = weights.layers[-1]
        x_bias = last.down_bias if last.mlp_out_norm is None else None
        normed = Activations(buffers["last_normed"][:rows])
        self._residual.norm(weights.final_norm, last_hidden, normed, x_bias, last_residual)
        logits = buffers["logits"][:rows]
        weights.head(normed, logits, buffers["workspace"], strict=strict)
        if self._finish is not None:
            self._finish(logits)
        return logits
