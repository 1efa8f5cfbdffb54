"""Exact values of the roofline, and that it undoes a measurement."""

import pytest
from msgspec.structs import replace

from triolet.models.plan.speed import Rates, cost_of_million, rates_of, speeds
from triolet.protocol.steps import TokenWork

WORK = TokenWork(weight_bytes=1000, all_weight_bytes=1000, kv_bytes=1, operations=2000, prompt_operations=1600)
RATES = Rates(bandwidth=10_000.0, operations=80_000.0)


def test_one_sequence_is_bound_by_memory_and_many_by_arithmetic() -> None:
    found = speeds(WORK, RATES, context=0, most=64)
    assert found.decode == 10  # 1,000 bytes at 10,000 a second
    assert found.balance == 4  # 0.1 s of reading, 0.025 s of computing for each
    assert (found.many, found.decode_many) == (4, 40)
    assert found.prefill == 50
    assert speeds(WORK, RATES, context=0, most=2).decode_many == 20


def test_a_mixture_reads_more_experts_for_more_sequences() -> None:
    mixture = replace(WORK, all_weight_bytes=3000)
    assert speeds(mixture, RATES, context=0, most=2).decode_many == 10  # each reads its own
    assert speeds(mixture, RATES, context=0, most=6).decode_many == pytest.approx(6 / 0.3)
    assert speeds(mixture, RATES, context=0, most=64).balance == 12


def test_the_cache_of_each_sequence_is_read_too() -> None:
    found = speeds(WORK, RATES, context=150, most=64)
    assert found.decode == pytest.approx(10_000 / 1150)
    assert found.balance == 10  # each takes 0.025 s of computing but 0.015 s of reading more
    assert found.decode_many == pytest.approx(10 / 0.25)
    assert speeds(WORK, RATES, context=300, most=64).balance is None  # reading a cache takes longer than computing
    assert speeds(WORK, RATES, context=300, most=64).many == 64


def test_what_is_not_known_is_not_predicted() -> None:
    nothing = speeds(WORK, Rates(bandwidth=None, operations=None), context=10, most=8)
    assert (nothing.decode, nothing.prefill, nothing.balance, nothing.decode_many) == (None,) * 4
    only_memory = speeds(WORK, replace(RATES, operations=None), context=0, most=8)
    assert (only_memory.decode, only_memory.prefill, only_memory.decode_many) == (10, None, 80)


def test_a_measurement_predicts_itself() -> None:
    rates = rates_of(WORK, decode=7.0, prefill=33.0, context=100, batch=1)
    again = speeds(WORK, rates, context=100, most=1)
    assert again.decode == pytest.approx(7.0)
    assert again.prefill == pytest.approx(33.0)
    assert again.measured
    assert rates_of(WORK, decode=7.0, prefill=33.0, context=100, batch=4).bandwidth is None


def test_what_a_million_tokens_cost() -> None:
    assert cost_of_million(3.6, 1000) == pytest.approx(1.0)
