"""Paged attention on the device: right in every form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import torch

from triolet.kernels.paged_attention import gpu_launch
from triolet.loadtest.device.gpu_case import Figures, GpuCase, GpuMachine, Skip, check, planted
from triolet.loadtest.device.gpu_check import equal, faulty, require
from triolet.loadtest.device.gpu_ragged import Form, Ragged

CACHES = ("bf16", "fp8", "int8")
SMALL = [(1, 190), (5, 70), (1, 64), (1, 1)]
WIDE = [(1, 200), (70, 135), (1, 64), (3, 128), (1, 1)]
SERVING = [*((1, 4096 - 37 * row) for row in range(16)), (512, 2048), (333, 1000), (1, 32768)]
TINY = Form(heads=2, kv_heads=1, size=64)
LATENT = Form(heads=16, kv_heads=1, size=576, rope_dim=64)
BESIDE = [(1, 70), (5, 66)]  # a decode row and a prompt before the one that is cut
CUT, CUTS = 1500, ((700,), (2, 66, 129, 1400), (64, 128, 192, 1498), tuple(range(100, 1500, 100)))
CUT_SMALL, CUTS_SMALL = 70, ((65,), (2, 37))


def check_form(form: Form, chunks: list[tuple[int, int]], machine: GpuMachine) -> Figures:
    batch = Ragged.drawn(form, chunks)
    return batch.check(batch.launch(machine))


def check_descriptors(form: Form, chunks: list[tuple[int, int]], machine: GpuMachine) -> Figures:
    """Pages read by TMA and by pointers: the same sums in the same order, so equal bits."""
    if machine.capability < 90:
        raise Skip("this device has no TMA")
    batch, found = Ragged.drawn(form, chunks), list[torch.Tensor]()
    launch = batch.launch(machine)
    for used in (False, True):
        decode, prefill = replace(launch.decode, descriptors=used), replace(launch.prefill, descriptors=used)
        found.append(batch.result(replace(launch, decode=decode, prefill=prefill))[: batch.real])
        require(not bool(found[-1].isnan().any()), f"a row was not written, by TMA: {used}")
    equal(found[1], found[0], "attention by TMA")
    return {"rows": batch.real}


def check_alone(form: Form, chunks: list[tuple[int, int]], machine: GpuMachine) -> Figures:
    """Strict: a decode row has the same bits in the batch and alone."""
    batch = Ragged.drawn(form, chunks)
    launch = batch.launch(machine)
    together = batch.result(launch)
    rows = [row for row, (tokens, _) in enumerate(chunks) if tokens == 1][:3]
    starts = cast("list[int]", batch.starts.tolist())
    lengths = batch.lengths
    for row in rows:
        place = starts[row]
        batch.lengths = torch.zeros_like(lengths)
        batch.lengths[row] = lengths[row]
        batch.starts = torch.tensor([place] * (row + 1) + [place + 1] * (len(chunks) + 1 - row)).int()
        alone = batch.result(launch)
        require(torch.equal(alone[place], together[place]), f"row {row} has other bits alone than in the batch")
        require(bool(alone[place + 1 :].isnan().all()), "rows of other sequences were written")
    return {"rows": len(rows)}


def check_cuts(form: Form, prompt: int, cuts: Sequence[Sequence[int]], machine: GpuMachine) -> Figures:
    """Strict: a prompt's rows have the same bits in one chunk and in several, alone and between neighbours.

    No chunk of a prompt is a single token, which would be a decode row.
    """
    batch = Ragged.drawn(form, [*BESIDE, (prompt, prompt)])
    (starts, lengths, tables), row = (batch.starts, batch.lengths, batch.tables), len(BESIDE)
    first = int(starts[row])
    rows = slice(first, first + prompt)
    whole: torch.Tensor | None = None
    for among in (True, False):
        for ends in ([prompt], *([*inner, prompt] for inner in cuts)):
            pieces = len(ends)
            batch.lengths = torch.cat([lengths[:row] * among, torch.tensor(ends), lengths[row + 1 :]]).int()
            before = starts[:row] if among else torch.full((row,), first)
            batch.starts = torch.cat([before, torch.tensor([first + end for end in (0, *ends)]), starts[-1:]]).int()
            batch.tables = torch.cat([tables[:row], tables[row].repeat(pieces, 1), tables[row + 1 :]])
            found = batch.result(batch.launch(machine))[rows]
            require(not bool(found.isnan().any()), f"cut at {ends}: a row was not written")
            whole = found if whole is None else whole
            require(torch.equal(found, whole), f"cut at {ends}: other bits than in one chunk, neighbours: {among}")
    return {"rows": prompt, "ways": 2 * (1 + len(cuts))}


TINY_ALONE = partial(check_form, TINY, SMALL)
TINY_CUT = partial(check_cuts, replace(TINY, strict=True), CUT_SMALL, CUTS_SMALL)
PLANTED = [
    planted(f"attention: {name}", faulty(run, (gpu_launch, kernel, old, new)))
    for name, run, kernel, old, new in (
        ("a prompt's rows know their tile", TINY_CUT, "prefill_kernel", "output / total[:, None]",
         "output / (total[:, None] + 0.01 * offset)"),
        ("a key too many", TINY_ALONE, "decode_kernel", "position < length", "position <= length"),
        ("a part left out", TINY_ALONE, "decode_kernel", "first_slot, parts, kv_head",
         "first_slot, parts - 1, kv_head"),
    )
]  # fmt: skip


def checks(dry: bool) -> list[GpuCase]:
    forms = {cache: replace(TINY, cache=cache) for cache in CACHES} | {
        "window 60": replace(TINY, window=60),
        "soft cap 5": replace(TINY, soft_cap=5.0),
        "strict": replace(TINY, strict=True),
        "sinks, window 60": replace(TINY, window=60, sinks=True),
        "latent vectors": Form(heads=20, kv_heads=1, size=40, rope_dim=8),
    }
    stricts = [replace(TINY, strict=True)]
    if not dry:
        for size in (64, 80, 96, 128, 256):
            for cache in CACHES:
                forms[f"head {size} {cache}"] = Form(heads=8, kv_heads=2, size=size, cache=cache)
        forms["groups of 7"] = Form(heads=7, kv_heads=1)
        forms["groups of 1"] = Form(heads=4, kv_heads=4)
        forms["head 64, window, sinks"] = Form(heads=64, size=64, window=128, sinks=True)
        forms["head 256, window, soft cap"] = Form(heads=4, kv_heads=2, size=256, window=100, soft_cap=20.0)
        for heads in (16, 128):  # DeepSeek-V2-Lite, V3
            forms[f"latent vectors, {heads} heads"] = replace(LATENT, heads=heads)
        stricts = [Form(strict=True, cache=cache) for cache in CACHES]
        stricts.append(replace(LATENT, strict=True))
        stricts += [Form(strict=True, size=64, window=200), Form(strict=True, size=256, kv_heads=4, soft_cap=20.0)]
    small, serving, cut = (SMALL, SMALL, (CUT_SMALL, CUTS_SMALL)) if dry else (WIDE, SERVING, (CUT, CUTS))
    found = [check(f"attention {name}", partial(check_form, form, small)) for name, form in forms.items()]
    by_copy = TINY if dry else Form(heads=8, kv_heads=2)
    found.append(check("attention by TMA", partial(check_descriptors, by_copy, small)))
    if not dry:
        found += [
            check(f"attention serving {cache}", partial(check_form, Form(cache=cache), SERVING)) for cache in CACHES
        ]
        found.append(check("attention serving latent vectors", partial(check_form, LATENT, SERVING)))
    for form in stricts:
        cache = "latent vectors" if form.rope_dim else form.cache
        title = f"{cache}{f' window {form.window}' if form.window else ''}{' soft cap' if form.soft_cap else ''}"
        found.append(check(f"attention bits alone {title}", partial(check_alone, form, serving)))
        found.append(check(f"attention bits however cut {title}", partial(check_cuts, form, *cut)))
    return found + PLANTED
