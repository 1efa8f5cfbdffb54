"""The interpreter computes low precisions as a GPU does: widened exactly, rounded to nearest even, saturating."""

from __future__ import annotations

import inspect
from functools import partial

import numpy as np
import pytest
import torch
from triton.language.semantic import TritonSemantic

from triolet.kernels.gpu.interpreter import emulates
from triolet.kernels.gpu.language import INTERPRETED, jit, tl

SIZE = 64
PRECISIONS = [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
FLIP = tl.constexpr("xor.b32 $0, $1, -1;")


@emulates(FLIP.value)
def _flip(values: np.ndarray) -> np.ndarray:
    return ~values


@jit
def cast_kernel(source, target, SIZE: tl.constexpr):
    place = tl.arange(0, SIZE)
    tl.store(target + place, tl.load(source + place).to(target.dtype.element_ty))


@jit
def arithmetic_kernel(left, right, sums, largest, order, SIZE: tl.constexpr):
    place = tl.arange(0, SIZE)
    x, y = tl.load(left + place), tl.load(right + place)
    tl.store(sums + place, x * y + x)
    tl.store(largest, tl.max(x.to(tl.float32), 0))
    tl.store(order + place, (x > y).to(tl.int32))


@jit
def power_kernel(source, target, SIZE: tl.constexpr):
    place = tl.arange(0, SIZE)
    tl.store(target + place, tl.exp2(tl.load(source + place)))


@jit
def dot_kernel(left, right, out, SIZE: tl.constexpr):
    row, column = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    x, y = tl.load(left + row * SIZE + column), tl.load(right + row * SIZE + column)
    tl.store(out + row * SIZE + column, tl.dot(x, y, out_dtype=tl.float32))


@jit
def broadcast_kernel(target, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    tl.store(target + tl.arange(0, RIGHT), tl.arange(0, LEFT) + tl.arange(0, RIGHT))


@jit
def assembly_kernel(source, target, SIZE: tl.constexpr):
    place = tl.arange(0, SIZE)
    flipped = tl.inline_asm_elementwise(FLIP, "=r,r", [tl.load(source + place)], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(target + place, flipped)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5)) * 3


def test_the_suite_interprets() -> None:
    assert INTERPRETED


def test_the_language_is_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else small kernels take twice as long: names are looked up at every launch, and overflow checks do nothing."""
    integers = torch.arange(3 * SIZE, dtype=torch.int32).view(3, SIZE)
    launch = partial(arithmetic_kernel[(1,)], *integers, torch.empty(1), torch.empty_like(integers[0]), SIZE)
    launch()
    monkeypatch.setattr(inspect, "getmembers", None)
    monkeypatch.setattr(TritonSemantic, "less_equal", None)  # a part of the overflow check, and of nothing here
    launch()


def test_what_a_gpu_has_not_is_refused_as_ever() -> None:
    integers = torch.arange(SIZE, dtype=torch.int32)
    for shape, fault in (((48,), "power of 2"), ((), "sizes"), ((1 << 21,), "maximum tensor numel")):
        with pytest.raises(Exception, match=fault):
            tl.block_type(tl.int32, shape)
    with pytest.raises(Exception, match="incompatible dimensions"):
        broadcast_kernel[(1,)](integers, 4, 8)
    broadcast_kernel[(1,)](integers, 8, 8)
    assert integers[:8].tolist() == [2 * place for place in range(8)]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_casts_round_to_nearest_even_and_saturate(precision: torch.dtype) -> None:
    values = drawn(SIZE)
    values[:6] = torch.tensor([1e9, -1e9, 1.00390625, 1e-3, 0.0, 500.0])
    target = torch.empty(SIZE, dtype=precision)
    cast_kernel[(1,)](values, target, SIZE)
    limit = torch.finfo(precision).max
    expected = values.clamp(-limit, limit).to(precision)
    assert torch.equal(target.view(torch.uint8), expected.view(torch.uint8))
    if precision == torch.bfloat16:
        truncated = (values.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)  # as Triton's own cast does
        assert not torch.equal(truncated, expected)


@pytest.mark.parametrize("precision", PRECISIONS[:1])
def test_arithmetic_rounds_after_each_operation(precision: torch.dtype) -> None:
    x, y = drawn(2, SIZE).to(precision)
    sums, largest, order = torch.empty(SIZE, dtype=precision), torch.empty(1), torch.empty(SIZE, dtype=torch.int32)
    arithmetic_kernel[(1,)](x, y, sums, largest, order, SIZE)
    assert torch.equal(sums, x * y + x)
    assert largest.item() == x.float().max().item()
    assert torch.equal(order.bool(), x > y)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_products_accumulate_in_float32(precision: torch.dtype) -> None:
    x, y = drawn(2, SIZE, SIZE).to(precision)
    out = torch.empty(SIZE, SIZE)
    dot_kernel[(1,)](x, y, out, SIZE)
    exact = x.double() @ y.double()
    bound = SIZE * 2.0**-24 * (x.double().abs() @ y.double().abs())  # of a float32 sum of SIZE exact products
    assert bool(((out - exact).abs() <= bound).all())
    assert not bool(((out.to(torch.bfloat16).double() - exact).abs() <= bound).all())


def test_inline_assembly_is_emulated() -> None:
    source = torch.arange(SIZE, dtype=torch.int32)
    target = torch.empty_like(source)
    assembly_kernel[(1,)](source, target, SIZE)
    assert torch.equal(target, ~source)


def test_a_power_beyond_the_largest_is_infinite_and_no_warning() -> None:
    target = torch.empty(SIZE)
    power_kernel[(1,)](torch.full((SIZE,), 200.0), target, SIZE)
    assert bool(target.isinf().all())
