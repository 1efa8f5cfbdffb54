"""The fuzzer's corpus: each file is read or refused, and those that it starts from are whole files of tensors."""

from pathlib import Path

import pytest

from .cases import CORPUS, read_input

FILES = sorted(CORPUS.iterdir())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_of_the_corpus_is_read_or_refused(path: Path, tmp_path: Path) -> None:
    assert read_input(tmp_path, path.read_bytes()) == path.name.startswith("whole")
