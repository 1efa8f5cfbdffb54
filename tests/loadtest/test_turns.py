"""Measurements in turns: ratios are taken within a turn, the order is reversed, and files are evicted to be read."""

from functools import partial
from pathlib import Path

from triolet.loadtest.embeddings.turns import ratios_of, run
from triolet.loadtest.start_times import evict, read


def test_every_other_turn_runs_in_reverse_and_ratios_are_of_one_turn() -> None:
    order = list[str]()

    def measure(name: str, speeds: list[float]) -> float:
        order.append(name)
        return speeds.pop(0)

    # The second turn met a machine half as fast.
    speeds = {"triolet": [200.0, 90.0, 210.0], "other": [100.0, 50.0, 100.0]}
    turns = run({name: partial(measure, name, list(values)) for name, values in speeds.items()}, 3)
    assert order == ["triolet", "other", "other", "triolet", "triolet", "other"]
    assert ratios_of(turns, ["triolet"]) == {"triolet / other": 2.0}
    assert ratios_of(turns[1:2], ["triolet"]) == {"triolet / other": 1.8}


def test_evicted_files_are_whole(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"7" * 100_000)
    evict([file])
    assert read([file]) > 0
    assert file.read_bytes() == b"7" * 100_000
