"""Launches of what no setting of the server reaches yet, and of shapes that no model of the catalogue has: by the
operations' own launchers, on tensors with shapes and places alone.

Of a product these vary: how weights are scaled, whether K is split or the result written directly, whether K is a
multiple of the tile, bias and residual. Each value of each is launched with every row of the tables or with the one
for decoding; not every combination, which would be several hundred forms.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from triolet.kernels.activation.gpu import activate
from triolet.kernels.embedding.gpu import gather_rows
from triolet.kernels.gemm.gpu_launch import gemm
from triolet.kernels.gemm.gpu_table import STRICT, TABLES, Few, Launch, Library, LinearFormat
from triolet.kernels.gemm.gpu_weights import (
    PackedLinear,
    pack_bf16,
    pack_fp8,
    pack_w4,
    pack_w8,
    pack_w8a8,
    quantise_fp8,
    quantise_w4,
)
from triolet.kernels.gpu.table import E4M3_CAPABILITY, PAGE_TOKENS, Table
from triolet.kernels.logit_cap.gpu import cap_logits
from triolet.kernels.low_rank.gpu import low_rank, low_rank_floats
from triolet.kernels.paged_attention.gpu_launch import paged_attention, plan_words, workspace_floats
from triolet.kernels.paged_attention.gpu_table import choose_launch
from triolet.kernels.quantise.gpu import GROUP
from triolet.kernels.rms_norm.gpu import norm_rows
from triolet.kernels.rope.gpu import HeadWeights, LayerCache, rope_cache
from triolet.kernels.sampling.gpu_buffers import make_rows, make_sampled, make_workspace
from triolet.kernels.sampling.gpu_launch import sample

Tensor = torch.Tensor
BF16, INT8, FP8, FLOAT, INT = torch.bfloat16, torch.int8, torch.float8_e4m3fn, torch.float32, torch.int32
CACHES = (BF16, FP8, INT8)
KV_HEADS = 8
EVEN, UNEVEN = 4096, 4128  # inputs of a product: a multiple of every tile, and of 32 alone
ONE_TILE, SOME_TILES, MANY_TILES = 128, 100 * 128, 65_536  # outputs: K is split in many parts, in two, in one


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
    (4096, INT8, 1), (4096, FP8, 4096 // GROUP), (5120, BF16, 1), (8192, BF16, 1), (16_384, BF16, 1),
    (16_384, FP8, 16_384 // GROUP), (20_480, BF16, 1), (20_480, INT8, 1),
)  # fmt: skip
GATES = ((3072, INT8, 1), (14_336, INT8, 1), (28_672, INT8, 1), (14_336, FP8, 14_336 // GROUP))
# Adapters: columns, channels of the merged matrices, rank.
ADAPTED = ((4096, (4096, 1024, 1024), 64), (14_336, (4096,), 64))
VOCABULARY = 128_256


def launch_unreached(capability: int, multiprocessors: int) -> None:
    """All of them, as a device of this capability would be given them."""
    for model in ATTENTION:
        attend(model, capability, multiprocessors)
    _turn(8, 4, 256, capability, norm=True)  # Gemma
    _turn(14, 2, 64, capability, bias=True)  # Qwen2.5-0.5B
    _turn(32, 32, 96, capability)  # Phi-3-mini: a padded half
    _turn(64, 8, 128, capability, norm=True, each=True)  # Cohere
    for size in (4096, 18_432):  # StableLM, Nemotron-4-340B: LayerNorm, with every bias, in registers
        x, line = _tensor(64, size), _tensor(size)
        norm_rows(
            x, line, 1e-5, _tensor(64, size), capability=capability, residual=x, bias=line, x_bias=line, centred=True
        )
    norm_rows(_tensor(64, 4096), None, 1e-5, _tensor(64, 4096), capability=capability, residual=_tensor(64, 4096))
    for activation in ("gelu", "gelu_tanh", "relu2"):
        for bias in (None, _tensor(28_672)):
            activate(
                _tensor(64, 28_672), _tensor(64, 14_336), activation=activation, gated=True, bias=bias,
                capability=capability,
            )  # fmt: skip
    gather_rows(
        _tensor(64, dtype=INT), _tensor(VOCABULARY, 2304), _tensor(64, 2304), capability=capability, factor=48.0
    )
    cap_logits(_tensor(64, VOCABULARY, dtype=FLOAT), 1.0, 30.0)
    for size, kind, groups in NORMS:
        if kind != FP8 or capability >= E4M3_CAPABILITY:
            x = _tensor(64, size)
            norm_rows(
                x, _tensor(size), 1e-5, _tensor(64, size, dtype=kind),
                capability=capability, residual=_tensor(64, size), scales=_scales(64, kind, groups),
            )  # fmt: skip
    for size, kind, groups in GATES:
        if kind != FP8 or capability >= E4M3_CAPABILITY:
            activate(
                _tensor(64, 2 * size),
                _tensor(64, size, dtype=kind),
                activation="silu",
                gated=True,
                capability=capability,
                scales=_scales(64, kind, groups),
            )
    for columns, parts, rank in ADAPTED:
        low_rank(
            _tensor(64, columns), _tensor(64, dtype=INT), _tensor(8, len(parts) * rank, columns),
            _tensor(8, sum(parts), rank), _tensor(64, sum(parts)),
            _tensor(low_rank_floats(64, columns, len(parts), rank), dtype=FLOAT), parts=parts,
        )  # fmt: skip
    rows, space = (
        make_rows(8, VOCABULARY, edits=8, slots=1, masks=1, device="meta"),
        make_workspace(8, VOCABULARY, capability, "meta"),
    )
    for filters in (False, True):
        logits = _tensor(8, VOCABULARY)
        sample(logits, rows, space, make_sampled(8, "meta"), capability=capability, filters=filters)
    for weights in TABLES:
        if weights != "fp8" or capability >= E4M3_CAPABILITY:
            _multiply(weights, capability)


def _tensor(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def _scales(rows: int, kind: torch.dtype, groups: int) -> Tensor | None:
    if kind == BF16:
        return None
    return _tensor(rows, dtype=FLOAT) if groups == 1 else _tensor(rows, groups, dtype=FLOAT)


def attend(model: Attention, capability: int, multiprocessors: int) -> None:
    sequences, tokens, pages, heads = 256, 8192, 64, model.group * KV_HEADS
    launch = choose_launch(
        capability, model.head_dim, model.cache.itemsize, sequences, tokens,
        multiprocessors=multiprocessors, strict=model.strict,
    )  # fmt: skip
    keys = _tensor(pages, KV_HEADS, PAGE_TOKENS, model.head_dim, dtype=model.cache)
    scales = _tensor(pages, KV_HEADS, PAGE_TOKENS, dtype=FLOAT) if model.cache.itemsize == 1 else None
    paged_attention(
        _tensor(tokens, (heads + 2 * KV_HEADS) * model.head_dim), keys, keys, _tensor(sequences + 1, dtype=INT),
        _tensor(sequences, dtype=INT), _tensor(sequences, 2048, dtype=INT), _tensor(tokens, heads, model.head_dim),
        heads=heads, kv_heads=KV_HEADS, scale=0.1, plan=_tensor(plan_words(sequences, KV_HEADS, launch), dtype=INT),
        workspace=_tensor(workspace_floats(sequences, heads, KV_HEADS, model.head_dim, launch), dtype=FLOAT),
        launch=launch, longest_chunk=tokens, window=4096 * model.windowed, soft_cap=50.0 * model.soft_capped,
        key_scales=scales, value_scales=scales, sinks=_tensor(heads, dtype=FLOAT) if model.sinks else None,
    )  # fmt: skip


def _turn(
    heads: int, kv_heads: int, head_dim: int, capability: int, *,
    norm: bool = False, bias: bool = False, each: bool = False,
) -> None:  # fmt: skip
    """`each`: LayerNorm with a gain for each head, and queries that grow."""
    keys, width = _tensor(4, kv_heads, PAGE_TOKENS, head_dim), (heads + 2 * kv_heads) * head_dim
    q_norm, k_norm = (_tensor(*((n,) if each else ()), head_dim) if norm else None for n in (heads, kv_heads))
    weights = HeadWeights(bias=_tensor(width) if bias else None, q_norm=q_norm, k_norm=k_norm, centred=each)
    for tokens in (64, 8192):
        places = _tensor(tokens, dtype=INT)
        rope_cache(
            _tensor(tokens, width), weights,
            _tensor(4096, head_dim, dtype=FLOAT), places, places, LayerCache(keys, keys), capability=capability,
            growth=_tensor(4096, dtype=FLOAT) if each else None,
        )  # fmt: skip


def _rows_of(table: Table[Launch], capability: int) -> dict[int, Launch]:
    """A number of rows for every launch of a device."""
    known = max(measured for measured in table if measured <= capability)
    below, found = 0, dict[int, Launch]()
    for row in table[known]:
        found[row.up_to or 2 * below + 1024] = row.launch
        below = row.up_to or below
    return found


def _multiply(kind: LinearFormat, capability: int) -> None:
    for strict, table in ((False, TABLES[kind]), (True, STRICT[kind])):
        for rows, launch in _rows_of(table, capability).items():
            few, decoding = isinstance(launch, Few), isinstance(launch, Few) and launch.block_m == 16

            def product(
                n: int, k: int, *, group: int = 0, zeros: bool = True, added: tuple[str, ...] = (),
                out: torch.dtype = BF16, rows: int = rows, strict: bool = strict,
            ) -> None:  # fmt: skip
                """A launch with operands of this kind; what is `added` is "bias", "residual" or both."""
                weight, x = (
                    _packed(kind, n, k, group, zeros=zeros),
                    _tensor(rows, k, dtype=_ACTIVATIONS.get(kind, BF16)),
                )
                scales = _scales(rows, x.dtype, k // GROUP if group else 1)
                more = {"bias": _tensor(n), "residual": _tensor(rows, n)}
                gemm(
                    x, weight, scales, capability=capability, out=_tensor(rows, n, dtype=out), strict=strict,
                    **{name: more[name] for name in added},
                )  # fmt: skip

            if isinstance(launch, Library) and kind == "bf16":
                continue  # the vendor's
            if kind == "w4a16":
                product(ONE_TILE, EVEN, group=128)
                product(MANY_TILES, UNEVEN, group=32)
                for n, group, zeros in ((MANY_TILES, 128, True), (ONE_TILE, 32, True), (ONE_TILE, 128, False),
                                        (ONE_TILE, 64, False)) if decoding else ():  # fmt: skip
                    product(n, EVEN, group=group, zeros=zeros)
                if decoding:
                    product(MANY_TILES, EVEN, group=128, zeros=False, added=("bias", "residual"))
                    product(ONE_TILE, EVEN, group=128, added=("residual",))  # of parts: added where they are
                    product(SOME_TILES, EVEN, group=128, out=FLOAT)
                if not few:
                    product(ONE_TILE, EVEN, group=128, zeros=False)
            elif kind == "bf16":
                product(ONE_TILE, EVEN, added=("residual",))
                product(ONE_TILE, EVEN, out=FLOAT)
                product(ONE_TILE, UNEVEN, out=FLOAT)
            elif kind == "w8a16" or few:
                product(ONE_TILE, EVEN)
                product(MANY_TILES, UNEVEN)
                if kind == "w8a8" and decoding:
                    product(ONE_TILE, EVEN, added=("bias", "residual"))
                if kind == "fp8" and capability >= 90:
                    product(ONE_TILE, EVEN, group=128)
            else:
                product(ONE_TILE, EVEN, added=("residual",))
                if kind == "fp8" and capability >= 90:
                    product(ONE_TILE, EVEN, group=128, added=("residual",))


_ACTIVATIONS = {"w8a8": INT8, "fp8": FP8}


def _packed(kind: LinearFormat, n: int, k: int, group: int, *, zeros: bool) -> PackedLinear:
    weight = _tensor(n, k)
    match kind:
        case "w4a16":
            return pack_w4(*quantise_w4(weight, group, symmetric=not zeros), group)
        case "w8a16":
            return pack_w8(weight)
        case "w8a8":
            return pack_w8a8(weight)
        case "fp8":
            return pack_fp8(*quantise_fp8(weight, *((128, 128) if group else (1, 0))))
        case "bf16":
            return pack_bf16(weight)
