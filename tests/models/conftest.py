"""One random checkpoint per variant, all drawn from one seed that the run prints."""

import random

import pytest

from .parity_cases import DRAWN, FEWER_PROMPTS, PROMPTS, REPLAY_SEED, ParityCase, make_case
from .parity_variants import ALL_PROMPTS, VARIANTS


@pytest.fixture(scope="session")
def parity_seed() -> int:
    return REPLAY_SEED if REPLAY_SEED is not None else random.SystemRandom().getrandbits(32)


@pytest.fixture(scope="session", params=range(DRAWN))
def drawn_case(
    request: pytest.FixtureRequest, parity_seed: int, tmp_path_factory: pytest.TempPathFactory
) -> ParityCase:
    """A few variants, drawn from the seed, for what is too slow to do with all."""
    drawable = [name for name in VARIANTS if name != "phi3-long"]  # transformers turns its short prompts otherwise
    place: int = request.param
    variant = random.Random(parity_seed).sample(drawable, DRAWN)[place]
    print(f"parity seed {parity_seed}")
    return make_case(variant, parity_seed, tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session", params=list(VARIANTS))
def parity_case(
    request: pytest.FixtureRequest, parity_seed: int, tmp_path_factory: pytest.TempPathFactory
) -> ParityCase:
    print(f"parity seed {parity_seed}")
    variant = str(request.param)
    lengths = PROMPTS if variant in ALL_PROMPTS else FEWER_PROMPTS
    return make_case(variant, parity_seed, tmp_path_factory.mktemp("checkpoint"), lengths)
