"""What an explanation adds to the scheduler's: the times of a request, and its tenant's share."""

from typing import Any, cast

import pytest

from triolet.actors.gateway.gateway import Gateway
from triolet.actors.gateway.history import History, RecentRequests
from triolet.actors.observe.explain import explain
from triolet.protocol.errors import ApiError
from triolet.protocol.events import Usage
from triolet.protocol.explanation import TenantShare
from triolet.protocol.settings import LimitSettings

from ..wiring import generate, wire


def history(id: str = "r1", **changes: Any) -> History:  # fields of any type
    fields: dict[str, Any] = {
        "name": "", "tenant": "", "traceparent": "", "operation": "chat", "model": "m", "choices": 1, "max_tokens": 8,
        "temperature": 1.0, "top_p": 1.0, "usage": Usage(prompt_tokens=3, completion_tokens=2), "wall_clock": 1000.0,
        "arrival": 10.0, "tokenized": 10.25, "started": 10.5, "first_token": 11.0,
    }  # fmt: skip
    return History(id=id, **(fields | changes))


SHARE = TenantShare(used=1, limit=8)


@pytest.mark.parametrize(
    ("unreached", "state"),
    [
        (("tokenized", "started", "first_token"), "tokenizing"),
        (("started", "first_token"), "waiting"),
        (("first_token",), "prefill"),
        ((), "decode"),
    ],
)
def test_outside_the_scheduler_the_times_tell(unreached: tuple[str, ...], state: str) -> None:
    found = explain(history(**cast("dict[str, Any]", dict.fromkeys(unreached))), None, SHARE)
    assert found.state == state
    assert found.timeline.arrived == 1010.0
    assert found.timeline.started == (None if "started" in unreached else 0.5)


def test_a_request_whose_grammar_is_compiled_says_so() -> None:
    unreached: dict[str, Any] = dict.fromkeys(("tokenized", "started", "first_token"))
    assert explain(history(**unreached, compiling=True), None, SHARE).state == "compiling"


def test_a_finished_request_has_its_whole_timeline() -> None:
    found = explain(history(finished=12.0, reason="error", error="engine_error"), None, SHARE)
    assert (found.state, found.finish_reason, found.error) == ("finished", "error", "engine_error")
    assert (found.timeline.tokenized, found.timeline.first_token, found.timeline.finished) == (0.25, 1.0, 2.0)


def test_the_oldest_are_forgotten_with_their_names() -> None:
    recent = RecentRequests(limit=2)
    for number, name in enumerate(["a", "b", "a", "c"]):
        recent.begin("t", name, f"r{number}")
        recent.end(history(f"r{number}", tenant="t", name=name))
    assert [recent.ended(f"r{number}") is not None for number in range(4)] == [False, False, True, True]
    assert recent.id_of("t", "a") == "r2"  # the later one of that name, still known
    assert recent.id_of("t", "b") == "b"
    assert recent.id_of("other", "a") == "a"


@pytest.mark.parametrize("others", [0, 1, 3, 6, 8])
async def test_the_share_is_what_the_gateway_then_allows(others: int) -> None:
    house = wire(LimitSettings(max_requests=9), several_tenants=True)
    gateway: Gateway = house.gateway
    for number in range(others):
        gateway.submit(generate(f"o{number}", tenant=f"other{number}"))
    limit = gateway.places.share("mine").limit
    for number in range(limit):
        gateway.submit(generate(f"m{number}", tenant="mine"))
        assert gateway.places.share("mine") == TenantShare(used=number + 1, limit=limit)
    with pytest.raises(ApiError):
        gateway.submit(generate("one more", tenant="mine"))
