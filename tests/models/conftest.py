"""One random checkpoint per variant, all drawn from one seed that the run prints."""

import random

import pytest

from .parity_cases import REPLAY_SEED, VARIANTS, ParityCase, make_case


@pytest.fixture(scope="session")
def parity_seed() -> int:
    return REPLAY_SEED if REPLAY_SEED is not None else random.SystemRandom().getrandbits(32)


@pytest.fixture(scope="session", params=list(VARIANTS))
def parity_case(
    request: pytest.FixtureRequest, parity_seed: int, tmp_path_factory: pytest.TempPathFactory
) -> ParityCase:
    print(f"parity seed {parity_seed}")
    return make_case(str(request.param), parity_seed, tmp_path_factory.mktemp("checkpoint"))
