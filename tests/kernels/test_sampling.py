"""The sampler: its numbers against mathematics, the kernel against the reference bit for bit, and its promises."""

import math
import subprocess
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.kernels.compile_cache import compilations
from triolet.kernels.sampling import numbers, reference
from triolet.kernels.sampling.launch import CpuSampler
from triolet.kernels.sampling.rows import MAX_TOP, NONE_LEFT, NOT_FINITE, OK, ROW, Sampled, SamplingRows, mask_words

Float32Array = npt.NDArray[np.float32]
NEUTRAL = {"repetition": 1, "temperature": 1, "top_p": 1, "target": -1, "top": -1}


def make_rows(count: int, **fields: object) -> npt.NDArray[np.void]:
    rows = np.zeros(count, ROW)
    for name, value in {**NEUTRAL, **fields}.items():
        rows[name] = value
    return rows


def draw(logits: npt.ArrayLike, **fields: object) -> Sampled:
    table = np.atleast_2d(np.asarray(logits, np.float32))
    return CpuSampler(table.shape[1]).sample(table, SamplingRows(make_rows(len(table), **fields)))


# numbers


def test_weight_is_exp() -> None:
    d = -np.concatenate([np.linspace(0, 25, 20_001), np.geomspace(1e-9, 1, 1000)]).astype(np.float32)
    exact = np.exp(d.astype(np.float64)) * numbers.ONE
    # 4 roundings of float32 (2^-24 each) in exp, and half a unit of the integer.
    assert np.all(np.abs(numbers.weight(d) - exact) <= 4 * 2.0**-24 * exact + 0.5 + 1e-6)
    assert numbers.weight(np.zeros(1, np.float32)) == numbers.ONE
    assert numbers.weight(np.full(1, numbers.LOWEST)) == 0


def test_log_is_log() -> None:
    x = np.geomspace(1e-11, 30, 50_001).astype(np.float32)
    exact = np.log(x.astype(np.float64))
    assert np.all(np.abs(numbers.log(x) - exact) <= 4 * 2.0**-24 * np.maximum(np.abs(exact), 1))


def test_gumbel_is_minus_log_minus_log() -> None:
    # Where w rounds (its unit is 2^-25 near 1), 1 - w is off by at most that: compare below 1 - 2^-8.
    words = np.concatenate([np.arange(1000), np.arange(0, 2**32 - 2**24, 99_991)]).astype(np.uint32)
    exact = -np.log(-np.log1p(-(words.astype(np.float64) + 0.5) * 2.0**-32))
    assert np.abs(numbers.gumbel(words) - exact).max() < 1e-5
    extremes = numbers.gumbel(np.array([0, 2**32 - 1], np.uint32))
    assert np.all(np.isfinite(extremes))
    assert extremes[0] < numbers.MAX_GUMBEL


def test_philox_known_answers() -> None:
    """The test vectors of the Random123 distribution that our counter layout can express (its last word is 0)."""
    words = numbers.philox(np.zeros(1, np.uint32), 0, 0)
    assert [int(word[0]) for word in words] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_draws_follow_the_distribution() -> None:
    """Over 4096 fixed seeds each count stays within 5 standard deviations, and the bound notices 5 percent."""
    probabilities = np.array([0.5, 0.25, 0.15, 0.07, 0.02, 0.01])
    count = 4096
    logits = np.tile(np.log(probabilities).astype(np.float32), (count, 1))
    seeds = np.arange(count, dtype=np.uint64)

    def within(drawn: npt.NDArray[np.int32], expected: npt.NDArray[np.float64]) -> bool:
        observed = np.bincount(drawn, minlength=len(expected))
        bound = 5 * np.sqrt(count * expected * (1 - expected))
        return bool(np.all(np.abs(observed - count * expected) <= bound))

    drawn = draw(logits, seed=seeds).tokens
    assert within(drawn, probabilities)
    assert not within(drawn, np.array([0.45, 0.30, 0.15, 0.07, 0.02, 0.01]))
    sharper = probabilities**2 / (probabilities**2).sum()
    assert within(draw(logits, seed=seeds, temperature=0.5).tokens, sharper)
    assert within(draw(logits, seed=seeds, position=7).tokens, probabilities)


# the kernel is the reference


@st.composite
def problems(draw_from: st.DrawFn) -> tuple[Float32Array, SamplingRows]:
    """Logits and rows with everything in them: ties, -inf, NaN, sparse lists, extreme parameters."""
    rng = np.random.default_rng(draw_from(st.integers(0, 2**32 - 1)))
    width, count = draw_from(st.sampled_from([1, 5, 64, 100, 256, 257, 1500])), draw_from(st.integers(1, 6))
    logits = (rng.normal(size=(count, width)) * draw_from(st.sampled_from([0.01, 1, 5, 40]))).astype(np.float32)
    kind = draw_from(st.sampled_from(["normal", "ties", "-inf", "zeros", "broken"]))
    if kind == "ties":
        logits = np.round(logits)
    elif kind == "-inf":
        logits[rng.random(logits.shape) < 0.4] = -np.inf
    elif kind == "zeros":
        logits = np.where(rng.random(logits.shape) < 0.5, np.float32(0.0), np.float32(-0.0))
    elif kind == "broken":
        logits[rng.integers(count), rng.integers(width)] = rng.choice([np.nan, -np.nan, np.inf])
    choices: dict[str, list[float]] = {
        "repetition": [1, 1.3, 0.7],
        "presence": [0, 0.5, -2],
        "frequency": [0, 0.2],
        "temperature": [0, 0.3, 1, 50, 1e-4],
        "top_k": [0, 0, 1, 2, 40, 10**6],
        "min_p": [0, 0, 0.01, 0.3, 1],
        "top_p": [1, 0.5, 0.9, 0.999999, 1e-6],
        "target": [-1, -1, 0],
        "top": [-1, 0, 1, 7, MAX_TOP],
    }
    rows = make_rows(count, **{name: rng.choice(values, count) for name, values in choices.items()})
    rows["seed"] = rng.integers(0, 2**64, count, dtype=np.uint64)
    rows["position"] = rng.integers(0, 2**40, count)

    def sparse(most: int, distinct: bool) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        sizes = rng.integers(0, min(most, width) + 1, count)
        ids = [rng.choice(width, int(size), replace=not distinct) for size in sizes]
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), np.concatenate(ids).astype(np.int32)

    batch = SamplingRows(rows)
    if draw_from(st.booleans()):
        batch.seen_starts, batch.seen_tokens = sparse(9, distinct=True)
        batch.seen_counts = rng.integers(0, 4, len(batch.seen_tokens)).astype(np.int32)
    if draw_from(st.booleans()):
        batch.bias_starts, batch.bias_tokens = sparse(4, distinct=False)
        batch.bias_values = (rng.normal(size=len(batch.bias_tokens)) * 10).astype(np.float32)
    if draw_from(st.booleans()):
        batch.banned_starts, batch.banned_tokens = sparse(4, distinct=False)
    if draw_from(st.booleans()):
        share = draw_from(st.sampled_from([0.02, 0.5, 0.99]))  # words that allow nothing, some and all of their tokens
        batch.masks = masks_of(rng.random((3, width)) < share)
        batch.mask_lines = rng.integers(-1, 3, count).astype(np.int32)
    return logits, batch


def masks_of(allowed: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    """Masks from flags [lines, vocab]. What lies behind the vocabulary in the last word may be anything."""
    lines, width = allowed.shape
    bits = np.ones((lines, mask_words(width) * 32), np.uint8)
    bits[:, :width] = allowed
    return np.packbits(bits, axis=1, bitorder="little").view(np.uint32)


@given(problems())
@settings(max_examples=150, deadline=None)
def test_kernel_equals_reference(problem: tuple[Float32Array, SamplingRows]) -> None:
    logits, batch = problem
    before = logits.copy()
    with np.errstate(all="ignore"):
        expected = reference.sample(logits, batch)
    result = CpuSampler(logits.shape[1]).sample(logits, batch)
    assert np.array_equal(logits, before, equal_nan=True)
    assert result.status.tolist() == expected.status.tolist()
    for row in np.flatnonzero(result.status == OK):
        assert result.tokens[row] == expected.tokens[row]
        top = min(int(batch.rows["top"][row]), logits.shape[1])
        if top >= 0:
            assert result.ranks[row] == expected.ranks[row]
            assert result.top_tokens[row, :top].tolist() == expected.top_tokens[row, :top].tolist()
            # The last bit of a float64 logarithm may differ between libraries; it is rounded to float32 afterwards.
            np.testing.assert_allclose(result.logprobs[row], expected.logprobs[row], rtol=2**-23)
            np.testing.assert_allclose(
                result.top_logprobs[row, :top], expected.top_logprobs[row, :top], rtol=2**-23, atol=1e-12
            )


def test_a_perturbed_reference_is_noticed() -> None:
    """The comparison above would see a draw that used the next position, or one token more in the nucleus."""
    rng = np.random.default_rng(5)
    logits = rng.normal(size=(64, 300)).astype(np.float32)
    rows = make_rows(64, seed=np.arange(64), top_p=0.5)
    tokens = draw(logits, seed=np.arange(64), top_p=0.5).tokens
    assert np.array_equal(tokens, reference.sample(logits, SamplingRows(rows)).tokens)
    rows["position"] += 1
    assert not np.array_equal(tokens, reference.sample(logits, SamplingRows(rows)).tokens)
    rows["position"] -= 1
    rows["top_p"] = 0.6
    assert not np.array_equal(tokens, reference.sample(logits, SamplingRows(rows)).tokens)


# promises


def test_a_draw_does_not_depend_on_the_batch() -> None:
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(12, 1000)).astype(np.float32) * 3
    rows = make_rows(12, seed=rng.integers(0, 2**63, 12), position=np.arange(12), top_k=[0, 5, 50] * 4)
    sampler = CpuSampler(1000)
    together = sampler.sample(logits, SamplingRows(rows)).tokens
    order = rng.permutation(12)
    assert np.array_equal(sampler.sample(logits[order], SamplingRows(rows[order])).tokens, together[order])
    alone = [int(sampler.sample(logits[i : i + 1], SamplingRows(rows[i : i + 1])).tokens[0]) for i in range(12)]
    assert alone == together.tolist()


@given(problems(), st.integers(2, 4))
@settings(max_examples=30, deadline=None)
def test_rows_shared_between_threads_are_the_same(problem: tuple[Float32Array, SamplingRows], threads: int) -> None:
    logits, batch = problem
    logits = np.ascontiguousarray(np.tile(logits, (3, 1)))
    batch = repeated(batch, 3)
    alone = CpuSampler(logits.shape[1]).sample(logits, batch)
    sampler = CpuSampler(logits.shape[1], threads)
    for _ in range(2):
        shared = sampler.sample(logits, batch)
        for name in ("tokens", "status", "logprobs", "ranks", "top_tokens", "top_logprobs"):
            usable = alone.status == OK if name != "status" else slice(None)
            assert np.array_equal(getattr(alone, name)[usable], getattr(shared, name)[usable])


def repeated(batch: SamplingRows, times: int) -> SamplingRows:
    """The rows and their lists so many times over."""
    result = SamplingRows(np.tile(batch.rows, times), mask_lines=np.tile(batch.mask_lines, times), masks=batch.masks)
    for kind, fields in (
        ("seen", ("tokens", "counts")), ("bias", ("tokens", "values")), ("banned", ("tokens",))
    ):  # fmt: skip
        starts = getattr(batch, f"{kind}_starts")
        if starts.size:
            shifts = [starts[:-1] + starts[-1] * index for index in range(times)]
            setattr(result, f"{kind}_starts", np.concatenate([*shifts, [starts[-1] * times]]))
            for field in fields:
                values = getattr(batch, f"{kind}_{field}")
                setattr(result, f"{kind}_{field}", np.tile(values[: starts[-1]], times))
    return result


def test_a_forked_child_samples_with_threads_of_its_own() -> None:
    program = """
import os
import numpy as np
from triolet.kernels.sampling.launch import CpuSampler
from triolet.kernels.sampling.rows import ROW, SamplingRows
rows = np.zeros(8, ROW)
rows["temperature"] = rows["repetition"] = rows["top_p"] = 1
rows["target"] = rows["top"] = -1
rows["seed"] = np.arange(8)
logits = np.random.default_rng(0).normal(size=(8, 1000)).astype(np.float32)
sampler = CpuSampler(1000, threads=2)
parent = sampler.sample(logits, SamplingRows(rows)).tokens
child = os.fork()
if not child:
    os._exit(0 if np.array_equal(sampler.sample(logits, SamplingRows(rows)).tokens, parent) else 1)
assert os.waitpid(child, 0)[1] == 0
print("done")
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout == "done\n", result.stderr


def test_padded_rows_of_a_runner_are_read_in_place() -> None:
    rng = np.random.default_rng(2)
    padded = rng.normal(size=(3, 128)).astype(np.float32)
    padded[:, 100:] = np.nan
    view = padded[:, :100]
    rows = SamplingRows(make_rows(3, temperature=0))
    assert np.array_equal(CpuSampler(100).sample(view, rows).tokens, view.argmax(axis=1))


def test_greedy_takes_the_first_of_equals() -> None:
    assert draw([[1, 5, 5, 2]], temperature=0).tokens == [1]
    assert draw([[1, 5, 5, 2]], top_k=1).tokens == [1]
    assert draw([[-0.0, 0.0, -1]], temperature=0).tokens == [0]


def test_greedy_rows_are_what_sample_gives() -> None:
    """Padded rows, equal logits, a row without a token; the same array again after its content has changed."""
    rng = np.random.default_rng(3)
    padded = rng.integers(-9, 9, (5, 5000)).astype(np.float32)
    logits = padded[:, :4500]
    rows = SamplingRows(make_rows(5, temperature=0))
    sampler = CpuSampler(4500)
    for bad in (np.nan, np.inf, 0.0):
        logits[3, 4444] = bad
        logits += rng.integers(-2, 3, logits.shape).astype(np.float32)
        wanted, found = sampler.sample(logits, rows), sampler.greedy(logits)
        sound = wanted.status == OK
        assert np.array_equal(found.status, wanted.status)
        assert np.array_equal(found.tokens[sound], wanted.tokens[sound])
        assert sound.sum() == (5 if bad == 0 else 4)
    with pytest.raises(ValueError, match="expected float32 logits"):
        sampler.greedy(padded)


def test_filters_keep_what_they_say() -> None:
    logits = np.tile(np.log(np.array([0.1, 0.4, 0.2, 0.2, 0.1], np.float32)), (2000, 1))
    seeds = np.arange(2000)

    def support(**fields: object) -> set[int]:
        return set(draw(logits, seed=seeds, **fields).tokens.tolist())

    assert support() == {0, 1, 2, 3, 4}
    assert support(top_k=2) == {1, 2}  # token 2 before 3: equal, smaller id
    assert support(top_k=4) == {0, 1, 2, 3}
    assert support(top_p=0.39) == {1}
    assert support(top_p=0.55) == {1, 2}
    assert support(min_p=0.4) == {1, 2, 3}
    assert support(min_p=1.0) == {1}
    assert support(top_k=3, top_p=0.7) == {1, 2}  # 0.4 and 0.2 are 3/4 of what top_k left
    assert support(top_k=100, top_p=1.0) == {0, 1, 2, 3, 4}


def test_penalties_bias_and_bans() -> None:
    logits = np.array([[2.0, 1.9, -1.0, 0.0]], np.float32)

    def greedy(repetition: float = 1, presence: float = 0, frequency: float = 0, **lists: Any) -> int:  # Any: arrays
        rows = make_rows(1, temperature=0, repetition=repetition, presence=presence, frequency=frequency)
        return int(CpuSampler(4).sample(logits, SamplingRows(rows, **lists)).tokens[0])

    one = np.array([0, 1], np.int64)
    seen: dict[str, Any] = {"seen_starts": one, "seen_tokens": np.array([0], np.int32)}
    once, prompt_only = np.array([1], np.int32), np.array([0], np.int32)
    assert greedy() == 0
    assert greedy(repetition=1.1, seen_counts=prompt_only, **seen) == 1
    assert greedy(presence=0.2, seen_counts=once, **seen) == 1
    assert greedy(presence=0.2, seen_counts=prompt_only, **seen) == 0  # presence counts the output alone
    assert greedy(frequency=0.04, seen_counts=np.array([3], np.int32), **seen) == 1
    assert greedy(frequency=0.04, seen_counts=np.array([2], np.int32), **seen) == 0
    biased: dict[str, Any] = {"bias_starts": one, "bias_tokens": np.array([3], np.int32)}
    assert greedy(bias_values=np.array([2.1], np.float32), **biased) == 3
    assert greedy(banned_starts=one, banned_tokens=np.array([0], np.int32)) == 1
    everything = np.arange(4, dtype=np.int32)
    result = CpuSampler(4).sample(
        logits,
        SamplingRows(make_rows(1), banned_starts=np.array([0, 4], np.int64), banned_tokens=everything),
    )
    assert result.status == [NONE_LEFT]


def test_a_mask_allows_its_tokens_only() -> None:
    """A row without a line is free; bans count within the mask; a row whose mask allows nothing fails alone."""
    logits = np.tile(np.linspace(4, 0, 70, dtype=np.float32), (5, 1))
    allowed = np.zeros((3, 70), np.bool_)
    allowed[0, [2, 40, 69]] = allowed[1] = True
    lines = np.array([-1, 0, 1, 0, 2], np.int32)
    batch = SamplingRows(make_rows(5, temperature=[0, 0, 0, 1, 1]), mask_lines=lines, masks=masks_of(allowed))
    result = CpuSampler(70).sample(logits, batch)
    assert result.tokens[:3].tolist() == [0, 2, 0]
    assert result.tokens[3] in {2, 40, 69}
    assert result.status.tolist() == [OK, OK, OK, OK, NONE_LEFT]
    logits[2, 3], logits[4] = np.nan, -np.inf  # what a mask forbids or leaves is not the reason
    assert CpuSampler(70).sample(logits, batch).status.tolist() == [OK, OK, NOT_FINITE, OK, NOT_FINITE]
    logits[:] = np.linspace(4, 0, 70, dtype=np.float32)
    batch.banned_starts, batch.banned_tokens = np.array([0, 0, 1, 1, 1, 1], np.int64), np.array([2], np.int32)
    assert CpuSampler(70).sample(logits, batch).tokens[1] == 40
    with pytest.raises(ValueError, match="masks of 4 words"):
        CpuSampler(100).sample(np.zeros((5, 100), np.float32), batch)


def test_logprobs_are_of_the_raw_logits() -> None:
    logits = np.random.default_rng(3).normal(size=(1, 500)).astype(np.float32) * 4
    exact = logits[0].astype(np.float64)
    exact = exact - exact.max() - math.log(np.exp(exact - exact.max()).sum())
    result = draw(logits, temperature=0.3, seed=9, top=20)
    # Weights are rounded to 2^-30 of the largest: 500 of them are off by 500 * 2^-31 together, beside float32's 1e-6.
    assert abs(result.logprobs[0] - exact[result.tokens[0]]) < 3e-6
    order = np.argsort(-exact, kind="stable")
    assert order[result.ranks[0] - 1] == result.tokens[0]
    order = order[:20]
    assert result.top_tokens[0].tolist() == order.tolist()
    assert np.abs(result.top_logprobs[0] - exact[order]).max() < 3e-6


def test_a_broken_row_fails_alone() -> None:
    rng = np.random.default_rng(4)
    logits = rng.normal(size=(4, 300)).astype(np.float32)
    expected = draw(logits, seed=1).tokens
    logits[1, 17], logits[2, 299] = np.nan, np.inf
    result = draw(logits, seed=1)
    assert result.status.tolist() == [OK, NOT_FINITE, NOT_FINITE, OK]
    assert (result.tokens[0], result.tokens[3]) == (expected[0], expected[3])


def test_nothing_compiles_after_warm_up() -> None:
    CpuSampler(64).warm_up()
    before = compilations()
    rng = np.random.default_rng(6)
    for width in (1, 33, 700):
        rows = make_rows(5, top_k=[0, 3, 0, 0, 0], top_p=[1, 1, 0.5, 1, 1], min_p=[0, 0, 0, 0.2, 0], top=3)
        starts, ids = np.arange(6, dtype=np.int64), np.zeros(5, np.int32)
        batch = SamplingRows(rows, starts, ids, ids, starts, ids, np.ones(5, np.float32), starts, ids)
        batch.mask_lines, batch.masks = ids, masks_of(np.ones((1, width), np.bool_))
        CpuSampler(width).sample(rng.normal(size=(5, width)).astype(np.float32), batch)
    assert compilations() == before


def test_wrong_logits_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected float32 logits \[1, 8\]"):
        CpuSampler(8).sample(np.zeros((1, 9), np.float32), SamplingRows(make_rows(1)))
