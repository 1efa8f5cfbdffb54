"""The bundled model's store of grammars."""

from pathlib import Path

import pytest

import triolet.models.demo
from triolet.models.checkpoint.open import Checkpoint, open_checkpoint

from .bench import Bench


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint(Path(next(iter(triolet.models.demo.__path__))) / "checkpoint")


@pytest.fixture(scope="module")
def bench(checkpoint: Checkpoint) -> Bench:
    return Bench(checkpoint)
