"""Correctness of paged attention on the device: every head size, cache and form, small; then shapes of serving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from triolet.kernels.paged_attention import gpu_launch
from triolet.loadtest.device.gpu_case import Case, Figures, Machine
from triolet.loadtest.device.gpu_check import fault, require
from triolet.loadtest.device.gpu_ragged import Form, Ragged

SMALL = [(1, 190), (5, 70), (1, 64), (1, 1)]
WIDE = [(1, 200), (70, 135), (1, 64), (3, 128), (1, 1)]
SERVING = [*((1, 4096 - 37 * row) for row in range(16)), (512, 2048), (333, 1000), (1, 32768)]
TINY = Form(heads=2, kv_heads=1, size=64)
BESIDE = [(1, 70), (5, 66)]  # a decode row and a prompt before the one that is cut
CUT, CUTS = 1500, ((700,), (2, 66, 129, 1400), (64, 128, 192, 1498), tuple(range(100, 1500, 100)))
CUT_SMALL, CUTS_SMALL = 70, ((65,), (2, 37))


def check(form: Form, chunks: list[tuple[int, int]], machine: Machine) -> Figures:
    return Ragged(form, chunks).check(machine)


def check_strict(form: Form, chunks: list[tuple[int, int]], machine: Machine) -> Figures:
    """A decode row has the same bits in the batch and alone."""
    batch = Ragged(form, chunks)
    launch = batch.launch(machine)
    together = batch.attend(launch, *batch.prepare(launch)).clone()
    rows = [row for row, (tokens, _) in enumerate(chunks) if tokens == 1][:3]
    starts, lengths = batch.starts.tolist(), batch.lengths
    for row in rows:
        place = starts[row]
        batch.lengths = torch.zeros_like(lengths)
        batch.lengths[row] = lengths[row]
        batch.starts = torch.tensor([place] * (row + 1) + [place + 1] * (len(chunks) + 1 - row)).int()
        batch.out.fill_(torch.nan)
        alone = batch.attend(launch, *batch.prepare(launch))
        require(torch.equal(alone[place], together[place]), f"row {row} has other bits alone than in the batch")
        require(bool(alone[place + 1 :].isnan().all()), "rows of other sequences were written")
    return {"rows": len(rows)}


def check_cuts(form: Form, prompt: int, cuts: Sequence[Sequence[int]], machine: Machine) -> Figures:
    """A prompt's rows have the same bits in one chunk and in several, alone and between neighbours, whatever the cuts.

    Under strict determinism no chunk of a prompt is a single token, which would be a decode row.
    """
    batch = Ragged(form, [*BESIDE, (prompt, prompt)])
    (starts, lengths, tables), row = (batch.starts, batch.lengths, batch.tables), len(BESIDE)
    first = int(starts[row])
    rows = slice(first, first + prompt)
    whole: torch.Tensor | None = None
    for neighbours in (True, False):
        for ends in ([prompt], *([*inner, prompt] for inner in cuts)):
            pieces = len(ends)
            batch.lengths = torch.cat([lengths[:row] * neighbours, torch.tensor(ends), lengths[row + 1 :]]).int()
            before = starts[:row] if neighbours else torch.full((row,), first)
            batch.starts = torch.cat([before, torch.tensor([first + end for end in (0, *ends)]), starts[-1:]]).int()
            batch.tables = torch.cat([tables[:row], tables[row].repeat(pieces, 1), tables[row + 1 :]])
            batch.out.fill_(torch.nan)
            launch = batch.launch(machine)
            found = batch.attend(launch, *batch.prepare(launch))[rows].clone()
            require(not bool(found.isnan().any()), f"cut at {ends}: a row was not written")
            whole = found if whole is None else whole
            require(torch.equal(found, whole), f"cut at {ends}: other bits than in one chunk, neighbours: {neighbours}")
    return {"rows": prompt, "ways": 2 * (1 + len(cuts))}


def planted_cut(old: str, new: str, machine: Machine) -> Figures:
    with fault(gpu_launch, "prefill_kernel", old, new):
        return check_cuts(replace(TINY, strict=True), CUT_SMALL, CUTS_SMALL, machine)


def planted(name: str, old: str, new: str, form: Form, machine: Machine) -> Figures:
    with fault(gpu_launch, name, old, new):
        return check(form, SMALL, machine)


def cases(dry: bool) -> list[Case]:
    forms = {
        "bf16": TINY,
        "fp8": replace(TINY, cache="fp8"),
        "int8": replace(TINY, cache="int8"),
        "window 60": replace(TINY, window=60),
        "soft cap 5": replace(TINY, soft_cap=5.0),
        "strict": replace(TINY, strict=True),
    }
    if not dry:
        for size in (64, 80, 96, 128, 256):
            for cache in ("bf16", "fp8", "int8"):
                forms[f"head {size} {cache}"] = Form(heads=8, kv_heads=2, size=size, cache=cache)
        forms["groups of 7"] = Form(heads=7, kv_heads=1)
        forms["groups of 1"] = Form(heads=4, kv_heads=4)
        forms["head 256, window, soft cap"] = Form(heads=4, kv_heads=2, size=256, window=100, soft_cap=20.0)
    stricts = [replace(TINY, strict=True)]
    if not dry:
        stricts = [Form(strict=True, cache=cache) for cache in ("bf16", "fp8", "int8")]
        stricts += [Form(strict=True, size=64, window=200), Form(strict=True, size=256, kv_heads=4, soft_cap=20.0)]
    small = SMALL if dry else WIDE
    found = [Case(f"attention {name}", partial(check, form, small), checks=True) for name, form in forms.items()]
    if not dry:
        found += [
            Case(f"attention serving {cache}", partial(check, Form(cache=cache), SERVING), checks=True)
            for cache in ("bf16", "fp8", "int8")
        ]
    for form in stricts:
        title = f"{form.cache}{f' window {form.window}' if form.window else ''}{' soft cap' if form.soft_cap else ''}"
        cut = (CUT_SMALL, CUTS_SMALL) if dry else (CUT, CUTS)
        found += [
            Case(f"attention bits alone {title}", partial(check_strict, form, SMALL if dry else SERVING), checks=True),
            Case(f"attention bits however cut {title}", partial(check_cuts, form, *cut), checks=True),
        ]
    return found + PLANTED


PLANTED = [
    Case(
        "planted: a prompt's rows know their tile",
        partial(planted_cut, "output / total[:, None]", "output / (total[:, None] + 0.01 * offset)"),
        checks=True,
        planted=True,
    ),
    Case(
        "planted: attention sees a key too many",
        partial(planted, "decode_kernel", "position < length", "position <= length", TINY),
        checks=True,
        planted=True,
    ),
    Case(
        "planted: attention leaves a part out",
        partial(planted, "reduce_kernel", "begin + some < parts", "begin + some < parts - 1", TINY),
        checks=True,
        planted=True,
    ),
]
