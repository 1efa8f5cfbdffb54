"""The fuzzer's corpus: each file is read or refused, and those that it starts from are whole checkpoints."""

from pathlib import Path

import pytest

from .cases import CORPUS, read_all

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # scales of every kind
FILES = sorted(CORPUS.iterdir())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_of_the_corpus_is_read_or_refused(path: Path) -> None:
    assert read_all(path) == path.name.startswith("whole")
