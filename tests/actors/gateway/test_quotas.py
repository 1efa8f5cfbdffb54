"""Limits of keys: buckets beside naive counting, and what a gateway refuses."""

from collections.abc import Callable

import pytest
import trio
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st

from triolet.actors.gateway.quotas import MINUTE, Bucket, Quotas
from triolet.protocol.errors import ApiError
from triolet.protocol.events import Failed
from triolet.protocol.requests import Generate
from triolet.protocol.settings import KeySettings

from ..wiring import Wired

KEY = "ab" * 32
LIMITS = st.integers(1, 5000)
PAUSES = st.lists(st.one_of(st.just(0.0), st.floats(0, 200), st.floats(0, 0.1)), max_size=80)
START = 1e6  # of a clock: rounding must not matter


def begun(bucket: Bucket, pauses: list[float]) -> list[float]:
    """When a client was let in that asks after each of these pauses."""
    now, times = START, list[float]()
    for pause in pauses:
        now += pause
        if not bucket.wait(now):
            bucket.take(1, now)
            times.append(now)
    return times


@given(st.integers(1, 30), PAUSES)
def test_no_window_has_more_than_the_limit_and_what_comes_back_in_it(limit: int, pauses: list[float]) -> None:
    times = begun(Bucket(limit), pauses)
    for first, began in enumerate(times):
        for last, ended in enumerate(times[first:], first):
            assert last - first + 1 <= limit + (ended - began) * limit / MINUTE + 1e-4


@given(LIMITS, st.lists(st.floats(0, 10), min_size=1, max_size=200))
@example(7, [0.0] * 200)
@example(1, [0.0] * 200)
def test_who_keeps_to_the_rate_is_never_refused(limit: int, more: list[float]) -> None:
    pauses = [MINUTE / limit + pause for pause in more]
    assert len(begun(Bucket(limit), pauses)) == len(pauses)


@given(LIMITS)
def test_all_of_a_minute_may_come_at_once(limit: int) -> None:
    assert len(begun(Bucket(limit), [0.0] * (limit + 3))) == limit


@given(LIMITS, st.integers(0, 20_000), st.lists(st.floats(0, 1000), min_size=2, max_size=20))
def test_time_only_fills_it_and_who_waits_as_told_is_let_in(limit: int, taken: int, after: list[float]) -> None:
    bucket = Bucket(limit)
    bucket.take(taken, START)
    times = [START + pause for pause in sorted(after)]
    waits, left = [bucket.wait(now) for now in times], [bucket.left(now) for now in times]
    assert waits == sorted(waits, reverse=True)
    assert left == sorted(left)
    for now, wait, units in zip(times, waits, left, strict=True):
        assert (wait == 0) is (units >= 1)
        assert bucket.wait(now + wait) == 0
        naive = min(limit, limit - taken + (now - START) * limit / MINUTE)  # nothing was taken since
        assert naive - 1.001 <= units <= naive + 0.01


@given(LIMITS, st.lists(st.tuples(st.floats(0, 60), st.integers(0, 3000)), max_size=40))
def test_a_bucket_is_one_that_is_filled_bit_by_bit(limit: int, taken: list[tuple[float, int]]) -> None:
    bucket, level, now = Bucket(limit), float(limit), START
    for pause, units in taken:
        now += pause
        level = min(float(limit), level + pause * limit / MINUTE)
        assert abs(bucket.limit - bucket.reset(now) * limit / MINUTE - level) < 1e-3
        bucket.take(units, now)
        level -= units


def refused(quotas: Quotas, now: float, *, background: bool = False) -> ApiError:
    with pytest.raises(ApiError) as caught:
        quotas.check(KEY, now, background=background)
    assert (caught.value.code, caught.value.status) == ("rate_limit_exceeded", 429)
    return caught.value


def test_a_refusal_names_the_key_the_limit_and_when_to_come_again() -> None:
    quotas = Quotas([KeySettings(sha256=KEY, name="alice", requests_per_minute=2)])
    for _ in range(2):
        quotas.check(KEY, START)
        quotas.begin(KEY, START)
    error = refused(quotas, START)
    assert error.retry_after == 30
    assert error.message == (
        "the API key alice may use 2 requests a minute (requests_per_minute) and has used them; try again in 30 s"
    )
    assert refused(quotas, START + 29.9).retry_after == 1
    quotas.check(KEY, START + 30)
    quotas.check("another", START)


def test_tokens_are_taken_at_the_end_and_may_be_more_than_there_are() -> None:
    quotas = Quotas([KeySettings(sha256=KEY, tokens_per_minute=60)])
    for _ in range(3):
        quotas.check(KEY, START)  # nothing is known of these yet
        quotas.begin(KEY, START)
    quotas.end(KEY, 150, START)
    assert [(level.kind, level.left, level.reset) for level in quotas.levels(KEY, START)] == [("tokens", -90, 150.0)]
    error = refused(quotas, START)
    assert (error.retry_after, "60 tokens a minute (tokens_per_minute)" in error.message) == (91, True)
    quotas.check(KEY, START + 91)


def test_the_longest_wait_is_told() -> None:
    quotas = Quotas([KeySettings(sha256=KEY, tokens_per_minute=60, requests_per_minute=1, concurrent=1)])
    quotas.begin(KEY, START)
    assert refused(quotas, START).retry_after == 60
    assert "1 unfinished requests (concurrent)" in refused(quotas, START + 60).message
    quotas.end(KEY, 200, START + 60)
    assert refused(quotas, START + 60).retry_after == 141


def test_lines_of_batches_take_tokens_alone() -> None:
    quotas = Quotas([KeySettings(sha256=KEY, tokens_per_minute=60, requests_per_minute=1, concurrent=1)])
    for _ in range(3):
        quotas.check(KEY, START, background=True)
        quotas.begin(KEY, START, background=True)
    quotas.check(KEY, START)
    quotas.begin(KEY, START)
    quotas.end(KEY, 0, START, background=True)
    assert "concurrent" in refused(quotas, START + 60).message  # a line's end is not the request's
    quotas.end(KEY, 0, START)
    quotas.end(KEY, 120, START, background=True)
    assert "tokens" in refused(quotas, START, background=True).message
    assert "tokens" in refused(quotas, START).message


async def test_a_gateway_counts_what_it_lets_in_and_what_that_used(
    wired: Callable[..., Wired], generate: Callable[..., Generate], autojump_clock: trio.testing.MockClock
) -> None:
    key = KeySettings(sha256=KEY, name="alice", requests_per_minute=60, tokens_per_minute=600, concurrent=2)
    gateway = wired(quotas=Quotas([key])).gateway
    outbox = gateway.submit(generate("a", tenant=KEY))
    gateway.submit(generate("b", tenant=KEY))
    with pytest.raises(ApiError, match="2 unfinished requests") as caught:
        gateway.submit(generate("c", tenant=KEY))
    assert caught.value.retry_after == 1
    gateway.submit(generate("d", tenant="another"))
    gateway.admitted("a", 700)
    gateway.started("a")
    gateway.fail("a", ApiError("engine_error", "planted"))
    assert isinstance((await outbox.drain())[-1], Failed)
    with pytest.raises(ApiError, match="600 tokens a minute") as caught:
        gateway.submit(generate("c", tenant=KEY))
    assert caught.value.retry_after == 11
    assert gateway.accounts.key_refused == {"alice": 2}
    assert gateway.accounts.key_tokens == {"alice": 700}
    gateway.cancel("b")
    await trio.sleep(10.2)
    gateway.submit(generate("c", tenant=KEY))
    assert gateway.quotas.levels(KEY, trio.current_time())[0].left == 59  # those of a and b have come back


async def test_a_request_that_is_refused_before_its_prompt_is_begun_uses_no_tokens(
    wired: Callable[..., Wired], generate: Callable[..., Generate]
) -> None:
    gateway = wired(quotas=Quotas([KeySettings(sha256=KEY, tokens_per_minute=600)])).gateway
    gateway.submit(generate("a", tenant=KEY))
    gateway.admitted("a", 700)
    gateway.fail("a", ApiError("deadline_unmeetable", "in 9 s", retry_after=9))
    assert [level.left for level in gateway.quotas.levels(KEY, trio.current_time())] == [600]


def test_lines_of_a_batch_leave_half_of_the_tokens_to_the_keys_other_requests() -> None:
    """Sixty-four rows of lines of 1,000 tokens that take ten seconds, and a request of 10 tokens each second."""
    quotas = Quotas([KeySettings(sha256=KEY, tokens_per_minute=20_000)])
    running, used, refusals = list[float](), 0, 0
    for second in range(1800):
        now = START + second
        while running and running[0] <= now:
            running.pop(0)
            quotas.end(KEY, 1000, now, background=True)
            used += 1000
        while len(running) < 64:
            try:
                quotas.check(KEY, now, background=True)
            except ApiError:
                break
            quotas.begin(KEY, now, background=True)
            running.append(now + 10)
        try:
            quotas.check(KEY, now)
        except ApiError:
            refusals += 1
        else:
            quotas.begin(KEY, now)
            quotas.end(KEY, 10, now)
            used += 10
    assert refusals == 0
    assert used > 0.95 * 20_000 * 30  # and nothing is left unused
