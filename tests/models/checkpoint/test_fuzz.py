"""The fuzzer's corpora: each input is read or refused at no great cost, and those that it starts from are whole."""

from collections.abc import Callable
from pathlib import Path

import pytest

from . import fuzz
from .fuzz import MOST_BYTES, MOST_SECONDS, TARGETS, Watched, corpus_of, options, reader_of, warm_up
from .fuzz_json import JsonMutator

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # scales of every kind
INPUTS = [pytest.param(target, path, id=f"{target}/{path.name}") for target in TARGETS for path in corpus_of(target)]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    for target in TARGETS:
        warm_up(target, tmp_path_factory.mktemp("inputs"))
    return Watched()


@pytest.mark.parametrize(("target", "path"), INPUTS)
def test_an_input_of_the_corpus_is_read_or_refused(target: str, path: Path, watched: Watched, tmp_path: Path) -> None:
    assert watched(reader_of(target), tmp_path, path.read_bytes()) == path.name.startswith("whole")


@pytest.mark.parametrize(
    ("hostile", "seconds", "message"),
    [
        pytest.param(lambda: eval("1"), MOST_SECONDS, "run something: compile", id="run"),
        pytest.param(lambda: bytearray(b"x") * (2 * MOST_BYTES), MOST_SECONDS, r"s and 1\d{8} bytes", id="room"),
        pytest.param(lambda: sum(range(1 << 16)), 0, r"takes 0\.\d s and \d{,6} bytes", id="time"),
    ],
)
def test_the_fuzzer_sees_what_an_input_costs_or_runs(
    hostile: Callable[[], object], seconds: float, message: str, watched: Watched, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(fuzz, "MOST_SECONDS", seconds)

    def read_input(folder: Path, data: bytes) -> bool:
        del folder, data
        return bool(hostile())

    with pytest.raises(AssertionError, match=message):
        watched(read_input, tmp_path, b"")


def test_values_of_json_take_the_places_of_others() -> None:
    """Under their own keys, under other keys and in lines that are no first ones; what is no JSON stays."""
    data = b'x\n{"a":1,"b":{"c":"y"}}\n{'
    found = {JsonMutator([data]).mutated(data, seed) for seed in range(1000)}
    assert {b'x\n{"a":1,"b":{"c":"y","a":1e+308}}\n{', b'x\n{"a":"y","b":{"c":"y"}}\n{', b'x\n{"a":1}\n{'} <= found
    assert JsonMutator([data]).mutated(b"{\n[]\n1", 0) is None


def test_no_seed_is_cut_unless_asked_for() -> None:
    for target in TARGETS:
        (length,) = (one.removeprefix("-max_len=") for one in options(target, ["new"]) if one.startswith("-max_len="))
        assert int(length) == max(len(path.read_bytes()) for path in corpus_of(target))
    assert options("gguf", ["-max_len=9", "new"]) == ["-max_len=9", "new"]
