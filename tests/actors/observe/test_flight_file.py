"""The flight recorder's file: everything once and in order, within its bounds, and what the thread notes itself."""

import errno
import os
from itertools import count
from pathlib import Path
from threading import Event

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
    assert began.pid == os.getpid()
    assert began.at < began.wall  # the clock of the wall is another one
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
        for suffix in (".jsonl", OLDER):
            (tmp_path / f"{number:02}{suffix}").touch()
        (tmp_path / f"{number:02}.stacks").touch()
    files = [open_own(tmp_path / name, os.O_WRONLY) for name in ("02.jsonl", "03.stacks")]  # of processes that live
    make_room(tmp_path)
    for file in files:
        os.close(file)
    kept = {2, *range(5, KEPT + 5)}
    assert {int(file.stem) for file in tmp_path.glob("*.jsonl")} == kept
    assert {int(file.stem) for file in tmp_path.glob(f"*{OLDER}")} == kept
    assert [file.name for file in tmp_path.glob("*.stacks")] == ["03.stacks"]


def test_what_a_full_disk_did_not_take_is_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first write takes a part of a line, the next two nothing."""
    monkeypatch.setattr(flight_file, "WRITE_SECONDS", 0.001)
    flight, write, calls = Flight(), os.write, count()
    file = FlightFile(flight, tmp_path, clock=0.0)
    whole = Event()

    def short(number: int, data: bytes) -> int:
        match next(calls):
            case 0:
                return write(number, data[:5])
            case 1 | 2:
                raise OSError(errno.ENOSPC, "full")
            case _:
                whole.set()
                return write(number, data)

    monkeypatch.setattr(os, "write", short)
    flight.steps.append(("back", 1, 2.0, 0.25, 0.5))
    assert whole.wait(60)
    monkeypatch.setattr(flight_file, "WRITE_SECONDS", 5.0)
    file.close()
    lines = file.path.read_bytes().splitlines()
    told = [msgspec.json.decode(line, type=Record) for line in lines[1:] if line.endswith(b"]")]
    assert StepBack(1, 2.0, 0.25, 0.5) in told


def test_a_folder_that_cannot_be_used_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "flight").touch()
    with pytest.raises(OSError, match="flight"):
        FlightFile(Flight(), tmp_path / "flight", clock=0.0)
