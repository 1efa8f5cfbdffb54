"""The device sampler against the definition, bit for bit; its promises; planted faults fail."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
import torch

from triolet.kernels.gpu.language import tl
from triolet.kernels.sampling import (
    gpu_buffers,
    gpu_draw,
    gpu_filters,
    gpu_launch,
    gpu_penalties,
    gpu_threshold,
    numbers,
)
from triolet.kernels.sampling.gpu_buffers import (
    DeviceRows,
    DeviceSampled,
    SamplingLaunch,
    make_rows,
    make_sampled,
    make_workspace,
)
from triolet.kernels.sampling.rows import MAX_TOP, NONE_LEFT, NOT_FINITE, OK, SamplingRows
from triolet.loadtest.device.gpu_case import Wrong
from triolet.loadtest.device.gpu_check import fault
from triolet.loadtest.device.gpu_sampling import Float32Array, check_rows, csr, records, sampled, seeded, staged

from .cases import MACHINE, table_of
from .number_kernel import number_kernel

VOCAB = 300  # two blocks of 256, the last one short


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small rows have several blocks, and short lists several turns."""
    monkeypatch.setattr(gpu_buffers, "TABLE", table_of(SamplingLaunch(256, 4, 4)))
    monkeypatch.setattr(gpu_threshold, "CANDIDATES", tl.constexpr(128))
    monkeypatch.setattr(gpu_penalties, "EDITS", tl.constexpr(1))


def on_device(logits: Float32Array, rows: DeviceRows | SamplingRows, **options: bool) -> DeviceSampled:
    rows = staged(rows, VOCAB, "cpu") if isinstance(rows, SamplingRows) else rows
    return sampled(logits, rows, MACHINE, **options)


def check(logits: Float32Array, batch: SamplingRows) -> DeviceSampled:
    return check_rows(logits, batch, MACHINE)[0]


def drawn_logits(count: int, scale: float = 4.0) -> Float32Array:
    return (np.random.default_rng(count).normal(size=(count, VOCAB)) * scale).astype(np.float32)


def test_numbers_are_those_of_the_cpu() -> None:
    """Bit for bit; through kernels of one block."""
    size = 4096
    rng = np.random.default_rng(0)
    d = -np.geomspace(1e-9, 90, size).astype(np.float32)
    x = np.geomspace(1e-11, 2.0**30, size).astype(np.float32)
    words = rng.integers(0, 2**32, size, dtype=np.uint32)
    words[:2] = 0, 2**32 - 1
    expected = numbers.weight(np.maximum(d, numbers.LOWEST)), numbers.log(x), numbers.gumbel(words)
    for which, source in enumerate((d, x, words.view(np.int32))):
        out = torch.empty(size, dtype=torch.int32 if which == 0 else torch.float32)
        number_kernel[(1,)](torch.from_numpy(source), out, which, size)
        assert np.array_equal(out.numpy(), expected[which]), which


FILTER_ROWS: tuple[dict[str, float], ...] = (
    {"top_k": 5},
    {"top_p": 0.9},
    {"top_p": 0.5, "temperature": 3.0},
    {"min_p": 0.05},
    {"top_k": 40, "top_p": 0.8, "min_p": 0.02, "temperature": 1.7},
    {"top_k": 10**6, "top_p": 0.999999},
    {"top_p": 1e-6},
    {"top_k": 1},
    {"temperature": 0.0},
    {"temperature": 50.0, "top_p": 0.99},
)


def test_draws_are_the_definitions() -> None:
    """Every filter, alone and together, on rows with ties, excluded tokens and zeros of both signs."""
    count = len(FILTER_ROWS)
    logits = drawn_logits(count)
    logits[1::3] = np.round(logits[1::3] / 2)
    logits[2::3, np.random.default_rng(1).random(VOCAB) < 0.5] = -np.inf
    logits[-3] = np.where(logits[-3] > 0, np.float32(0.0), np.float32(-0.0))
    check(logits, SamplingRows(seeded({"top": row - 1} | asked for row, asked in enumerate(FILTER_ROWS))))


def test_top_p_stops_at_the_edge() -> None:
    """Equal weights, and a share that ends exactly at a token: that token is kept and the next is not."""
    logits = np.full((6, VOCAB), -np.inf, np.float32)
    logits[:, [3, 270, 280, 299]] = 1.5
    seeds: list[dict[str, float]] = [{"top_p": 0.5, "seed": seed} for seed in range(6)]
    found = check(logits, SamplingRows(records(*seeds)))
    assert {int(token) for token in found.ids} == {3, 270}


def penalty_case() -> tuple[Float32Array, SamplingRows]:
    """Greedy rows in which token 7 leads and token 270 is next: what each penalty does to 7 decides."""
    cases: tuple[tuple[float, float, int, dict[str, float]], ...] = (
        (5.0, 4.8, 0, {"presence": 0.9, "frequency": 0.1}),  # only in the prompt: neither applies
        (5.0, 4.8, 1, {"presence": 0.1, "frequency": 0.15}),
        (3.0, 1.8, 3, {"frequency": 0.5}),
        (2.0, 1.5, 0, {"repetition": 1.7}),
        (-1.0, -1.2, 2, {"repetition": 1.7}),
    )
    logits = np.full((len(cases), VOCAB), -5, np.float32)
    logits[:, 7], logits[:, 270] = [case[0] for case in cases], [case[1] for case in cases]
    starts, tokens = csr([[7, 290]] * len(cases))
    counts = np.array([times for case in cases for times in (case[2], 1)], np.int32)
    rows = records(*({"temperature": 0.0} | case[3] for case in cases))
    return logits, SamplingRows(rows, starts, tokens, counts)


def test_penalties_are_the_definitions() -> None:
    assert check(*penalty_case()).ids.tolist() == [7, 270, 270, 270, 270]


def test_bias_and_bans_are_the_definitions() -> None:
    """A banned token stays banned, whatever its bias."""
    logits = drawn_logits(3)
    best = logits.argmax(-1)
    bias_starts, bias_tokens = csr([[int(best[0]), 4], [], [270]])
    banned_starts, banned_tokens = csr([[int(best[0])], [int(best[1])], []])
    values = np.array([80, 3, 50], np.float32)
    rows = records({"temperature": 0.0}, {"seed": 3}, {"top_p": 0.9})
    batch = SamplingRows(
        rows, bias_starts=bias_starts, bias_tokens=bias_tokens, bias_values=values,
        banned_starts=banned_starts, banned_tokens=banned_tokens,
    )  # fmt: skip
    check(logits, batch)


def test_a_grammar_allows_its_tokens_only() -> None:
    """Line 1 of the masks allows a few tokens, line 0 none. Row 0 of the batch has no mask."""
    logits = drawn_logits(5)
    logits[:, 5] += 20  # far above all others, and not allowed
    bits = np.zeros((2, -(-VOCAB // 32) * 32), np.uint8)
    bits[1, [0, 31, 32, 270, 290, 299]] = 1
    rows = records({}, {"temperature": 0.0}, {"seed": 9, "top_p": 0.95, "top": 3}, {"seed": 4}, {"seed": 5})
    masks, lines = np.packbits(bits, axis=1, bitorder="little").view(np.uint32), np.array([-1, 1, 1, 1, 0], np.int32)
    found = check(logits, SamplingRows(rows, mask_lines=lines, masks=masks))
    assert found.ids[0] == 5
    assert np.isin(found.ids[1:4], [0, 31, 32, 270, 290, 299]).all()
    assert found.status.tolist() == [OK, OK, OK, OK, NONE_LEFT]


def test_rows_that_are_not_finite_are_reported_and_harm_nobody() -> None:
    logits = drawn_logits(5)
    logits[0, 299], logits[1, 200], logits[2], logits[3, 5] = np.nan, np.inf, -np.inf, -np.nan
    rows = records(*({"top": 3, "top_p": 0.9, "seed": row} for row in range(5)))
    found = check(logits, SamplingRows(rows))
    assert found.status.tolist() == [NOT_FINITE] * 4 + [OK]
    assert found.ids.tolist()[:4] == [0] * 4


def test_a_row_with_a_target_only_reports_it() -> None:
    logits = drawn_logits(2)
    check(logits, SamplingRows(records({"target": 17, "top": MAX_TOP}, {"target": 0, "top": -1})))


def test_a_row_is_the_same_alone_and_without_kernels_it_does_not_need() -> None:
    logits = drawn_logits(2)
    rows = records(*({"seed": row, "position": 5} for row in range(2)))
    together = on_device(logits, SamplingRows(rows))
    plain = on_device(logits, SamplingRows(rows), filters=False, reports=False)
    alone = [on_device(logits[row : row + 1], SamplingRows(rows[row : row + 1])).ids.item() for row in range(2)]
    assert together.ids.tolist() == plain.ids.tolist() == alone


def test_what_is_drawn_counts_as_seen() -> None:
    logits = drawn_logits(1)
    rows = staged(SamplingRows(records({"frequency": 100.0, "temperature": 0.0})), VOCAB, "cpu")
    rows.seen_slots[0] = 0
    order = np.argsort(-logits[0])[:3].tolist()
    options = {"filters": False, "reports": False}
    assert [on_device(logits, rows, **options).ids.item() for _ in range(3)] == order
    assert rows.seen[0, order].tolist() == [2, 2, 2]


def test_more_rows_than_fit_the_workspace_go_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (gpu_launch, gpu_buffers):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", 2)
    rows = records(*({"seed": row, "top": 1} for row in range(3)))
    bias_starts, bias_tokens = csr([[1], [], [2]])
    values = np.full(2, 90, np.float32)
    check(drawn_logits(3), SamplingRows(rows, bias_starts=bias_starts, bias_tokens=bias_tokens, bias_values=values))


def test_what_does_not_fit_is_refused() -> None:
    rows = make_rows(1, VOCAB, edits=1, slots=1, masks=1, device="cpu")
    workspace, out = make_workspace(1, VOCAB, 90, "cpu"), make_sampled(1, "cpu")
    assert 12 * VOCAB <= workspace.size <= 12 * VOCAB + 1024
    with pytest.raises(ValueError, match="2 rows of logits, but room for 1"):
        gpu_launch.sample(torch.zeros(2, VOCAB), rows, workspace, out, capability=90)
    with pytest.raises(ValueError, match="rows of 300 values"):
        gpu_launch.sample(torch.zeros(1, 64), rows, workspace, out, capability=90)


def draws_case() -> None:
    check(drawn_logits(3, 1.0), SamplingRows(seeded({"temperature": value} for value in (0.1, 1.5, 20.0))))


EDGE, MASKS, PENALTIES = (
    test_top_p_stops_at_the_edge, test_a_grammar_allows_its_tokens_only, test_penalties_are_the_definitions
)  # fmt: skip
FAULTS: list[tuple[ModuleType, str, str, str, Callable[[], None]]] = [
    (gpu_draw, "draw_kernel", "long(rows, row, SEED)", "long(rows, row, SEED) * 0", draws_case),
    (gpu_draw, "draw_kernel", "half(rows, row, POSITION, 0)", "half(rows, row, POSITION, 0) * 0", draws_case),
    (gpu_draw, "draw_kernel", "token + 64, b", "token + 64, c", draws_case),
    (gpu_draw, "contenders", " - largest) * sharp", " - largest)", draws_case),
    (gpu_filters, "rounded_up", "whole.to(tl.float64) < value", "whole.to(tl.float64) <= value", EDGE),
    (gpu_threshold, "keeps", "token <= last", "token < last", EDGE),
    (gpu_threshold, "last_tie", "rank <= ties", "rank < ties", EDGE),
    (gpu_penalties, "allowed", "(token % 32)", "(31 - token % 32)", MASKS),
    (gpu_penalties, "penalised", "value > 0.0", "value < 0.0", PENALTIES),
    (gpu_penalties, "penalised", "counts >> 1", "counts", PENALTIES),
]
USERS = (gpu_draw, gpu_filters, gpu_launch, gpu_penalties, gpu_threshold)


@pytest.mark.parametrize(("module", "name", "old", "new", "case"), FAULTS, ids=[planted[2][:30] for planted in FAULTS])
def test_planted_faults_fail(module: ModuleType, name: str, old: str, new: str, case: Callable[[], None]) -> None:
    users = [user for user in USERS if hasattr(user, name)]
    with fault(module, name, old, new, *users), pytest.raises(Wrong):
        case()
