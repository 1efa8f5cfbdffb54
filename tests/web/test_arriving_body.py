"""A body that keeps coming has the time that it needs, one that stops has not; what nobody reads is not held."""

import pytest
import trio
from trio.testing import MockClock

from triolet.protocol.errors import ApiError
from triolet.web.arriving_body import BODY_SECONDS, SLOWEST, ArrivingBody
from triolet.web.body_budget import SMALL_BYTES, BodyBudget

PIECE = b"x" * SLOWEST  # a second's worth at the lowest rate


def read(data: bytes) -> int:
    return len(data)


async def test_a_body_at_the_lowest_rate_arrives_however_large(autojump_clock: MockClock) -> None:
    body = ArrivingBody(BodyBudget(2**20), 2**20)

    async def upload() -> None:
        for _ in range(100):
            await trio.sleep(1.0)
            body.add(PIECE, "")
        body.end()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(upload)
        assert await body.read(read, "") == 100 * SLOWEST


async def test_a_body_that_stops_is_not_waited_for(autojump_clock: MockClock) -> None:
    body = ArrivingBody(BodyBudget(2**20), 2**20)
    body.add(PIECE, "")
    began = trio.current_time()
    with pytest.raises(ApiError, match="did not arrive in time") as caught:
        await body.read(read, "")
    assert caught.value.status == 408
    assert trio.current_time() - began == pytest.approx(BODY_SECONDS + 1)  # of the mock clock


@pytest.mark.parametrize("expected", [0, 2**17])
async def test_a_body_that_is_too_large_is_refused_at_once_and_nothing_is_held(expected: int) -> None:
    budget = BodyBudget(2**20)
    body = ArrivingBody(budget, 2**17 - 1, expected)
    body.add(bytes(2**16), "a")
    body.add(bytes(2**16), "a")
    with pytest.raises(ApiError) as caught:
        await body.read(read, "a")
    assert caught.value.status == 413
    assert budget.take("b", 2**19)  # the half that one tenant may have


async def test_a_body_counts_for_the_tenant_that_its_key_names_later() -> None:
    budget = BodyBudget(2**20)
    body = ArrivingBody(budget, 2**20)
    body.add(bytes(SMALL_BYTES + 2**18), "")
    body.add(bytes(2**18), "a")
    assert not budget.take("a", 1)
    assert budget.take("", 2**18)
    body.release()
    assert budget.take("a", 2**18)
