"""Whole lives of the scheduler from seeds: see `simulation/world.py`. A failure prints the command that replays it."""

import os
import random

import pytest

from .simulation.plants import PLANTS, planted
from .simulation.world import Outcome, simulate

SEEDS = 100  # some 60,000 steps; every run of the suite draws others
FIRST = int(os.environ.get("SEED", random.SystemRandom().randrange(10**9)))
PLANTED_FROM, PLANTED_SEEDS = 0, 40  # fixed: whether a planted bug is found must not depend on luck


def live(seed: int) -> Outcome:
    try:
        return simulate(seed)
    except BaseException as error:
        error.add_note(f"replay: python -m tests.actors.simulation --seed {seed}")
        raise


def test_every_life_keeps_every_promise() -> None:
    print(f"SEED={FIRST}")
    outcomes = [live(seed) for seed in range(FIRST, FIRST + SEEDS)]
    # The run says something only if every kind of trouble really happened.
    ends = {end for outcome in outcomes for end in outcome.ends}
    assert {"complete", "cancelled", "stalled", "deadline", "engine_error"} <= ends
    assert sum(outcome.preemptions for outcome in outcomes) > SEEDS
    assert sum(outcome.worker_losses for outcome in outcomes) > 0
    assert sum(outcome.prefix_hit_tokens for outcome in outcomes) > 0


def test_a_seed_replays_message_by_message() -> None:
    first, second = live(FIRST), live(FIRST)
    assert first == second
    assert live(FIRST + 1).digest != first.digest


@pytest.mark.parametrize("name", sorted(PLANTS))
def test_a_planted_bug_is_found(name: str) -> None:
    for seed in range(PLANTED_FROM, PLANTED_FROM + PLANTED_SEEDS):
        try:
            with planted(name, seed):
                simulate(seed)
        except (Exception, BaseExceptionGroup):
            return
    pytest.fail(f"{PLANTED_SEEDS} lives did not show the planted bug: {name}")
