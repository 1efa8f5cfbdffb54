"""The generic decoder on a GPU: a list of launches on buffers that never move, for a padded shape.

The residual stream has its own buffer and every norm before a block adds into it. So a layer is nine launches where
every chunk is one token: a norm, a product, the rotation, attention, a product; a norm, a product, the activation, a
product. Longer chunks have a second of attention. There are more where a model has norms behind its blocks
or over rows of q and k, or latent attention. Padding tokens are computed like others, but write nothing to the cache,
and their results are ignored. A pass has two halves, the layers and the head, connected only by the residual stream. In
a pass with LoRA adapters, two more launches follow each of a layer's four products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from ...kernels.embedding.gpu import gather_rows
from ...kernels.logit_cap.gpu import cap_logits
from ...kernels.paged_attention.gpu_launch import plan_attention
from ...kernels.quantise.gpu import quantise_rows
from ...kernels.rope.gpu import LayerCache
from ..checkpoint.spec import ModelSpec
from .adapters import Adapted, DeviceAdapters
from .arena import Arena
from .attention import GroupedAttention, LayerPlace
from .buckets import PassShape
from .device import Device
from .expert_weights import DeviceExperts
from .experts import Mixture
from .latent import LatentAttention
from .linear import Activations, Linear
from .mlp import Mlp
from .residual import Added, Residual
from .rotation import layer_rotations
from .weights import DeviceLayer, DeviceWeights
from .working_memory import attention_launch, head_groups, windows


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
        places = (
            LayerPlace(cache, rotation, kind.window or 0, self._plans[kind.window or 0])
            for cache, rotation, kind in zip(caches, layer_rotations(spec, buffers), spec.layers, strict=True)
        )
        self._residual = Residual(device, spec, buffers)
        self._attentions = tuple(self._attention(*pair) for pair in zip(weights.layers, places, strict=True))
        self._feed_forwards = tuple(self._feed_forward(layer) for layer in weights.layers)
        self._finish: Callable[[torch.Tensor], None] | None = None
        if spec.logit_factor != 1.0 or spec.logit_cap is not None:
            self._finish = partial(cap_logits, factor=spec.logit_factor, cap=spec.logit_cap)
        self._mixed = Activations(buffers["mixed"])
        if buffers.get("mixed.quantised") is not None:
            self._mixed = Activations.of(buffers, "mixed.quantised")

    def _attention(self, layer: DeviceLayer, place: LayerPlace) -> GroupedAttention | LatentAttention:
        capability, spec, buffers, packet = self._device.capability, self._spec, self._buffers, self._packet
        if spec.latent is not None and (latent := layer.latent) is not None:
            return LatentAttention(
                capability, spec, spec.latent, layer, latent, place, buffers, packet, self._multiply
            )  # fmt: skip
        return GroupedAttention(capability, spec, layer, place, self._residual, buffers, packet, self._multiply)

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
            plan_attention(starts, lengths, plan, kv_heads=head_groups(spec), launch=launch, window=window)
        gather_rows(
            buffers["ids"][: shape.tokens], weights.embedding, buffers["residual"][: shape.tokens],
            capability=self._device.capability, factor=spec.embedding_factor,
        )  # fmt: skip
        added: Added | None = None
        layers = zip(weights.layers, self._attentions, self._feed_forwards, strict=True)
        for index, (layer, attention, feed_forward) in enumerate(layers):
            adapted: Mapping[str, Adapted] = {}
            if shape.adapted and self._adapters is not None:
                adapted = self._adapters.layers[index]
            self._residual.enter(layer.input_norm, added, shape)
            attention.run(adapted, shape, launch)
            self._project(layer, adapted, shape)
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

    def _project(self, layer: DeviceLayer, adapted: Mapping[str, Adapted], shape: PassShape) -> None:
        """From "mixed" to "hidden"."""
        buffers, out = self._buffers, self._mixed.first(shape.tokens)
        if out.scales is not None:
            mixed = buffers["mixed"][: shape.tokens]
            quantise_rows(mixed, out.values, out.scales, capability=self._device.capability)
        self._multiply(layer.o, adapted.get("o"), self._mixed, buffers["hidden"][: shape.tokens], shape)

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
