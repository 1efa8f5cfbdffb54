"""Launches of what no setting of the server reaches yet, and of shapes that no model of the catalogue has: by the
operations' own launchers, on tensors with shapes and places alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from triolet.kernels.activation.gpu import activate
from triolet.kernels.embedding.gpu import gather_rows
from triolet.kernels.experts.gpu_route import route
from triolet.kernels.experts.routing import Routing
from triolet.kernels.gpu.table import E4M3_CAPABILITY, PAGE_TOKENS
from triolet.kernels.logit_cap.gpu import cap_logits
from triolet.kernels.low_rank.gpu import low_rank, low_rank_floats
from triolet.kernels.paged_attention.gpu_launch import paged_attention, plan_words, workspace_floats
from triolet.kernels.paged_attention.gpu_table import choose_launch
from triolet.kernels.quantise.gpu import GROUP
from triolet.kernels.rms_norm.gpu import norm_rows
from triolet.kernels.rope.gpu import HeadWeights, LayerCache, rope_cache
from triolet.kernels.sampling.gpu_buffers import make_rows, make_sampled, make_workspace
from triolet.kernels.sampling.gpu_launch import sample
from triolet.loadtest.device.compile_products import BF16, FLOAT, FP8, INT, INT8, launch_products, scales_of, shaped

CACHES = (BF16, FP8, INT8)
KV_HEADS = 8


@dataclass(frozen=True, slots=True)
class Attention:
    """A model's head and group, and what its layers ask for."""

    head_dim: int
    cache: torch.dtype = BF16
    group: int = 4
    windowed: bool = False
    soft_capped: bool = False
    strict: bool = False
    sinks: bool = False


GROUPS = {64: 4, 80: 1, 96: 1, 128: 4, 256: 2}  # the usual one of each head size
ATTENTION = (
    *(Attention(head_dim, cache, group) for head_dim, group in GROUPS.items() for cache in CACHES),
    Attention(128, group=1), Attention(128, group=8), Attention(128, FP8, 8),
    Attention(64, group=7), Attention(64, FP8, 7),  # no power of two: rows of a tile are left over
    Attention(128, windowed=True), Attention(128, FP8, windowed=True), Attention(96, BF16, 1, windowed=True),
    Attention(256, BF16, 2, windowed=True, soft_capped=True),
    Attention(256, FP8, 2, windowed=True, soft_capped=True),
    Attention(128, FP8, strict=True),
    Attention(64, BF16, 8, windowed=True, sinks=True),  # gpt-oss
)  # fmt: skip
# Sizes of a row of the norm: of 14B, 70B and 405B models, and one that does not fit into registers.
NORMS = (
    (5120, BF16, 1), (8192, BF16, 1), (16_384, BF16, 1),
    (16_384, FP8, 16_384 // GROUP), (20_480, BF16, 1), (20_480, INT8, 1),
)  # fmt: skip
GATES = ((28_672, INT8, 1),)
# Adapters: columns, channels of the merged matrices, rank.
ADAPTED = ((4096, (4096, 1024, 1024), 64), (14_336, (4096,), 64))
VOCABULARY = 128_256
GROUPS_OF_EXPERTS = Routing(chosen=6, scale=16.0, groups=8, chosen_groups=3)  # DeepSeek-V2's, of 160 experts


def launch_unreached(capability: int, multiprocessors: int) -> None:
    """All of them, as a device of this capability would be given them."""
    for model in ATTENTION:
        attend(model, capability, multiprocessors)
    _turn(8, 4, 256, capability, norm=True)  # Gemma
    _turn(14, 2, 64, capability, bias=True)  # Qwen2.5-0.5B
    _turn(32, 32, 96, capability)  # Phi-3-mini: a padded half
    _turn(64, 8, 128, capability, norm=True, each=True)  # Cohere
    for size in (4096, 18_432):  # StableLM, Nemotron-4-340B: LayerNorm, with every bias, in registers
        x, line = shaped(64, size), shaped(size)
        norm_rows(
            x, line, 1e-5, shaped(64, size), capability=capability, residual=x, bias=line, x_bias=line, centred=True
        )
    norm_rows(shaped(64, 4096), None, 1e-5, shaped(64, 4096), capability=capability, residual=shaped(64, 4096))
    for activation in ("gelu", "gelu_tanh", "relu2"):
        for bias in (None, shaped(28_672)):
            activate(
                shaped(64, 28_672), shaped(64, 14_336), activation=activation, gated=True, bias=bias,
                capability=capability,
            )  # fmt: skip
    gather_rows(shaped(64, dtype=INT), shaped(VOCABULARY, 2304), shaped(64, 2304), capability=capability, factor=48.0)
    cap_logits(shaped(64, VOCABULARY, dtype=FLOAT), 1.0, 30.0)
    route(
        GROUPS_OF_EXPERTS, shaped(64, 160, dtype=FLOAT), shaped(9, dtype=INT), shaped(64, 6, dtype=INT),
        shaped(64, 7, dtype=FLOAT),
    )  # fmt: skip
    for size, kind, groups in NORMS:
        if kind != FP8 or capability >= E4M3_CAPABILITY:
            x = shaped(64, size)
            norm_rows(
                x, shaped(size), 1e-5, shaped(64, size, dtype=kind),
                capability=capability, residual=shaped(64, size), scales=scales_of(64, kind, groups),
            )  # fmt: skip
    for size, kind, groups in GATES:
        if kind != FP8 or capability >= E4M3_CAPABILITY:
            activate(
                shaped(64, 2 * size),
                shaped(64, size, dtype=kind),
                activation="silu",
                gated=True,
                capability=capability,
                scales=scales_of(64, kind, groups),
            )
    for columns, parts, rank in ADAPTED:
        low_rank(
            shaped(64, columns), shaped(64, dtype=INT), shaped(8, len(parts) * rank, columns),
            shaped(8, sum(parts), rank), shaped(64, sum(parts)),
            shaped(low_rank_floats(64, columns, len(parts), rank), dtype=FLOAT), parts=parts,
        )  # fmt: skip
    rows, space = (
        make_rows(8, VOCABULARY, edits=8, slots=1, masks=1, device="meta"),
        make_workspace(8, VOCABULARY, capability, "meta"),
    )
    for filters in (False, True):
        logits = shaped(8, VOCABULARY)
        sample(logits, rows, space, make_sampled(8, "meta"), capability=capability, filters=filters)
    launch_products(capability)


def attend(model: Attention, capability: int, multiprocessors: int) -> None:
    sequences, tokens, pages, heads = 256, 8192, 64, model.group * KV_HEADS
    launch = choose_launch(
        capability, model.head_dim, model.cache.itemsize, sequences, tokens,
        multiprocessors=multiprocessors, strict=model.strict,
    )  # fmt: skip
    keys = shaped(pages, KV_HEADS, PAGE_TOKENS, model.head_dim, dtype=model.cache)
    scales = shaped(pages, KV_HEADS, PAGE_TOKENS, dtype=FLOAT) if model.cache.itemsize == 1 else None
    paged_attention(
        shaped(tokens, (heads + 2 * KV_HEADS) * model.head_dim), keys, keys, shaped(sequences + 1, dtype=INT),
        shaped(sequences, dtype=INT), shaped(sequences, 2048, dtype=INT), shaped(tokens, heads, model.head_dim),
        heads=heads, kv_heads=KV_HEADS, scale=0.1, plan=shaped(plan_words(sequences, KV_HEADS, launch), dtype=INT),
        workspace=shaped(workspace_floats(sequences, heads, KV_HEADS, model.head_dim, launch), dtype=FLOAT),
        launch=launch, longest_chunk=tokens, window=4096 * model.windowed, soft_cap=50.0 * model.soft_capped,
        key_scales=scales, value_scales=scales, sinks=shaped(heads, dtype=FLOAT) if model.sinks else None,
    )  # fmt: skip


def _turn(
    heads: int, kv_heads: int, head_dim: int, capability: int, *,
    norm: bool = False, bias: bool = False, each: bool = False,
) -> None:  # fmt: skip
    """`each`: LayerNorm with a gain for each head, and queries that grow."""
    keys, width = shaped(4, kv_heads, PAGE_TOKENS, head_dim), (heads + 2 * kv_heads) * head_dim
    q_norm, k_norm = (shaped(*((n,) if each else ()), head_dim) if norm else None for n in (heads, kv_heads))
    weights = HeadWeights(bias=shaped(width) if bias else None, q_norm=q_norm, k_norm=k_norm, centred=each)
    for tokens in (64, 8192):
        places = shaped(tokens, dtype=INT)
        rope_cache(
            shaped(tokens, width), weights,
            shaped(4096, head_dim, dtype=FLOAT), places, places, LayerCache(keys, keys), capability=capability,
            growth=shaped(4096, dtype=FLOAT) if each else None,
        )  # fmt: skip
