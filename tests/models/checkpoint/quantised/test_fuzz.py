"""The corpus of the fuzzer: each input is read or refused; those that it starts from are layers of every method."""

from pathlib import Path

import pytest

from triolet.models.checkpoint.quantised.method import METHODS

from .cases import CORPUS, decoded, read_all

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # scales of every kind
FILES = sorted(CORPUS.iterdir())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_of_the_corpus_is_read_or_refused(path: Path) -> None:
    assert read_all(path.read_bytes()) == path.name.startswith("whole")


def test_the_corpus_has_every_method() -> None:
    found = [decoded(path.read_bytes()) for path in FILES if path.name.startswith("whole")]
    assert {case[0]["quant_method"] for case in found if case is not None} >= {*METHODS, "mxfp4"}
