"""The flight recorder's file: everything once and in order, within its bounds, and what the thread notes itself."""

import os
from itertools import count
from pathlib import Path

import msgspec
import pytest

from triolet.actors.flight import Flight
from triolet.actors.observe import flight_file
from triolet.actors.observe.flight_file import KEPT, OLDER, FlightFile, make_room, open_own
from triolet.protocol.flight import FlightBegan, FlightEvent, Record, StepBack


def written(file: Path) -> list[Record]:
    return [msgspec.json.decode(line, type=Record) for line in file.read_bytes().splitlines()]


def test_each_record_is_written_once(tmp_path: Path) -> None:
    flight = Flight()
    flight.event(1.0, "worker", "ready: pid 7")
    file = FlightFile(flight, tmp_path / "flight", clock=0.0)
    flight.steps.append(("back", 1, 2.0, 0.25, 0.5))
    file.close()
    began, *records = written(file.path)
    assert isinstance(began, FlightBegan)
    assert (began.pid, began.at) == (os.getpid(), began.wall)
    told = [record for record in records if not (isinstance(record, FlightEvent) and record.kind == "loop")]
    assert told == [StepBack(1, 2.0, 0.25, 0.5), FlightEvent(1.0, "worker", "ready: pid 7")]
    assert file.path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(("beat", "said"), [(float("inf"), "turns"), (0.0, "stuck")])
def test_it_says_whether_the_event_loop_turns(tmp_path: Path, beat: float, said: str) -> None:
    flight = Flight()
    flight.beat = beat
    file = FlightFile(flight, tmp_path, clock=0.0)
    file.close()
    assert [record.text for record in written(file.path) if isinstance(record, FlightEvent)] == [said]


def test_a_full_file_takes_the_place_of_the_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_file, "MOST_BYTES", 0)  # every writing begins another one
    monkeypatch.setattr(flight_file, "WRITE_SECONDS", 0.001)
    flight = Flight()
    file = FlightFile(flight, tmp_path, clock=0.0)
    older = file.path.with_suffix(OLDER)
    for number in count():
        flight.steps.append(("back", number, 2.0, 0.25, 0.5))
        if older.exists():
            break
    monkeypatch.setattr(flight_file, "WRITE_SECONDS", 5.0)
    file.close()
    assert sorted(tmp_path.iterdir()) == sorted([file.path, older])


def test_only_the_latest_files_of_earlier_processes_stay(tmp_path: Path) -> None:
    for number in range(KEPT + 5):
        file = tmp_path / f"{number}.jsonl"
        file.touch()
        os.utime(file, (number, number))
    number = open_own(tmp_path / "2.jsonl", os.O_WRONLY)  # of a server that has said nothing for long
    os.utime(tmp_path / "2.jsonl", (2, 2))
    make_room(tmp_path)
    os.close(number)
    assert {int(file.stem) for file in tmp_path.iterdir()} == {2, *range(5, KEPT + 5)}


def test_a_folder_that_cannot_be_used_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "flight").touch()
    with pytest.raises(OSError, match="flight"):
        FlightFile(Flight(), tmp_path / "flight", clock=0.0)
