"""sentence-transformers' files that are damaged are refused by name."""

from pathlib import Path

import pytest

from triolet.models.encoder.sentence import read_sentence_files
from triolet.models.errors import CheckpointError


@pytest.mark.parametrize("text", [b"", b"[", b"\xff", b'["\xff"]', b"{}", b"[1]", b"[" * 100_000])
def test_a_damaged_list_of_modules(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_bytes(text)
    with pytest.raises(CheckpointError, match=r"modules\.json"):
        read_sentence_files(tmp_path, 8)
