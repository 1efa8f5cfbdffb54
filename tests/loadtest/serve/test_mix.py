import math
from collections import Counter
from random import Random

import pytest

from triolet.loadtest.serve.mix import (
    BadMix,
    Mix,
    MixShare,
    Tenant,
    check_shares,
    draw_client,
    read_priorities,
    read_share,
    read_tenant,
)
from triolet.loadtest.serve.slo import BadSlo, Slo, is_good, read_slo

from .made import record


def test_tenants_priorities_and_shares_are_read() -> None:
    assert read_tenant("acme,key=K1,weight=3,priority=-1") == Tenant(name="acme", key="K1", weight=3, priority=-1)
    assert read_tenant("small") == Tenant(name="small")
    assert read_priorities("0:9,10:1") == ((0, 9.0), (10, 1.0))
    assert read_share("0.1@16", 1) == MixShare(0.1, 16)


@pytest.mark.parametrize("text", ["", "a,weight=0", "a,weight=x", "a,color=red", "a,key=a b", "a,key=1,key=2", "a,key"])
def test_what_is_no_tenant_is_refused(text: str) -> None:
    with pytest.raises(BadMix):
        read_tenant(text)


@pytest.mark.parametrize("text", ["0.1", "0.1@0", "2@5", "-1@5", "x@5", "nan@5", "0.1@nan"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(BadMix):
        read_share(text, 1)


@pytest.mark.parametrize("text", ["", "0", "0:0", "a:1"])
def test_what_are_no_priorities_is_refused(text: str) -> None:
    with pytest.raises(BadMix):
        read_priorities(text)


def test_clients_are_drawn_by_their_weights() -> None:
    count = 20_000
    mix = Mix(
        tenants=(Tenant(name="a", weight=3), Tenant(name="b", priority=7)),
        priorities=((0, 9), (10, 1)),
        cancel=MixShare(0.1, 5),
        slow=MixShare(0.2, 5),
    )
    draw = Random(1)
    clients = [draw_client(mix, draw) for _ in range(count)]
    tenants = Counter(client.tenant.name for client in clients)
    behaviours = Counter(client.behaviour for client in clients)

    def near(found: int, share: float, of: int = count) -> bool:
        return abs(found - share * of) < 4 * math.sqrt(of * share * (1 - share))

    assert near(tenants["a"], 0.75)
    assert near(behaviours["cancels"], 0.1)
    assert near(behaviours["slow"], 0.2)
    assert {client.priority for client in clients if client.tenant.name == "b"} == {7}
    high = sum(client.priority == 10 for client in clients if client.tenant.name == "a")
    assert near(high, 0.1, tenants["a"])


def test_impossible_mixes_are_refused() -> None:
    with pytest.raises(BadMix, match="more than all"):
        check_shares(Mix(cancel=MixShare(0.6, 1), slow=MixShare(0.6, 1)))
    with pytest.raises(BadMix, match="two tenants are called a"):
        check_shares(Mix(tenants=(Tenant(name="a"), Tenant(name="a"))))


def test_an_objective_is_read() -> None:
    assert read_slo("ttft=500ms,itl=50ms") == Slo(ttft=0.5, itl=0.05)
    assert read_slo("e2e=2s, tpot=0.1") == Slo(e2e=2.0, tpot=0.1)


@pytest.mark.parametrize("text", ["", "ttft", "ttft=fast", "speed=1s", "ttft=1s,ttft=2s", "ttft=-1s"])
def test_what_is_no_objective_is_refused(text: str) -> None:
    with pytest.raises(BadSlo):
        read_slo(text)


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        (Slo(), True),
        (Slo(ttft=0.1), True),
        (Slo(ttft=0.09), False),
        (Slo(itl=0.0101), True),
        (Slo(itl=0.0099), False),
        (Slo(tpot=0.0101), True),
        (Slo(tpot=0.0099), False),
        (Slo(e2e=0.141), True),
        (Slo(e2e=0.139), False),
        (Slo(ttft=0.2, e2e=0.139), False),
    ],
)
def test_a_request_is_good_when_it_met_every_limit(slo: Slo, good: bool) -> None:
    """The first token after 100 ms, the fifth 40 ms later."""
    assert is_good(record(), slo) is good


def test_a_failed_request_is_never_good() -> None:
    assert not is_good(record(outcome="reset"), Slo())


def test_one_long_gap_in_a_hundred_is_allowed() -> None:
    times = [0.1 + 0.01 * place for place in range(101)]
    late = [*times[:-1], times[-1] + 1.0]
    assert is_good(record(arrivals=late, ended=late[-1]), Slo(itl=0.02))
    two = [*times[:-2], times[-2] + 1.0, times[-1] + 2.0]
    assert not is_good(record(arrivals=two, ended=two[-1]), Slo(itl=0.02))
