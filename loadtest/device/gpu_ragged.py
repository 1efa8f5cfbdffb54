"""A ragged attention batch in scattered pages, where whatever nobody may read is NaN, and its plain torch answer.

Tensors are made on the default device, so that the same batch serves the interpreter and the GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import cast

import torch

from triolet.kernels.gpu.table import PAGE_TOKENS
from triolet.kernels.paged_attention.gpu_launch import paged_attention, plan_attention, plan_words, workspace_floats
from triolet.kernels.paged_attention.gpu_reference import gathered, paged_attention_reference
from triolet.kernels.paged_attention.gpu_table import (
    AttentionLaunch,
    choose_latent_launch,
    choose_launch,
    head_tiles,
)
from triolet.loadtest.device.gpu_case import Figures, GpuMachine
from triolet.loadtest.device.gpu_check import drawn, no_worse, require

Tensor = torch.Tensor
CACHES = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "int8": torch.int8}
LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}


@dataclass(frozen=True, slots=True)
class Form:
    """What a model and its cache ask of attention."""

    heads: int = 32
    kv_heads: int = 8
    size: int = 128
    cache: str = "bf16"
    window: int = 0
    soft_cap: float = 0.0
    strict: bool = False
    sinks: bool = False
    rope_dim: int = 0  # of latent attention: the last of `size`, which are in keys alone

    @property
    def groups(self) -> int:
        return head_tiles(self.heads) if self.rope_dim else self.kv_heads


class Ragged:
    """chunks: (tokens, length) each; one padding chunk and one token of nobody's follow them."""

    def __init__(self, form: Form, chunks: list[tuple[int, int]]) -> None:
        self.form = form
        lengths = [length for _, length in chunks]
        pages = [-(-length // PAGE_TOKENS) for length in lengths]
        total = sum(pages) + 1  # the last is nobody's
        order = torch.randperm(total - 1).int()
        self.tables = torch.full((len(chunks) + 1, max(pages)), total - 1, dtype=torch.int32)
        taken = 0
        for row, count in enumerate(pages):
            self.tables[row, :count] = order[taken : taken + count]
            taken += count
        shape = (total, form.kv_heads, PAGE_TOKENS, form.size)
        unused = torch.zeros(total, PAGE_TOKENS, dtype=torch.bool)
        unused[-1] = True
        for row, length in enumerate(lengths):
            if length % PAGE_TOKENS:
                unused[self.tables[row, pages[row] - 1].long(), length % PAGE_TOKENS :] = True
        (self.keys, self.key_scales), (self.values, self.value_scales) = (
            _stored(drawn(seed, *shape), unused, CACHES[form.cache], filler)
            for seed, filler in ((1, math.nan), (2, math.inf))
        )
        if form.rope_dim:
            self.values = self.keys
        tokens = [count for count, _ in chunks]
        self.real, self.longest = sum(tokens), max(tokens)
        width = (form.heads + 2 * form.kv_heads) * form.size
        self.qkv = torch.full((self.real + 1, width), math.nan, dtype=torch.bfloat16)
        self.qkv[:, : form.heads * form.size] = 1.5 * drawn(3, self.real + 1, form.heads * form.size)
        self.sinks = drawn(4, form.heads) + 2 if form.sinks else None
        self.lengths = torch.tensor([*lengths, 0], dtype=torch.int32)
        self.starts = torch.tensor([0, *tokens, 0]).cumsum(0).int()
        shape_of_out = self.real + 1, form.heads, form.size - form.rope_dim
        self.out = torch.full(shape_of_out, math.nan, dtype=torch.bfloat16)
        self.read_bytes = (1 if form.rope_dim else 2) * sum(lengths) * form.kv_heads * (
            form.size * self.keys.element_size() + (4 if self.key_scales is not None else 0)
        )  # fmt: skip

    def launch(self, machine: GpuMachine) -> AttentionLaunch:
        """The table's; interpreted, one of few programs and small tiles."""
        form, counts = self.form, (len(self.lengths), self.real)
        if form.rope_dim:
            found = choose_latent_launch(
                machine.capability, form.size - form.rope_dim, form.rope_dim, *counts,
                multiprocessors=machine.multiprocessors, strict=form.strict,
            )  # fmt: skip
        else:
            found = choose_launch(
                machine.capability, form.size, self.keys.element_size(), *counts,
                multiprocessors=machine.multiprocessors, strict=form.strict,
            )  # fmt: skip
        if not machine.dry:
            return found
        few = replace(found.decode, programs=3 * form.groups, least_share=1)
        return replace(found, decode=few, prefill=replace(found.prefill, rows=16))

    def prepare(self, launch: AttentionLaunch) -> tuple[Tensor, Tensor]:
        """Plan and workspace for a launch, the plan made."""
        form, rows = self.form, len(self.lengths)
        plan = torch.full((plan_words(rows, form.groups, launch),), -1, dtype=torch.int32)
        floats = workspace_floats(rows, form.heads, form.groups, form.size - form.rope_dim, launch)
        workspace = torch.full((floats,), math.nan)
        plan_attention(self.starts, self.lengths, plan, kv_heads=form.groups, launch=launch, window=form.window)
        return plan, workspace

    def attend(self, launch: AttentionLaunch, plan: Tensor, workspace: Tensor) -> Tensor:
        form = self.form
        paged_attention(
            self.qkv, self.keys, self.values, self.starts, self.lengths, self.tables, self.out,
            heads=form.heads, kv_heads=form.groups, scale=form.size**-0.5, plan=plan, workspace=workspace,
            launch=launch, longest_chunk=self.longest, window=form.window, soft_cap=form.soft_cap,
            key_scales=self.key_scales, value_scales=self.value_scales, sinks=self.sinks,
            rope_dim=form.rope_dim,
        )  # fmt: skip
        return self.out

    def check(self, machine: GpuMachine) -> Figures:
        form, launch = self.form, self.launch(machine)
        out = self.attend(launch, *self.prepare(launch))
        q = self.qkv[: self.real, : form.heads * form.size].reshape(self.real, form.heads, form.size)
        exact = paged_attention_reference(
            q, self.keys, self.values, self.starts, self.lengths, self.tables, scale=form.size**-0.5,
            window=form.window, soft_cap=form.soft_cap, key_scales=self.key_scales, value_scales=self.value_scales,
            sinks=self.sinks,
        )  # fmt: skip
        require(bool(out[self.real :].isnan().all()), "a row of nobody's was written")
        vector = slice(form.size - form.rope_dim)
        return no_worse(out[: self.real], self._plain(q)[..., vector], exact[..., vector])

    def _plain(self, q: Tensor) -> Tensor:
        """bfloat16 products, softmax in float32: what torch's plain expression makes of the dequantised cache."""
        form, parts = self.form, list[Tensor]()
        starts, lengths = (cast("list[int]", each.tolist()) for each in (self.starts, self.lengths))
        for chunk, length in enumerate(lengths):
            mine = q[starts[chunk] : starts[chunk + 1]]
            if not len(mine):
                continue
            k, v = (
                gathered(cache, scales, self.tables[chunk], length).bfloat16()
                .repeat_interleave(form.heads // form.kv_heads, 0)
                for cache, scales in ((self.keys, self.key_scales), (self.values, self.value_scales))
            )  # fmt: skip
            scores = (mine.movedim(1, 0) @ k.mT).float() * form.size**-0.5
            if form.soft_cap:
                scores = form.soft_cap * torch.tanh(scores / form.soft_cap)
            place = torch.arange(length)
            behind = place[length - len(mine) :, None] - place
            hidden = (behind < 0) | ((behind >= form.window) if form.window else False)
            scores = scores.masked_fill(hidden, -math.inf)
            if self.sinks is not None:
                scores = torch.cat([scores, self.sinks[:, None, None].expand(-1, len(mine), 1)], -1)
            weights = scores.softmax(-1)[..., :length].bfloat16()
            parts.append((weights @ v).movedim(0, 1))
        return torch.cat(parts)


def _stored(values: Tensor, unused: Tensor, dtype: torch.dtype, filler: float) -> tuple[Tensor, Tensor | None]:
    """A cache and its scales. Where `unused` [pages, 64], scales are NaN, and numbers the filler: NaN for keys, or the
    largest finite one, as values that nobody wrote are always finite. (Of int8 any is.)"""
    blank = unused[:, None, :]
    scales = None
    if dtype in LARGEST:
        scales = values.abs().amax(-1) / LARGEST[dtype]
        values = values / scales[..., None]
        scales = scales.masked_fill(blank, math.nan)
    if dtype == torch.int8:
        return values.round().to(dtype), scales
    return values.masked_fill(blank[..., None], min(filler, torch.finfo(dtype).max)).to(dtype), scales
