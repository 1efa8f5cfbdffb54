"""Beam search against its definition: with as many beams as there are beginnings, it finds the best of all answers."""

from collections.abc import Callable, Iterator
from itertools import count
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.actors.scheduler.beams import Beam, BeamSearch
from triolet.protocol.events import TokenLogprob, TopLogprob
from triolet.protocol.requests import BeamRule
from triolet.protocol.steps import Row

STOP = 0
VOCABULARY = 3
LENGTH = 3
EVERYTHING = VOCABULARY**LENGTH

Logits = Callable[[tuple[int, ...]], dict[int, float]]


def model(seed: int) -> Logits:
    """Log probabilities that depend on all tokens before."""

    def after(tokens: tuple[int, ...]) -> dict[int, float]:
        weights = [hash((seed, tokens, token)) % 97 + 1 for token in range(VOCABULARY)]
        return {token: log(weight / sum(weights)) for token, weight in enumerate(weights)}

    return after


def row(logprobs: dict[int, float], top: int) -> Row:
    best = sorted(logprobs, key=lambda token: -logprobs[token])[:top]
    scores = TokenLogprob(
        token_id=best[0], logprob=logprobs[best[0]], top=tuple(TopLogprob(one, logprobs[one]) for one in best)
    )
    return Row(sequence=0, tokens=(best[0],), logprobs=(scores,))


def ids(beam: Beam) -> tuple[int, ...]:
    return tuple(token.token_id for token in beam.tokens)


def search(after: Logits, rule: BeamRule, width: int, max_tokens: int, min_tokens: int = 0) -> tuple[list[Beam], int]:
    """The answers, and after how many rounds; checks that a choice that goes on has the tokens it needs."""
    beams = BeamSearch(rule, range(width), frozenset({STOP}), min_tokens)
    sampled: dict[int, tuple[int, ...]] = dict.fromkeys(range(width), ())  # by choice, as its worker knows them
    working = list(range(width))
    for rounds in count(1):
        due = [beams.take(choice, row(after(sampled[choice]), 2 * width)) for choice in working]
        assert due == [False] * (len(working) - 1) + [True]
        assert all(beams.waits(choice) for choice in range(width))
        moves = beams.next_round(max_tokens)
        if not moves:
            return beams.answers, rounds
        for choice, beam, goes_on in moves:
            if goes_on:
                logprobs = after(sampled[choice])
                assert ids(beam) == (*sampled[choice], max(logprobs, key=lambda token: logprobs[token]))
        sampled |= {choice: ids(beam) for choice, beam, _ in moves}
        working = [choice for choice, _, _ in moves]
        assert len(set(working)) == len(working) <= width
        assert not any(beams.waits(choice) for choice in working)
    raise AssertionError("unreachable")


def answers(after: Logits, max_tokens: int, tokens: tuple[int, ...] = (), total: float = 0) -> Iterator[Beam]:
    """Every answer, with its sum of log probabilities."""
    if len(tokens) == max_tokens or tokens[-1:] == (STOP,):
        path = tuple(TokenLogprob(token_id=token, logprob=0.0) for token in tokens)
        yield Beam(total, path, tokens[-1:] == (STOP,))
        return
    for token, logprob in after(tokens).items():
        yield from answers(after, max_tokens, (*tokens, token), total + logprob)


@given(st.integers(), st.sampled_from([-1.0, 0.0, 0.7, 1.0, 2.0]), st.integers(1, LENGTH))
def test_wide_enough_it_finds_the_best_of_all_answers(seed: int, length_penalty: float, max_tokens: int) -> None:
    rule = BeamRule(answers=1, length_penalty=length_penalty, early_stopping="never")
    found, _ = search(model(seed), rule, EVERYTHING, max_tokens)
    score = {ids(one): one.score / len(one.tokens) ** length_penalty for one in answers(model(seed), max_tokens)}
    assert [ids(beam) for beam in found] == sorted(score, key=lambda tokens: -score[tokens])
    assert [beam.score for beam in found] == pytest.approx(sorted(score.values(), reverse=True))
    assert all(beam.stops == (ids(beam)[-1] == STOP) for beam in found)


@given(st.integers(), st.integers(0, 12))
def test_one_beam_is_the_greedy_answer(seed: int, min_tokens: int) -> None:
    after, greedy = model(seed), list[int]()
    while len(greedy) < 12 and greedy[-1:] != [STOP]:
        logprobs = after(tuple(greedy))
        allowed = [token for token in logprobs if token != STOP or len(greedy) >= min_tokens]
        greedy.append(max(allowed, key=lambda token: logprobs[token]))
    # Without a penalty no longer answer can have a better sum.
    (found,), rounds = search(after, BeamRule(answers=1, length_penalty=0.0), 1, 12, min_tokens)
    assert (ids(found), rounds) == (tuple(greedy), len(greedy))


@given(st.integers(), st.integers(2, 4), st.sampled_from([False, True, "never"]))
def test_answers_come_best_first_and_once(seed: int, width: int, early: bool) -> None:
    found, _ = search(model(seed), BeamRule(answers=width, early_stopping=early), width, 8)
    assert len({ids(beam) for beam in found}) == len(found) <= width
    assert [beam.score for beam in found] == sorted((beam.score for beam in found), reverse=True)
    assert all(STOP not in ids(beam)[:-1] for beam in found)


def peaked(tokens: tuple[int, ...]) -> dict[int, float]:
    """Stopping is a little less probable than 1, and 1 becomes ever more probable."""
    one = 0.5 if len(tokens) < 2 else 0.98
    return {1: log(one), STOP: log(0.97 - one + 0.02), 2: log(0.01)}


def test_when_it_stops() -> None:
    """Two beams have two short answers after two rounds; a longer one has the better mean."""
    rounds = {
        early: search(peaked, BeamRule(answers=1, early_stopping=early), 2, 20)[1] for early in (True, False, "never")
    }
    assert rounds[True] < rounds[False] <= rounds["never"] == 20


def test_a_token_keeps_as_many_alternatives_as_are_wanted() -> None:
    beams = BeamSearch(BeamRule(answers=1), range(2), frozenset(), top=1)
    for choice in range(2):
        beams.take(choice, row({1: -0.1, 2: -3.0, 3: -4.0}, 4))
    first, second = beams.next_round(5)
    assert (ids(first.beam), first.goes_on, ids(second.beam), second.goes_on) == ((1,), True, (2,), False)
    assert [len(move.beam.tokens[0].top) for move in (first, second)] == [1, 1]
