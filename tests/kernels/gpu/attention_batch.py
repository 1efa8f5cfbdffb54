"""Ragged batches for the attention kernels, in a cache where every byte nobody may use is NaN."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from triolet.kernels.gpu.table import PAGE_TOKENS
from triolet.kernels.paged_attention.gpu_launch import (
    paged_attention,
    plan_attention,
    plan_words,
    workspace_floats,
)
from triolet.kernels.paged_attention.gpu_reference import gathered, paged_attention_reference
from triolet.kernels.paged_attention.gpu_table import AttentionLaunch, DecodeLaunch, PrefillLaunch, head_tiles

BF16, FP8, INT8 = torch.bfloat16, torch.float8_e4m3fn, torch.int8
SPARE_PAGES = 3
LARGEST = {FP8: 448.0, INT8: 127.0}


def small_launch(
    programs: int, *, share: int = 1, descriptors: bool = False, strict: bool = False, e4m3_bits: bool = False,
    rows: int = 16,
) -> AttentionLaunch:  # fmt: skip
    """A launch whose tiles and shares are small enough for a small batch to have several."""
    return AttentionLaunch(
        DecodeLaunch(1, share, 4, 3, descriptors, programs), PrefillLaunch(rows, 4, 2, descriptors), strict, e4m3_bits
    )


@dataclass(frozen=True)
class Sequence:
    """What one chunk of a batch is about: its queries, and keys and values [kv_heads, length, size] as float32."""

    q: Tensor
    keys: Tensor
    values: Tensor


def drawn_sequence(seed: int, tokens: int, length: int, heads: int, kv_heads: int, size: int) -> Sequence:
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(tokens, heads, size, generator=generator) * 1.5
    keys, values = torch.randn(2, kv_heads, length, size, generator=generator)
    return Sequence(q, keys, values)


class Batch:
    """Sequences in scattered pages; then a padding chunk, and a token that belongs to no chunk.

    rope_dim: of latent attention, whose keys are their values too, but for their last rope_dim numbers.
    """

    def __init__(
        self, sequences: list[Sequence], *, dtype: torch.dtype = BF16, cache: torch.dtype | None = None, seed: int = 1,
        rope_dim: int = 0,
    ) -> None:  # fmt: skip
        self.dtype, self.sequences, self.rope_dim = dtype, sequences, rope_dim
        cache = cache or dtype
        _, self.heads, size = sequences[0].q.shape
        self.kv_heads = sequences[0].keys.shape[0]
        held = [sequence.keys.shape[1] for sequence in sequences]
        counts = [math.ceil(length / PAGE_TOKENS) for length in held]
        pages = sum(counts) + SPARE_PAGES
        order = torch.randperm(pages, generator=torch.Generator().manual_seed(seed)).int()
        self.tables = order[-1:].repeat(len(sequences) + 1, max(counts) + 1)  # a page of nobody's
        shape = pages, self.kv_heads, PAGE_TOKENS, size
        self.keys = torch.full(shape, math.nan).to(cache)
        limits: Any = torch.iinfo(cache) if cache == INT8 else torch.finfo(cache)  # Any: of integers or floats
        self.values = torch.full(shape, limits.max).to(cache)  # nothing writes another: rope/gpu.py
        self.groups = self.kv_heads
        if rope_dim:
            self.values, self.groups = self.keys, head_tiles(self.heads)
        scales: list[Tensor | None] = [None, None]
        if cache in LARGEST:
            scales = [torch.full(shape[:3], math.nan) for _ in range(2)]
        self.key_scales, self.value_scales = scales
        taken = 0
        for index, sequence in enumerate(sequences):
            mine = order[taken : taken + counts[index]]
            taken += counts[index]
            self.tables[index, : len(mine)] = mine
            for stored, target, scale in zip(
                (sequence.values, sequence.keys), (self.values, self.keys), scales[::-1], strict=True
            ):
                for place, part in enumerate(torch.split(stored, PAGE_TOKENS, 1)):
                    self._write(part, target[mine[place], :, : part.shape[1]], scale, int(mine[place]))
        q = torch.cat([sequence.q for sequence in sequences] + [torch.zeros(1, self.heads, size)])
        self.qkv = torch.full((len(q), (self.heads + 2 * self.kv_heads) * size), math.nan, dtype=dtype)
        self.qkv[:, : self.heads * size] = q.flatten(1).to(dtype)
        lengths = [*held, 0]
        tokens = [len(sequence.q) for sequence in sequences] + [0]
        self.lengths = torch.tensor(lengths, dtype=torch.int32)
        self.starts = torch.tensor([0, *tokens], dtype=torch.int32).cumsum(0).int()
        self.longest = max(tokens)

    @staticmethod
    def _write(part: Tensor, target: Tensor, scales: Tensor | None, page: int) -> None:
        if scales is None:
            target.copy_(part)
            return
        limit = LARGEST[target.dtype]
        scale = part.abs().amax(-1) / limit
        scales[page, :, : part.shape[1]] = scale
        stored = part / scale[..., None]
        target.copy_((stored.round() if target.dtype == INT8 else stored).to(target.dtype))

    @property
    def q(self) -> Tensor:
        size = self.keys.shape[-1]
        return self.qkv[:, : self.heads * size].view(len(self.qkv), self.heads, size)

    def attend(
        self, launch: AttentionLaunch, window: int = 0, soft_cap: float = 0.0, sinks: Tensor | None = None,
        layers: int = 1,
    ) -> Tensor:  # fmt: skip
        """What the last of so many layers with one plan gives."""
        rows, size = len(self.lengths), self.keys.shape[-1]
        plan = torch.full((plan_words(rows, self.groups, launch),), -1, dtype=torch.int32)
        floats = workspace_floats(rows, self.heads, self.groups, size - self.rope_dim, launch)
        workspace = torch.empty(floats)
        plan_attention(self.starts, self.lengths, plan, kv_heads=self.groups, launch=launch, window=window)
        out = torch.empty(len(self.qkv), self.heads, size - self.rope_dim, dtype=self.dtype)
        for _ in range(layers):
            workspace.fill_(math.nan)
            out.fill_(math.nan)
            paged_attention(
                self.qkv, self.keys, self.values, self.starts, self.lengths, self.tables, out,
                heads=self.heads, kv_heads=self.groups, scale=size**-0.5, plan=plan, workspace=workspace,
                launch=launch, longest_chunk=self.longest, window=window, soft_cap=soft_cap,
                key_scales=self.key_scales, value_scales=self.value_scales, sinks=sinks,
                rope_dim=self.rope_dim,
            )  # fmt: skip
        return out

    def exact(self, window: int = 0, soft_cap: float = 0.0, sinks: Tensor | None = None) -> Tensor:
        size = self.keys.shape[-1]
        out = paged_attention_reference(
            self.q, self.keys, self.values, self.starts, self.lengths, self.tables, scale=size**-0.5,
            window=window, soft_cap=soft_cap, key_scales=self.key_scales, value_scales=self.value_scales, sinks=sinks,
        )  # fmt: skip
        return out[..., : size - self.rope_dim]

    def plain(
        self, window: int = 0, soft_cap: float = 0.0, sinks: Tensor | None = None, *, backwards: bool = False
    ) -> Tensor:
        """What torch's plain expression gives in this precision: dequantised operands, softmax in float32.

        `backwards`: the products are summed from their other end, which rounds otherwise.
        """

        def turn(x: Tensor, axis: int) -> Tensor:
            return x.flip(axis) if backwards else x

        out = torch.full(self.q.shape, math.nan, dtype=self.dtype)
        for chunk in range(len(self.lengths)):
            length, begin, end = (int(x) for x in (self.lengths[chunk], *self.starts[chunk : chunk + 2]))
            pairs = (self.keys, self.key_scales), (self.values, self.value_scales)
            k, v = (gathered(*pair, self.tables[chunk], length).to(self.dtype) for pair in pairs)
            k, v = (x.repeat_interleave(self.heads // self.kv_heads, 0) for x in (k, v))
            q = self.q[begin:end].movedim(1, 0)
            scores = (turn(q, -1) @ turn(k, -1).mT).float() * self.keys.shape[-1] ** -0.5
            if soft_cap:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            behind = torch.arange(length - end + begin, length)[:, None] - torch.arange(length)
            hidden = (behind < 0) | ((behind >= window) if window else False)
            scores = scores.masked_fill(hidden, -math.inf)
            if sinks is not None:
                scores = torch.cat([scores, sinks[:, None, None].expand(-1, scores.shape[1], 1)], -1)
            weights = scores.softmax(-1)[..., :length].to(self.dtype)
            out[begin:end] = (turn(weights, -1) @ turn(v, -2)).movedim(0, 1)
        return out[..., : self.keys.shape[-1] - self.rope_dim]

    def passes(self, launch: AttentionLaunch, **form: Any) -> bool:  # Any: window, soft_cap, sinks
        """Whether the kernels err at most twice as much as the plain expression, and leave other rows alone.

        The plain one sums in two orders: in one it may be lucky, as on some CPUs in float32.
        """
        out, exact = self.attend(launch, **form).double(), self.exact(**form)
        real = int(self.starts[-1])
        plain = torch.stack([self.plain(**form, backwards=backwards)[:real] for backwards in (False, True)])
        allowed = 2 * (plain.double() - exact[:real]).abs().max()
        return bool(((out - exact)[:real].abs() <= allowed).all()) and bool(out[real:].isnan().all())


def drawn_batch(chunks: list[tuple[int, int]], heads: int = 4, kv_heads: int = 2, size: int = 64, **form: Any) -> Batch:
    """chunks: (tokens, length) each."""
    drawn = [
        drawn_sequence(seed, tokens, length, heads, kv_heads, size) for seed, (tokens, length) in enumerate(chunks)
    ]
    return Batch(drawn, **form)
