"""What the device sampler reads, writes and works in: torch tensors at fixed addresses, made once, fit for graphs.

The host writes the rows of a step into `DeviceRows` and reads `DeviceSampled`; ids may stay on the device.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from ..gpu.language import cdiv
from ..gpu.table import LaunchRow, Table, choose
from .gpu_filters import STATISTICS
from .gpu_rows import ROW_WORDS
from .rows import MAX_TOP

ROWS_AT_ONCE = 64  # rows of one launch: more rows are several launches, so that the workspace stays bounded


@dataclass(frozen=True, slots=True)
class SamplingLaunch:
    tile: int  # tokens per program, a multiple of 256 (numbers.RANDOM_BLOCK) and a power of two
    num_warps: int  # of the programs that own a tile
    row_warps: int  # of the programs that own a row


EVIDENCE = (
    "compiled: at most 127 registers (adjust, gather; threshold 108, draw 64), no spills, for sm_80 and sm_90; "
    "not measured"
)
# By the size of the vocabulary. Results do not depend on the launch: sums and maxima are of integers.
TABLE: Table[SamplingLaunch] = {80: (LaunchRow(None, SamplingLaunch(4096, 8, 8), EVIDENCE),)}


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """The rows of a step, [S] of each; `edit` is a list in CSR form with room for more entries."""

    words: torch.Tensor  # int32 [S, ROW_WORDS]: the records of rows.ROW as they are
    seen_slots: torch.Tensor  # int32 [S]: the row's line in `seen`; -1: it has no penalties
    mask_slots: torch.Tensor  # int32 [S]: its line in `masks`; -1: all are allowed
    edit_starts: torch.Tensor  # int32 [S + 1]
    edit_tokens: torch.Tensor  # int32, distinct in a row
    edit_values: torch.Tensor  # float32: the bias; -inf bans
    seen: torch.Tensor  # int32 [slots, vocab]: 2 * times drawn + (seen at all)
    masks: torch.Tensor  # int32 [lines, ceil(vocab / 32)]


@dataclass(frozen=True, slots=True)
class DeviceSampled:
    """As rows.Sampled. Only rows that ask have their log probabilities written."""

    ids: torch.Tensor  # int32 [S]
    status: torch.Tensor  # uint8 [S]
    logprobs: torch.Tensor  # float32 [S]
    ranks: torch.Tensor  # int32 [S]
    top_ids: torch.Tensor  # int32 [S, MAX_TOP]
    top_logprobs: torch.Tensor  # float32 [S, MAX_TOP]


@dataclass(frozen=True, slots=True)
class Workspace:
    """Scratch memory for up to ROWS_AT_ONCE rows: 12 bytes a token and little else."""

    adjusted: torch.Tensor  # float32 [R, vocab]
    held: torch.Tensor  # int32 [R, vocab]: weights of candidates
    tokens: torch.Tensor  # int32 [R, vocab]: their tokens
    best: torch.Tensor  # int64 [R, blocks]
    raw_best: torch.Tensor
    scores: torch.Tensor
    totals: torch.Tensor
    faults: torch.Tensor  # int32 [R, blocks]
    amounts: torch.Tensor  # int64 [R, STATISTICS, blocks]
    kept: torch.Tensor  # int32 [R, 2]
    leaders: torch.Tensor  # int64 [R, blocks, MAX_TOP]
    ahead: torch.Tensor  # int32 [R, blocks]: tokens that come before the drawn one

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(int(getattr(self, field.name).nbytes) for field in fields(self))


def launch_of(vocab: int, capability: int) -> tuple[SamplingLaunch, int]:
    """The launch, and how many programs share a row."""
    launch = choose(TABLE, capability, vocab)
    return launch, cdiv(vocab, launch.tile)


def make_workspace(rows: int, vocab: int, capability: int, device: torch.device | str) -> Workspace:
    _, blocks = launch_of(vocab, capability)
    rows = min(rows, ROWS_AT_ONCE)

    def empty(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.empty(rows, *shape, dtype=dtype, device=device)

    return Workspace(
        adjusted=empty(torch.float32, vocab),
        held=empty(torch.int32, vocab),
        tokens=empty(torch.int32, vocab),
        best=empty(torch.int64, blocks),
        raw_best=empty(torch.int64, blocks),
        scores=empty(torch.int64, blocks),
        totals=empty(torch.int64, blocks),
        faults=empty(torch.int32, blocks),
        amounts=empty(torch.int64, STATISTICS, blocks),
        kept=empty(torch.int32, 2),
        leaders=empty(torch.int64, blocks, MAX_TOP),
        ahead=empty(torch.int32, blocks),
    )


def make_rows(rows: int, vocab: int, *, edits: int, slots: int, masks: int, device: torch.device | str) -> DeviceRows:
    """Room for `rows` rows, `edits` biases and bans in all, `slots` rows with penalties and `masks` masks."""

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=torch.int32, device=device)

    return DeviceRows(
        words=zeros(rows, ROW_WORDS),
        seen_slots=zeros(rows) - 1,
        mask_slots=zeros(rows) - 1,
        edit_starts=zeros(rows + 1),
        edit_tokens=zeros(edits),
        edit_values=zeros(edits).float(),
        seen=zeros(slots, vocab),
        masks=zeros(masks, cdiv(vocab, 32)),
    )


def make_sampled(rows: int, device: torch.device | str) -> DeviceSampled:
    def zeros(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.zeros(rows, *shape, dtype=dtype, device=device)

    return DeviceSampled(
        ids=zeros(torch.int32),
        status=zeros(torch.uint8),
        logprobs=zeros(torch.float32),
        ranks=zeros(torch.int32),
        top_ids=zeros(torch.int32, MAX_TOP),
        top_logprobs=zeros(torch.float32, MAX_TOP),
    )


def remember(seen: torch.Tensor, slot: int, tokens: torch.Tensor, times: torch.Tensor) -> None:
    """Give a slot to a sequence: its distinct tokens (int64) and how often each was drawn (int32; 0: prompt only)."""
    seen[slot].zero_()
    seen[slot, tokens] = 2 * times + 1
