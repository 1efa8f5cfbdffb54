"""The device sampler: tokens right to the bit, log probabilities to 1e-6, times of 128,256 logits."""

from __future__ import annotations

from functools import partial
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from triolet.kernels.sampling import gpu_launch
from triolet.kernels.sampling.gpu_buffers import DeviceRows, make_rows, make_sampled, make_workspace, remember
from triolet.kernels.sampling.gpu_rows import ROW_WORDS
from triolet.kernels.sampling.reference import sample as definition
from triolet.kernels.sampling.rows import OK, ROW, SamplingRows
from triolet.loadtest.device.gpu_case import Figures, GpuCase, GpuMachine, check, planted
from triolet.loadtest.device.gpu_check import drawn, fault, require
from triolet.loadtest.device.gpu_timing import Moved, time_moved

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


def staged(rows: npt.NDArray[np.void], seen: npt.NDArray[np.int32], vocab: int, place: str) -> DeviceRows:
    """Rows on the device; the last one has seen these tokens, each twice."""
    count = len(rows)
    made = make_rows(count, vocab, edits=1, slots=1, masks=1, device=place)
    made.words.copy_(torch.from_numpy(rows.view(np.int32).reshape(count, ROW_WORDS).copy()))
    tokens = torch.from_numpy(seen.astype(np.int64)).to(place)
    remember(made.seen, 0, tokens, torch.full((len(seen),), 2, dtype=torch.int32, device=place))
    made.seen_slots[-1] = 0
    return made


def records(asked: tuple[dict[str, float], ...]) -> npt.NDArray[np.void]:
    made = np.zeros(len(asked), ROW)
    for index, (record, fields) in enumerate(zip(made, asked, strict=True)):
        for name, value in (NEUTRAL | {"seed": 2**40 + index, "position": 2**33 + index} | fields).items():
            record[name] = value
    return made


def check_sampler(vocab: int, machine: GpuMachine) -> Figures:
    rows, count = records(ASKED), len(ASKED)
    rng = np.random.default_rng(vocab)
    logits = (4 * rng.normal(size=(count, vocab))).astype(np.float32)
    logits[2] = np.round(logits[2])  # ties
    seen = rng.choice(vocab, 20, replace=False).astype(np.int32)
    starts = np.array([0] * count + [len(seen)], np.int64)
    expected = definition(logits, SamplingRows(rows, starts, seen, np.full(len(seen), 2, np.int32)))
    out = make_sampled(count, machine.place)
    workspace = make_workspace(count, vocab, machine.capability, machine.place)
    gpu_launch.sample(
        torch.from_numpy(logits).to(machine.place), staged(rows, seen, vocab, machine.place), workspace, out,
        capability=machine.capability,
    )  # fmt: skip
    require(out.status.tolist() == expected.status.tolist() == [OK] * count, "a status differs")
    drawn, wanted = cast("list[int]", out.ids.tolist()), expected.tokens.tolist()
    require(drawn == wanted, f"tokens {drawn} were drawn and not {wanted}")
    error = 0.0
    for row in np.flatnonzero(rows["top"] >= 0).tolist():
        most = int(rows["top"][row])
        require(out.top_ids[row, :most].tolist() == expected.top_tokens[row, :most].tolist(), "alternatives differ")
        require(out.ranks[row].item() == expected.ranks[row], "a rank differs")
        found = np.append(out.top_logprobs[row, :most].cpu().numpy(), out.logprobs[row].item())
        there = np.append(expected.top_logprobs[row, :most], expected.logprobs[row])
        error = max(error, float(np.max(np.abs(found - there) / np.maximum(1, np.abs(there)))))
    require(error <= LOGPROB_SLACK, f"log probabilities are off by {error:.3g}")
    return {"error": error, "allowed": LOGPROB_SLACK}


def planted_draw(vocab: int, machine: GpuMachine) -> Figures:
    with fault(gpu_launch, "draw_kernel", "token + 64, b", "token + 64, c"):
        return check_sampler(vocab, machine)


def checks(dry: bool) -> list[GpuCase]:
    sizes = (300,) if dry else (300, 32000, 128256, 151936)
    checked = [check(f"sampling {vocab}", partial(check_sampler, vocab)) for vocab in sizes]
    return [*checked, planted("sampler swaps random words", partial(planted_draw, 300))]


def sampler_work(rows: int, asked: str, machine: GpuMachine) -> Moved:
    """Rows of float32 logits; without what none of them asks for, as a step is launched."""
    logits = 4 * drawn(1, rows, VOCAB)
    fields = TIMED[asked]
    device_rows = staged(records((fields,) * rows), np.zeros(0, np.int32), VOCAB, machine.place)
    device_rows.seen_slots.fill_(-1)
    workspace = make_workspace(rows, VOCAB, machine.capability, machine.place)
    out = make_sampled(rows, machine.place)
    run = partial(
        gpu_launch.sample, logits, device_rows, workspace, out, capability=machine.capability,
        filters=bool(fields.keys() & {"top_k", "top_p"}), reports="top" in fields,
    )  # fmt: skip
    return Moved(run, 4 * rows * VOCAB)


def times(dry: bool) -> list[GpuCase]:
    del dry  # never there
    return [
        GpuCase(f"sampler {asked} {rows} rows", partial(time_moved, partial(sampler_work, rows, asked)))
        for asked in TIMED
        for rows in (1, 64)
    ]
