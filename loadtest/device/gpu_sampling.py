"""The device sampler: tokens right to the bit, log probabilities to 1e-6, times of 128,256 logits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from triolet.kernels.sampling import gpu_launch
from triolet.kernels.sampling.gpu_buffers import (
    DeviceRows,
    DeviceSampled,
    make_rows,
    make_sampled,
    make_workspace,
    remember,
)
from triolet.kernels.sampling.gpu_rows import ROW_WORDS
from triolet.kernels.sampling.reference import sample as definition
from triolet.kernels.sampling.rows import OK, ROW, SamplingRows
from triolet.loadtest.device.gpu_case import Figures, GpuCase, GpuMachine, check, planted
from triolet.loadtest.device.gpu_check import drawn, faulty, require
from triolet.loadtest.device.gpu_timing import Moved, time_moved

Float32Array = npt.NDArray[np.float32]
LOGPROB_SLACK = 1e-6  # see kernels/sampling/gpu_logprobs.py
NEUTRAL: dict[str, float] = {"repetition": 1, "temperature": 1, "top_p": 1, "target": -1, "top": -1}
ASKED: tuple[dict[str, float], ...] = (
    {"top": 5},
    {"temperature": 0.0, "top": 0},
    {"top_p": 0.9, "temperature": 1.7},
    {"top_k": 40, "top_p": 0.8, "min_p": 0.02, "top": 3},
    {"min_p": 0.05},
    {"top_k": 10**6, "top_p": 0.999999},
    {"repetition": 1.7, "presence": 0.5, "frequency": 0.1},
)
VOCAB = 128256  # of what is timed
TIMED: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "plain": {},
    "top-k and top-p": {"top_k": 40, "top_p": 0.9},
    "top-p of a flat row": {"top_p": 0.95, "temperature": 3.0},
    "logprobs": {"top": 5},
}


def records(*asked: Mapping[str, float]) -> npt.NDArray[np.void]:
    """Of rows that ask for nothing else."""
    made = np.zeros(len(asked), ROW)
    for record, own in zip(made, asked, strict=True):
        for name, value in {**NEUTRAL, **own}.items():
            record[name] = value
    return made


def seeded(asked: Iterable[Mapping[str, float]]) -> npt.NDArray[np.void]:
    """Each with a seed and a position of its own, beyond 32 bits."""
    return records(*({"seed": 2**40 + row, "position": 2**33 + row, **own} for row, own in enumerate(asked)))


def csr(rows: list[list[int]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    starts = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    return starts, np.array([token for row in rows for token in row], np.int32)


def edits_of(batch: SamplingRows, row: int) -> dict[int, float]:
    """Bias and bans of a row in one: a ban is a bias of -inf, and beats any other."""
    edits: dict[int, float] = {}
    if len(batch.bias_starts):
        entries = slice(batch.bias_starts[row], batch.bias_starts[row + 1])
        edits = dict(zip(batch.bias_tokens[entries].tolist(), batch.bias_values[entries].tolist(), strict=True))
    if len(batch.banned_starts):
        entries = slice(batch.banned_starts[row], batch.banned_starts[row + 1])
        edits |= dict.fromkeys(batch.banned_tokens[entries].tolist(), float("-inf"))
    return edits


def staged(batch: SamplingRows, vocab: int, place: str) -> DeviceRows:
    """A batch on the device, a slot of the table for every row that has seen anything."""
    count = len(batch.rows)
    edits = [edits_of(batch, row) for row in range(count)]
    starts, tokens = csr([list(found) for found in edits])
    rows = make_rows(count, vocab, edits=max(1, len(tokens)), slots=count, masks=2, device=place)
    rows.words.copy_(torch.from_numpy(batch.rows.view(np.int32).reshape(count, ROW_WORDS).copy()))
    rows.edit_starts.copy_(torch.from_numpy(starts))
    rows.edit_tokens[: len(tokens)] = torch.from_numpy(tokens).to(place)
    values = [value for found in edits for value in found.values()]
    rows.edit_values[: len(tokens)] = torch.tensor(values, device=place)
    for row in range(count if len(batch.seen_starts) else 0):
        entries = slice(batch.seen_starts[row], batch.seen_starts[row + 1])
        seen = torch.from_numpy(batch.seen_tokens[entries].astype(np.int64)).to(place)
        slot = count - 1 - row
        remember(rows.seen, slot, seen, torch.from_numpy(batch.seen_counts[entries]).to(place))
        rows.seen_slots[row] = slot
    if len(batch.mask_lines):
        rows.masks[: len(batch.masks)] = torch.from_numpy(batch.masks.view(np.int32)).to(place)
        rows.mask_slots.copy_(torch.from_numpy(batch.mask_lines))
    return rows


def sampled(logits: Float32Array, rows: DeviceRows, machine: GpuMachine, **options: bool) -> DeviceSampled:
    count, vocab = logits.shape
    out = make_sampled(count, machine.place)
    workspace = make_workspace(count, vocab, machine.capability, machine.place)
    given = torch.from_numpy(logits).to(machine.place)
    gpu_launch.sample(given, rows, workspace, out, capability=machine.capability, **options)
    return out


def check_rows(logits: Float32Array, batch: SamplingRows, machine: GpuMachine) -> tuple[DeviceSampled, float]:
    """The device says what the definition says; kernels that no row needs are not launched. And the largest error."""
    rows, expected = batch.rows, definition(logits, batch)
    filters = bool(np.any((rows["top_k"] > 0) | (rows["top_p"] < 1) | (rows["min_p"] > 0)))
    out = sampled(
        logits, staged(batch, logits.shape[1], machine.place), machine, filters=filters,
        reports=bool(np.any(rows["top"] >= 0)),
    )  # fmt: skip
    found = DeviceSampled(**{field.name: getattr(out, field.name).cpu() for field in fields(out)})
    require(found.status.tolist() == expected.status.tolist(), "a status differs")
    sound, error = expected.status == OK, 0.0
    drawn, wanted = found.ids.numpy()[sound].tolist(), expected.tokens[sound].tolist()
    require(drawn == wanted, f"tokens {drawn} were drawn and not {wanted}")
    for row in np.flatnonzero(sound & (rows["top"] >= 0)).tolist():
        most = int(rows["top"][row])
        require(found.top_ids[row, :most].tolist() == expected.top_tokens[row, :most].tolist(), "alternatives differ")
        require(found.ranks[row].item() == expected.ranks[row], "a rank differs")
        here = np.append(found.top_logprobs.numpy()[row, :most], found.logprobs.numpy()[row])
        there = np.append(expected.top_logprobs[row, :most], expected.logprobs[row])
        finite = np.isfinite(there)
        require(np.array_equal(np.isfinite(here), finite), "a log probability is not finite")
        here, there = here[finite], there[finite]
        error = max(error, float(np.max(np.abs(here - there) / np.maximum(1, np.abs(there)), initial=0.0)))
    require(error <= LOGPROB_SLACK, f"log probabilities are off by {error:.3g}")
    return found, error


def check_sampler(vocab: int, machine: GpuMachine) -> Figures:
    rng = np.random.default_rng(vocab)
    logits = (4 * rng.normal(size=(len(ASKED), vocab))).astype(np.float32)
    logits[2] = np.round(logits[2])  # ties
    seen = rng.choice(vocab, 20, replace=False).astype(np.int32)  # by the last row
    starts = np.array([0] * len(ASKED) + [len(seen)], np.int64)
    batch = SamplingRows(seeded(ASKED), starts, seen, np.full(len(seen), 2, np.int32))
    return {"error": check_rows(logits, batch, machine)[1], "allowed": LOGPROB_SLACK}


def checks(dry: bool) -> list[GpuCase]:
    sizes = (300,) if dry else (300, 32000, 128256, 151936)
    checked = [check(f"sampling {vocab}", partial(check_sampler, vocab)) for vocab in sizes]
    swapped = gpu_launch, "draw_kernel", "token + 64, b", "token + 64, c"
    return [*checked, planted("sampler swaps random words", faulty(partial(check_sampler, 300), swapped))]


def sampler_work(rows: int, asked: str, machine: GpuMachine) -> Moved:
    """Rows of float32 logits; without what none of them asks for, as a step is launched."""
    logits = 4 * drawn(1, rows, VOCAB)
    asks = TIMED[asked]
    device_rows = staged(SamplingRows(seeded([asks] * rows)), VOCAB, machine.place)
    workspace = make_workspace(rows, VOCAB, machine.capability, machine.place)
    out = make_sampled(rows, machine.place)
    run = partial(
        gpu_launch.sample, logits, device_rows, workspace, out, capability=machine.capability,
        filters=bool(asks.keys() & {"top_k", "top_p"}), reports="top" in asks,
    )  # fmt: skip
    return Moved(run, 4 * rows * VOCAB)


def times(_dry: bool) -> list[GpuCase]:
    return [
        GpuCase(f"sampler {asked} {rows} rows", partial(time_moved, partial(sampler_work, rows, asked)))
        for asked in TIMED
        for rows in (1, 64)
    ]
