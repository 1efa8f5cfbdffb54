"""What adapters add on the GPU against float64: any mix of adapters in a batch; planted faults fail."""

from __future__ import annotations

import pytest
import torch

from triolet.kernels.low_rank import gpu
from triolet.kernels.low_rank.gpu import low_rank, low_rank_floats
from triolet.kernels.low_rank.reference import low_rank_reference
from triolet.loadtest.device.gpu_check import drawn, fault

RANK, PLACES = 16, 3
MIX = (2, -1, 0, 2, 1, 1, -1, 0, 2, 2, 2, 0, 1, -1, 0, 2, 1, 1, 0)  # two tiles, the last one ragged
NONE = (-1,) * 5


def check(
    adapters: tuple[int, ...] = MIX, parts: tuple[int, ...] = (80, 48, 48), columns: int = 160,
    scaled: torch.dtype | None = None, dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:  # fmt: skip
    """Against exact sums of the same values. Allowed: twice the error of rounding A x and the result to bfloat16; in
    float32, for each of the sums' additions, 2^-24 of what they hold, which is never more than their terms' sizes.
    """
    tokens, channels = len(adapters), sum(parts)
    x, before = drawn(1, tokens, columns).to(dtype), drawn(2, tokens, channels).to(dtype)
    a = drawn(3, PLACES, len(parts) * RANK, columns).to(dtype) * columns**-0.5
    b = drawn(4, PLACES, channels + 8, RANK).to(dtype)[:, :channels]  # places lie apart
    scales = None
    exact_x = x.double()
    if scaled is not None:
        scales = torch.linspace(0.5, 3, tokens)
        x = (8 * x).to(scaled)
        exact_x = x.double() * scales[:, None]
    numbers = torch.tensor(adapters, dtype=torch.int32)
    out = before.clone()
    workspace = torch.full((low_rank_floats(tokens, columns, len(parts), RANK),), torch.nan)
    low_rank(x, numbers, a, b, out, workspace, parts=parts, x_scales=scales)
    expected, allowed, start = before.double(), torch.zeros(tokens, channels, dtype=torch.float64), 0
    for part, size in enumerate(parts):
        own_a, own_b = a[:, part * RANK : (part + 1) * RANK], b[:, start : start + size]
        exact = torch.from_numpy(low_rank_reference(exact_x, numbers + 1, list(own_a.double()), list(own_b.double())))
        expected[:, start : start + size] += exact
        for row, number in enumerate(adapters):
            if number >= 0 and dtype == torch.float32:
                sizes = own_b[number].double().abs() @ (own_a[number].double().abs() @ exact_x[row].abs())
                sizes += before[row, start : start + size].double().abs()
                allowed[row, start : start + size] = (columns + RANK + 1) * 2**-24 * sizes
            elif number >= 0:
                small = own_a[number].double() @ exact_x[row]
                plain = before[row, start : start + size].double() + own_b[number].double() @ small.bfloat16().double()
                rounded = plain.bfloat16().double()
                allowed[row, start : start + size] = 2 * (rounded - expected[row, start : start + size]).abs().max()
        start += size
    assert bool(((out.double() - expected).abs() <= allowed).all())
    return out


@pytest.mark.parametrize("adapters", [MIX, NONE, (1,)])
def test_every_row_gets_its_own_adapter(adapters: tuple[int, ...]) -> None:
    check(adapters)


def test_one_part_and_a_split_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "SPLIT_K", 128)
    check(parts=(72,), columns=328)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_scaled_rows_of_8_bits(dtype: torch.dtype) -> None:
    check(parts=(64, 64), scaled=dtype)


def test_float32() -> None:
    check(columns=168, dtype=torch.float32)
    for function, old, new in (
        ("shrink_kernel", ".to(a.dtype.element_ty)", ".to(tl.bfloat16).to(tl.float32)"),
        ("expand_kernel", "small.to(weights.dtype)", "small.to(tl.bfloat16).to(tl.float32)"),
    ):
        with fault(gpu, function, old, new), pytest.raises(AssertionError):
            check(columns=168, dtype=torch.float32)


def test_a_rows_bits_do_not_depend_on_its_neighbours() -> None:
    whole = check()
    for row in (0, 5, 18):
        alone = check(tuple(number if place == row else -1 for place, number in enumerate(MIX)))
        assert torch.equal(alone[row], whole[row])


@pytest.mark.parametrize(
    ("function", "old", "new"),
    [
        ("shared_rows", "numbers == own", "numbers >= 0"),
        ("shared_rows", "0) == member)", "0) <= member)"),
        ("shrink_kernel", "(part * RANK + rank)", "rank"),
        ("expand_kernel", "* stride_b", "* N"),
        ("expand_kernel", "begin = FIRST + (part - 1) * OTHER", "begin = FIRST"),
    ],
)
def test_planted_faults_fail(function: str, old: str, new: str) -> None:
    with fault(gpu, function, old, new), pytest.raises(AssertionError):
        check()


def test_what_does_not_fit_is_refused() -> None:
    x, numbers = torch.zeros(1, 32, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.int32)
    b = torch.zeros(1, 64, 8, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="rank 8: expected a power of two"):
        low_rank(x, numbers, torch.zeros(1, 8, 32), b, torch.zeros(1, 64), torch.zeros(9), parts=(64,))
