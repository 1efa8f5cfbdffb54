"""Rope with bias, q/k norm and cache write on the device: right in every form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from triolet.kernels.gpu.table import PAGE_TOKENS as PAGE
from triolet.kernels.layer_norm.reference import layer_norm_reference
from triolet.kernels.rms_norm.reference import rms_norm_reference
from triolet.kernels.rope.gpu import HeadWeights, LayerCache, rope_cache
from triolet.kernels.rope.reference import rope_reference
from triolet.loadtest.device.gpu_case import Figures, GpuCase, GpuMachine, check
from triolet.loadtest.device.gpu_check import drawn, equal, require
from triolet.loadtest.device.gpu_rows import LIMITS, as_numpy, as_tensor, check_rounded, check_stored

CACHES = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "int8": torch.int8}


@dataclass(frozen=True, slots=True)
class Turned:
    """Heads of a token, and what is done to them beside turning."""

    heads: int = 4
    kv_heads: int = 2
    size: int = 16
    cache: torch.dtype = torch.bfloat16
    biased: bool = False
    norm: str = ""  # "head": one gain for all; "heads": one for each
    centred: bool = False  # LayerNorm
    grows: bool = False  # queries, with their position


def check_rope(tokens: int, turned: Turned, machine: GpuMachine) -> Figures:
    """Every third token is padding; keys and values in qkv stay."""
    heads, kv_heads, size = turned.heads, turned.kv_heads, turned.size
    width, pages = (heads + 2 * kv_heads) * size, tokens // PAGE + 1
    qkv = drawn(1, tokens, width).bfloat16()
    qkv[1] *= 8  # so that a scale is needed
    gains = (1 + 0.1 * drawn(2, heads + kv_heads, size)).bfloat16()
    norms = {"head": (gains[0], gains[1]), "heads": (gains[:heads], gains[heads:])}.get(turned.norm, (None, None))
    bias = drawn(3, width).bfloat16() if turned.biased else None
    weights = HeadWeights(bias=bias, q_norm=norms[0], k_norm=norms[1], eps=0.1, centred=turned.centred)
    growth = torch.linspace(1, 3, 512) if turned.grows else None
    positions = (torch.arange(tokens) * 13 % 512).int()
    slots = torch.randperm(pages * PAGE)[:tokens].int()
    slots[::3] = -1
    angles = 6 * torch.rand(512, size // 2)
    table = torch.cat([angles.cos(), angles.sin()], -1)
    shape = (pages, kv_heads, PAGE)
    keys, values = (torch.zeros(*shape, size).to(turned.cache) for _ in range(2))
    scales = [torch.zeros(shape) if turned.cache in LIMITS else None for _ in range(2)]
    full, before = as_numpy(qkv) + (0.0 if bias is None else as_numpy(bias)), qkv[:, heads * size :].clone()
    q, k, v = np.split(full.reshape(tokens, -1, size), [heads, heads + kv_heads], axis=1)
    turn = as_numpy(table[positions.long()])[:, None]
    norm_of = partial(layer_norm_reference, shift=0.0) if turned.centred else rms_norm_reference
    exact_q, exact_k = (
        as_tensor(rope_reference(part if norm is None else norm_of(part, as_numpy(norm), eps=0.1), turn))
        for part, norm in ((q, norms[0]), (k, norms[1]))
    )
    if growth is not None:
        exact_q *= growth[positions.long()][:, None, None].double()
    rope_cache(
        qkv, weights, table, positions, slots, LayerCache(keys, values, *scales), capability=machine.capability,
        growth=growth,
    )  # fmt: skip
    equal(qkv[:, heads * size :], before, "a key or a value")
    figures = check_rounded(qkv[:, : heads * size].reshape(exact_q.shape), exact_q, "a turned query")
    written = slots[slots >= 0].long()
    for stored, scale, part in ((keys, scales[0], exact_k), (values, scales[1], as_tensor(v))):
        found, exact = stored[written // PAGE, :, written % PAGE], part[slots >= 0].flatten(0, 1)
        if scale is None:
            check_rounded(found.flatten(0, 1), exact, "the cache")
        else:
            check_stored(found.flatten(0, 1), scale[written // PAGE, :, written % PAGE].reshape(-1), exact)
        entries = int((stored.float() != 0).any(-1).sum())
        require(entries == kv_heads * len(written), f"{entries} entries of the cache were written")
    return figures


def checks(dry: bool) -> list[GpuCase]:
    found: dict[str, partial[Figures]] = {}
    for name, cache in CACHES.items():
        found[f"rope {name}"] = partial(check_rope, 7, Turned(cache=cache, biased=True, norm="head"))
        if not dry:
            serving = Turned(32, 8, 128, cache, biased=True, norm="head")
            found[f"rope serving decode {name}"] = partial(check_rope, 64, serving)
            found[f"rope serving prefill {name}"] = partial(check_rope, 2048, serving)
    every = Turned(biased=True, norm="heads", centred=True, grows=True)
    found["rope of each head, growing"] = partial(check_rope, 7, every)
    return [check(name, run) for name, run in found.items()]
