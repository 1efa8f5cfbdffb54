"""TokenTimes: what is observed together is what would be observed one by one."""

import random

import pytest

from triolet.actors.gateway.accounts import Accounts, TokenTimes
from triolet.actors.gateway.credit import CreditLine
from triolet.actors.gateway.history import StreamRecord
from triolet.actors.gateway.outbox import Outbox

from ..wiring import generate

ARRIVAL = 100.0


def record(choices: int) -> StreamRecord:
    credit = CreditLine(8, lambda credit: None)
    return StreamRecord(generate("a", n=choices, arrival_time=ARRIVAL), Outbox("a", credit.take), credit, 0.0)


@pytest.mark.parametrize("seed", range(5))
def test_gaps_and_first_tokens_are_those_of_each_choice(seed: int) -> None:
    rng = random.Random(seed)
    noted, plain = Accounts(), Accounts()
    times = TokenTimes(noted)
    streams = [record(rng.choice((1, 1, 3))) for _ in range(12)]
    before: dict[tuple[int, int], float] = {}
    heard = [0] * len(streams)
    now = ARRIVAL
    for _ in range(200):
        now += rng.choice((0.01, 0.02, 0.5))
        for place, stream in enumerate(streams):
            if rng.random() < 0.2:
                continue  # it has no token in this step
            index, tokens = rng.randrange(len(stream.last_token_at)), rng.choice((1, 1, 4))
            times.note(stream, index, tokens, now)
            if (place, index) in before:
                plain.between_tokens.observe((now - before[place, index]) / tokens)
            elif not heard[place]:
                plain.first_token.observe(now - ARRIVAL)
            before[place, index] = now
            heard[place] += tokens
        times.settle()
    assert noted.between_tokens.figures().counts == plain.between_tokens.figures().counts
    assert noted.between_tokens.figures().sum == pytest.approx(plain.between_tokens.figures().sum)
    assert noted.first_token.figures() == plain.first_token.figures()
    assert [stream.completion_tokens for stream in streams] == heard


def test_what_is_not_settled_is_not_lost() -> None:
    accounts, stream = Accounts(), record(1)
    times = TokenTimes(accounts)
    for step in range(4):
        times.note(stream, 0, 1, ARRIVAL + step)  # the gap is the same three times
    assert accounts.between_tokens.count == 0
    times.note(stream, 0, 1, ARRIVAL + 10)  # another gap: those before are observed
    assert accounts.between_tokens.count == 3
    times.settle()
    times.settle()
    assert accounts.between_tokens.count == 4
