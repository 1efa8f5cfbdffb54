"""Random checkpoints by variant, each made once."""

from collections.abc import Callable
from functools import cache

import pytest

from .encoder_cases import EncoderCase, make_case


@pytest.fixture(scope="session")
def encoder_case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], EncoderCase]:
    @cache
    def case(variant: str) -> EncoderCase:
        return make_case(variant, tmp_path_factory.mktemp(variant))

    return case
