"""The fuzzer's corpora: each input is read or refused, and those that it starts from are whole."""

from pathlib import Path

import pytest

from .fuzz import MOST_BYTES, TARGETS, Watched, corpus_of, reader_of

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # scales of every kind
INPUTS = [pytest.param(target, path, id=f"{target}/{path.name}") for target in TARGETS for path in corpus_of(target)]


@pytest.mark.parametrize(("target", "path"), INPUTS)
def test_an_input_of_the_corpus_is_read_or_refused(target: str, path: Path, tmp_path: Path) -> None:
    assert reader_of(target)(tmp_path, path.read_bytes()) == path.name.startswith("whole")


@pytest.mark.parametrize(
    "hostile", [lambda: eval("1"), lambda: bytearray(b"x") * (2 * MOST_BYTES)], ids=["run", "room"]
)
def test_the_fuzzer_sees_what_an_input_costs_or_runs(hostile: object, tmp_path: Path) -> None:
    def read_input(folder: Path, data: bytes) -> bool:
        del folder, data
        assert callable(hostile)
        return bool(hostile())

    with pytest.raises(AssertionError, match=r"run something|the input takes"):
        Watched(read_input)(tmp_path, b"")
