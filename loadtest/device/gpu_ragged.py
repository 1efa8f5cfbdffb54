"""Ragged attention batches in scattered pages, where whatever nobody may read is NaN, and their plain torch answer.

Tensors are made on the default device, so that the same batch serves the interpreter and the GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, cast

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
CACHES = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "int8": torch.int8, "fp32": torch.float32}
LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}


@dataclass(frozen=True, slots=True)
class Form:
    """What a model and its cache ask of attention."""

    heads: int = 32
    kv_heads: int = 8
    size: int = 128
    cache: str = "bf16"  # "fp32": activations too
    window: int = 0
    soft_cap: float = 0.0
    strict: bool = False
    sinks: bool = False
    rope_dim: int = 0  # of latent attention: the last of `size`, which are in keys alone

    @property
    def groups(self) -> int:
        return head_tiles(self.heads) if self.rope_dim else self.kv_heads

    @property
    def dtype(self) -> torch.dtype:
        """Of activations."""
        return torch.float32 if self.cache == "fp32" else torch.bfloat16


@dataclass(frozen=True, slots=True)
class RaggedPart:
    """One chunk: its queries [tokens, heads, size], and keys and values [kv_heads, length, size] as float32."""

    q: Tensor
    keys: Tensor
    values: Tensor

    @classmethod
    def drawn(cls, form: Form, seed: int, tokens: int, length: int) -> RaggedPart:
        keys, values = drawn(2 * seed, 2, form.kv_heads, length, form.size)
        return cls(1.5 * drawn(2 * seed + 1, tokens, form.heads, form.size), keys, values)


class Ragged:
    """Chunks; one of padding and one token of nobody's follow them."""

    def __init__(self, form: Form, parts: list[RaggedPart], seed: int = 1) -> None:
        self.form = form
        lengths, tokens = [part.keys.shape[1] for part in parts], [len(part.q) for part in parts]
        pages = [-(-length // PAGE_TOKENS) for length in lengths]
        total = sum(pages) + 1  # the last is nobody's
        order = torch.randperm(total - 1, generator=torch.Generator().manual_seed(seed), device="cpu").int()
        self.tables = torch.full((len(parts) + 1, max(pages) + 1), total - 1, dtype=torch.int32)
        shape, cache = (total, form.kv_heads, PAGE_TOKENS, form.size), CACHES[form.cache]
        self.keys = torch.full(shape, math.nan).to(cache)
        limits: Any = torch.iinfo(cache) if cache == torch.int8 else torch.finfo(cache)  # Any: of integers or floats
        # Values that nobody wrote are always finite: rope/gpu.py.
        self.values = self.keys if form.rope_dim else torch.full(shape, limits.max).to(cache)
        scales = [torch.full(shape[:3], math.nan) if cache in LARGEST else None for _ in range(2)]
        self.key_scales, self.value_scales = scales
        for row, (part, taken) in enumerate(zip(parts, torch.split(order, pages), strict=True)):
            self.tables[row, : pages[row]] = taken
            if not form.rope_dim:
                self._write(part.values, self.values, self.value_scales, self.tables[row])
            self._write(part.keys, self.keys, self.key_scales, self.tables[row])
        self.real, self.longest = sum(tokens), max(tokens)
        width = (form.heads + 2 * form.kv_heads) * form.size
        self.qkv = torch.full((self.real + 1, width), math.nan, dtype=form.dtype)
        self.qkv[: self.real, : form.heads * form.size] = torch.cat([part.q for part in parts]).flatten(1)
        self.sinks = drawn(4, form.heads) + 2 if form.sinks else None
        self.lengths = torch.tensor([*lengths, 0], dtype=torch.int32)
        self.starts = torch.tensor([0, *tokens, 0]).cumsum(0).int()
        self.out = torch.full((self.real + 1, form.heads, form.size - form.rope_dim), math.nan, dtype=form.dtype)
        self.read_bytes = (1 if form.rope_dim else 2) * sum(lengths) * form.kv_heads * (
            form.size * self.keys.element_size() + (4 if self.key_scales is not None else 0)
        )  # fmt: skip

    @classmethod
    def drawn(cls, form: Form, chunks: list[tuple[int, int]]) -> Ragged:
        """chunks: (tokens, length) each."""
        return cls(form, [RaggedPart.drawn(form, seed, *chunk) for seed, chunk in enumerate(chunks)])

    @staticmethod
    def _write(values: Tensor, target: Tensor, scales: Tensor | None, table: Tensor) -> None:
        place = torch.arange(values.shape[1])
        page, token = table[place // PAGE_TOKENS].long(), place % PAGE_TOKENS
        if scales is not None:
            scale = values.abs().amax(-1) / LARGEST[target.dtype]
            scales[page, :, token] = scale.movedim(1, 0)
            values = values / scale[..., None]
        stored = (values.round() if target.dtype == torch.int8 else values).to(target.dtype).movedim(1, 0)
        if target.dtype.itemsize == 1:  # torch places no float8
            target, stored = target.view(torch.uint8), stored.view(torch.uint8)
        target[page, :, token] = stored

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

    def result(self, launch: AttentionLaunch, layers: int = 1) -> Tensor:
        """What the last of so many layers with one plan gives; NaN where nobody writes."""
        plan, workspace = self.prepare(launch)
        for _ in range(layers):
            workspace.fill_(math.nan)
            self.out.fill_(math.nan)
            self.attend(launch, plan, workspace)
        return self.out.clone()

    def check(self, launch: AttentionLaunch) -> Figures:
        """Against torch's plain expression summed in two orders: in one it may be lucky, as on some CPUs in float32."""
        form, out = self.form, self.result(launch)
        q = self.qkv[: self.real, : form.heads * form.size].reshape(self.real, form.heads, form.size)
        exact = paged_attention_reference(
            q, self.keys, self.values, self.starts, self.lengths, self.tables, scale=form.size**-0.5,
            window=form.window, soft_cap=form.soft_cap, key_scales=self.key_scales, value_scales=self.value_scales,
            sinks=self.sinks,
        )  # fmt: skip
        require(bool(out[self.real :].isnan().all()), "a row of nobody's was written")
        plain = torch.stack([self._plain(q, backwards=backwards) for backwards in (False, True)])
        vector = slice(form.size - form.rope_dim)
        return no_worse(out[: self.real], plain[..., vector], exact[..., vector])

    def _plain(self, q: Tensor, *, backwards: bool) -> Tensor:
        """Products in the activations' precision, softmax in float32: torch's expression of the dequantised cache.

        `backwards`: the products are summed from their other end, which rounds otherwise.
        """

        def turn(x: Tensor, axis: int) -> Tensor:
            return x.flip(axis) if backwards else x

        form, parts = self.form, list[Tensor]()
        starts, lengths = (cast("list[int]", each.tolist()) for each in (self.starts, self.lengths))
        for chunk, length in enumerate(lengths):
            mine = q[starts[chunk] : starts[chunk + 1]].movedim(1, 0)
            pairs = (self.keys, self.key_scales), (self.values, self.value_scales)
            k, v = (gathered(*pair, self.tables[chunk], length).to(form.dtype) for pair in pairs)
            k, v = (x.repeat_interleave(form.heads // form.kv_heads, 0) for x in (k, v))
            scores = (turn(mine, -1) @ turn(k, -1).mT).float() * form.size**-0.5
            if form.soft_cap:
                scores = form.soft_cap * torch.tanh(scores / form.soft_cap)
            place = torch.arange(length)
            behind = place[length - mine.shape[1] :, None] - place
            hidden = (behind < 0) | ((behind >= form.window) if form.window else False)
            scores = scores.masked_fill(hidden, -math.inf)
            if self.sinks is not None:
                scores = torch.cat([scores, self.sinks[:, None, None].expand(-1, mine.shape[1], 1)], -1)
            weights = scores.softmax(-1)[..., :length].to(form.dtype)
            parts.append((turn(weights, -1) @ turn(v, -2)).movedim(0, 1))
        return torch.cat(parts)
