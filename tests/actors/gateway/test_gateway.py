"""The gateway: places, exactly one terminal event, usage and times, credit, and refusals."""

import logging
from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from triolet.protocol.errors import ApiError
from triolet.protocol.events import ChoiceFinished, Failed, Finished, Started, Token
from triolet.protocol.messages import Cancel, Credit
from triolet.protocol.requests import Generate
from triolet.protocol.settings import LimitSettings

from ..wiring import Wired

Wire = Callable[..., Wired]
Make = Callable[..., Generate]


def token(text: str, tokens: int = 1, index: int = 0) -> Token:
    return Token(id="r1", index=index, text=text, tokens=tokens)


async def test_a_request_ends_once_with_usage_and_times(
    wired: Wire, generate: Make, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "triolet.requests")
    house = wired()
    outbox = house.gateway.submit(generate())
    assert (await house.tokenizer.receive()).id == "r1"
    house.gateway.admitted("r1", 7)
    mock_clock.jump(1.0)
    house.gateway.started("r1", cached_tokens=3)
    house.gateway.started("r1")  # a second choice starts no second stream
    mock_clock.jump(0.5)
    house.gateway.deliver(token("a", 2))
    house.gateway.deliver(ChoiceFinished(id="r1", index=0, reason="stop", stop_tokens=1))
    mock_clock.jump(0.5)
    house.gateway.complete("r1", "stop")
    house.gateway.complete("r1", "length")
    house.gateway.cancel("r1")
    events = await outbox.drain()
    assert [type(event) for event in events] == [Started, Token, ChoiceFinished, Finished]
    end = events[-1]
    assert isinstance(end, Finished)
    assert events[0] == Started(id="r1", model="tiny", prompt_tokens=7)
    assert end.reason == "stop"
    assert (end.usage.prompt_tokens, end.usage.completion_tokens, end.usage.cached_tokens) == (7, 3, 3)
    assert (end.timing.queued, end.timing.ttft, end.timing.total) == (1.0, 1.5, 2.0)
    accounts = house.gateway.accounts
    assert (house.gateway.live_requests, accounts.accepted, accounts.completion_tokens) == (0, 1, 3)
    assert accounts.finished == {"stop": 1}
    (record,) = caplog.records
    assert record.getMessage().startswith("r1 stop prompt=7 completion=3 cached=3 queued=1.0000 ttft=1.5000")


async def test_cancel_ends_the_stream_and_tells_the_scheduler(wired: Wire, generate: Make) -> None:
    house = wired()
    outbox = house.gateway.submit(generate())
    house.gateway.cancel("r1")
    house.gateway.cancel("r1")
    house.gateway.cancel("never heard of")
    (end,) = await outbox.drain()
    assert isinstance(end, Finished)
    assert end.reason == "cancelled"
    assert house.scheduler_messages() == [Cancel(id="r1")]
    house.gateway.deliver(token("late"))  # a step in flight: nobody listens any more
    with pytest.raises(trio.EndOfChannel):
        await outbox.drain()


async def test_full_means_429_and_an_end_makes_room(wired: Wire, generate: Make) -> None:
    house = wired(LimitSettings(max_requests=1))
    house.gateway.submit(generate("a"))
    with pytest.raises(ApiError, match="--max-requests") as caught:
        house.gateway.submit(generate("b"))
    assert (caught.value.status, caught.value.retry_after) == (429, 1)
    assert house.gateway.accounts.refused == {"server_overloaded": 1}
    house.gateway.cancel("a")
    with pytest.raises(ApiError):
        house.gateway.submit(generate("b"))  # the tokenizer has not looked at the first yet
    await house.tokenizer.receive()
    house.gateway.submit(generate("b"))


async def test_draining_lets_accepted_requests_end_and_refuses_new_ones(wired: Wire, generate: Make) -> None:
    house = wired()
    house.gateway.submit(generate("a"))
    house.gateway.refuse_new("shutting_down", "the server is shutting down")
    with pytest.raises(ApiError) as caught:
        house.gateway.submit(generate("b"))
    assert (caught.value.code, caught.value.status) == ("shutting_down", 503)
    with trio.move_on_after(0) as scope:
        await house.gateway.wait_idle()
    assert scope.cancelled_caught
    house.gateway.cancel("a")
    await house.gateway.wait_idle()


async def test_a_failure_names_its_error(wired: Wire, generate: Make) -> None:
    house = wired()
    outbox = house.gateway.submit(generate())
    house.gateway.fail("r1", ApiError("context_length_exceeded", "too long", param="prompt"))
    assert await outbox.drain() == (
        Failed(id="r1", code="context_length_exceeded", message="too long", param="prompt"),
    )
    assert house.gateway.accounts.finished == {"error": 1}


async def test_reading_returns_credit_in_halves(wired: Wire, generate: Make) -> None:
    house = wired(LimitSettings(outbox_tokens=4))
    outbox = house.gateway.submit(generate())
    house.gateway.deliver(token("a"))
    await outbox.drain()
    assert house.scheduler_messages() == []
    house.gateway.deliver(token("b"))
    await outbox.drain()
    assert house.scheduler_messages() == [Credit(id="r1", tokens=2)]


async def test_the_clients_own_credit_is_passed_on_at_once(wired: Wire, generate: Make) -> None:
    house = wired(LimitSettings(outbox_tokens=4))
    outbox = house.gateway.submit(generate())
    house.gateway.grant("r1", 1)
    house.gateway.grant("unknown", 1)
    assert house.scheduler_messages() == []  # the outbox has room for no more than the first credit
    house.gateway.deliver(token("a"))
    await outbox.drain()
    assert house.scheduler_messages() == [Credit(id="r1", tokens=1)]


async def test_tenants_are_counted_while_their_requests_live(wired: Wire, generate: Make) -> None:
    house = wired()
    house.gateway.submit(generate("a", tenant="t"))
    house.gateway.submit(generate("b", tenant="t"))
    assert (house.gateway.places.held_by("t"), house.gateway.places.held_by("")) == (2, 0)
    house.gateway.cancel("a")
    assert house.gateway.places.held_by("t") == 1


async def test_with_several_tenants_the_newest_requests_of_a_greedy_one_are_refused(
    wired: Wire, generate: Make
) -> None:
    house = wired(LimitSettings(max_requests=4), several_tenants=True)

    def submit(id: str) -> None:
        house.gateway.submit(generate(id, tenant=id[0]))

    submit("a0")
    submit("a1")
    for id in ("a2", "a3"):
        with pytest.raises(ApiError, match="2 unfinished requests; with one more, only 1 of 4 places") as caught:
            submit(id)
        assert (caught.value.code, caught.value.status, caught.value.retry_after) == ("rate_limit_exceeded", 429, 1)
    submit("b0")
    with pytest.raises(ApiError, match="1 unfinished requests"):
        submit("b1")
    assert house.gateway.accounts.refused == {"rate_limit_exceeded": 3}
    submit("c0")  # the last place, for a newcomer
    with pytest.raises(ApiError, match="--max-requests"):
        submit("d0")
    house.gateway.cancel("b0")
    with pytest.raises(ApiError, match="unfinished requests"):
        submit("a4")
    house.gateway.cancel("a0")
    house.gateway.cancel("c0")
    for _ in range(4):
        await house.tokenizer.receive()
    submit("a4")


async def test_a_single_tenant_may_take_the_whole_house(wired: Wire, generate: Make) -> None:
    house = wired(LimitSettings(max_requests=4))
    for number in range(4):
        house.gateway.submit(generate(f"a{number}", tenant="a"))


async def test_ids_are_unique_and_carry_the_process(wired: Wire) -> None:
    gateway = wired().gateway
    first, second = gateway.new_id(), gateway.new_id()
    assert first != second
    assert first.split("-")[0] == second.split("-")[0]
