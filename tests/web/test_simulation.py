"""Whole lives of the server from seeds: see `simulation/life.py`. A failure prints the command that replays it."""

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ..actors.simulation.plants import damaged
from ..actors.simulation.world import Outcome
from .simulation.life import simulate_web
from .simulation.plants import WEB_PLANTS

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 16  # every run of the suite draws others
FIRST = int(os.environ.get("SEED", random.SystemRandom().randrange(10**9)))
PLANTED_SEEDS = 30  # fixed: whether a planted bug is found must not depend on luck
REPLAYED = 4
REPLAY = """
from tests.web.simulation.life import simulate_web
for seed in range({first}, {first} + {count}): print(simulate_web(seed).digest)
"""


def live(seed: int) -> Outcome:
    try:
        return simulate_web(seed)
    except BaseException as error:
        error.add_note(f"replay: python -m tests.actors.simulation --web --seed {seed}")
        raise


def test_every_life_of_the_server_keeps_every_promise() -> None:
    """And the run says something only if there was something to survive."""
    print(f"SEED={FIRST}")
    outcomes = [live(seed) for seed in range(FIRST, FIRST + SEEDS)]
    ends = sum((Counter(outcome.ends) for outcome in outcomes), Counter[str]())
    assert ends["complete"] > SEEDS
    assert ends["left"] > SEEDS // 4
    assert sum(outcome.worker_losses for outcome in outcomes) > 0
    assert sum(outcome.prefix_hit_tokens for outcome in outcomes) > 0


def test_a_life_of_the_server_is_the_same_in_another_process() -> None:
    """Whatever order its sets have, as they hash by chance and by address."""
    mine = [live(FIRST + seed).digest for seed in range(REPLAYED)]
    code = REPLAY.format(first=FIRST, count=REPLAYED)
    command, own = [sys.executable, "-c", code], os.environ | {"PYTHONHASHSEED": "77"}
    ran = subprocess.run(command, env=own, cwd=ROOT, check=True, capture_output=True, text=True)
    assert ran.stdout.split() == mine
    assert len(set(mine)) == REPLAYED


@pytest.mark.parametrize("name", sorted(WEB_PLANTS))
def test_a_planted_bug_of_the_server_is_found(name: str) -> None:
    where, attribute, _ = WEB_PLANTS[name]
    assert hasattr(where, attribute), f"there is no {attribute} to damage"
    for seed in range(PLANTED_SEEDS):
        try:
            with damaged(WEB_PLANTS[name], seed):
                simulate_web(seed)
        except (Exception, BaseExceptionGroup):
            return
    pytest.fail(f"{PLANTED_SEEDS} lives did not show the planted bug: {name}")
