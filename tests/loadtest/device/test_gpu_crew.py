"""Cases that hang, crash or lose the device cost themselves alone; a run that is out of time goes on later."""

from __future__ import annotations

import os
import select
import sys
import threading
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from triolet.loadtest.device.gpu_case import Finding, GpuMachine
from triolet.loadtest.device.gpu_crew import SCRATCH, TimedOut, Worker, WorkerEnded, WorkerRefused, scratch_folders
from triolet.loadtest.device.gpu_journal import Journal
from triolet.loadtest.device.gpu_run import GRACE, Ask, Times, run_cases
from triolet.loadtest.device.gpu_wheels import install_wheels, path_with

MACHINE = GpuMachine("cpu", 90, "a machine", {"torch": "2"})
# Speaks as the real worker does, and knows a few ways to go.
STAND_IN = """
import json, os, signal, subprocess, sys, time
print(json.dumps({"machine": {"place": "cpu", "capability": 90, "name": "a machine", "versions": {}, "limits": {}}}))
sys.stdout.flush()
for line in sys.stdin:
    match json.loads(line)["run"]:
        case "die": os.kill(os.getpid(), signal.SIGSEGV)
        case "leave": sys.exit(7)
        case "hang":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            print("child", child.pid, file=sys.stderr, flush=True)
            child.wait()
        case "lose": print(json.dumps({"pid": os.getpid(), "lost": True}), flush=True)
        case _: print(json.dumps({"pid": os.getpid()}), flush=True)
"""


def made(folder: Path, program: str, environment: dict[str, str] | None = None, scratch: Sequence[Path] = ()) -> Worker:
    command = [sys.executable, "-c", program]
    return Worker(
        folder / "log.txt", dry=True, environment=environment or dict(os.environ), command=command, scratch=scratch
    )  # fmt: skip


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    with made(tmp_path, STAND_IN) as worker:
        yield worker


def test_a_worker_that_ends_is_started_anew(worker: Worker) -> None:
    first = worker.ask({"run": "one"}, 60)["pid"]
    assert worker.ask({"run": "one"}, 60)["pid"] == first
    for case, how in (("die", "SIGSEGV"), ("leave", "status 7")):
        with pytest.raises(WorkerEnded, match=how):
            worker.ask({"run": case}, 60)
        second = worker.ask({"run": "one"}, 60)["pid"]
        assert second != first
        first = second
    assert worker.ask({"run": "lose"}, 60)["pid"] == first
    assert worker.ask({"run": "one"}, 60)["pid"] != first


def test_a_worker_that_hangs_is_killed_with_all_that_it_started(worker: Worker, tmp_path: Path) -> None:
    worker.ask({"run": "one"}, 60)
    with pytest.raises(TimedOut, match="did not end within 1 s"):
        worker.ask({"run": "hang"}, 1.0)
    child = int((tmp_path / "log.txt").read_text().split()[-1])
    with suppress(ProcessLookupError):  # it may be gone for good already
        with os.fdopen(os.pidfd_open(child)) as handle:
            ended, _, _ = select.select([handle], [], [], 30)
        assert ended
    assert worker.ask({"run": "one"}, 60)


def test_starting_takes_no_longer_than_its_case_may(tmp_path: Path) -> None:
    with (
        made(tmp_path, "import time; time.sleep(60)") as worker,
        pytest.raises(TimedOut, match="did not start within 1 s"),
    ):
        worker.ask({"run": "one"}, 1.0)


def test_workers_begin_together_and_are_asked_later(tmp_path: Path) -> None:
    """Each opens one end of a pipe, for which the other's process must be there."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ExitStack() as stack:
        workers = [
            stack.enter_context(made(tmp_path, f"open({str(pipe)!r}, {mode!r})\n{STAND_IN}")) for mode in ("r", "w")
        ]
        for worker in workers:
            worker.begin()
        pids = {worker.ask({"run": "one"}, 60)["pid"] for worker in workers for _ in range(2)}
    assert len(pids) == len(workers)  # none was started twice


def test_what_a_killed_case_wrote_goes_with_it(tmp_path: Path) -> None:
    hello = STAND_IN.strip().splitlines()[:3]
    write = f"folder = os.environ['{SCRATCH}'].split(os.pathsep)[0]; os.mkdir(folder + '/checkpoint')"
    fill = "open(folder + '/checkpoint/weights', 'w').write('much'); print('', file=open(folder + '/seen', 'w'))"
    program = "\n".join([*hello, "sys.stdin.readline()", write, fill, "time.sleep(60)"])
    with scratch_folders("triolet-test-") as folders, made(tmp_path, program, scratch=folders) as worker:
        worker.machine()
        with pytest.raises(TimedOut):
            worker.ask({"run": "one"}, 2.0)
        assert all(folder.is_dir() and not list(folder.iterdir()) for folder in folders)
        assert "Error" not in (tmp_path / "log.txt").read_text()  # it did write
    assert not any(folder.exists() for folder in folders)


def test_a_machine_that_will_not_do_is_said_once(tmp_path: Path) -> None:
    with (
        made(tmp_path, """print('{"refused": "no GPU here"}')""") as worker,
        pytest.raises(WorkerRefused, match="no GPU here"),
    ):
        worker.machine()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def taking(clock: Clock, seconds: float, ran: list[str]) -> Ask:
    """Cases of so many seconds; one that has less is killed, as by a worker."""

    def ask(name: str, limit: float) -> Finding:
        if limit < seconds:
            clock.now += limit
            raise TimedOut("did not end")
        clock.now += seconds
        ran.append(name)
        return Finding(name, "right", seconds)

    return ask


def test_a_run_ends_in_time_and_the_next_one_goes_on(tmp_path: Path) -> None:
    names = [f"correctness/{index}" for index in range(8)]
    ran: list[str] = []
    for expected_left in (5, 2, 0):
        clock = Clock()
        left = run_cases(
            names, [taking(clock, 50.0, ran)], Journal(tmp_path, MACHINE),
            Times(0.0, 2.0, shared=False, clock=clock), longest=90.0,
        )  # fmt: skip
        assert left == expected_left
        assert clock.now <= 120 + GRACE  # nobody begins after two minutes
    assert ran == names
    assert set(Journal(tmp_path, MACHINE).findings) == set(names)


def test_a_case_that_the_end_of_the_run_cuts_short_is_run_again(tmp_path: Path) -> None:
    clock, ran = Clock(), list[str]()
    ask = taking(clock, 100.0, ran)
    times = Times(0.0, 1.0, shared=False, clock=clock)
    clock.now = 59.0
    assert run_cases(["kernels/one"], [ask], Journal(tmp_path, MACHINE), times, longest=200.0) == 1
    assert clock.now == 60 + GRACE
    for _ in range(5):  # never a crash, however often
        clock.now = 59.0
        assert run_cases(["kernels/one"], [ask], Journal(tmp_path, MACHINE), times, longest=200.0) == 1
    clock.now = 0.0
    assert run_cases(["kernels/one"], [ask], Journal(tmp_path, MACHINE), times, longest=200.0) == 0
    assert ran == ["kernels/one"]


def test_a_case_that_hangs_or_crashes_is_a_finding_and_the_rest_is_run(tmp_path: Path) -> None:
    def ask(name: str, _limit: float) -> Finding:
        if name.endswith("hangs"):
            raise TimedOut("did not end within 90 s")
        if name.endswith("crashes"):
            raise WorkerEnded("the process ended in it: SIGSEGV")
        return Finding(name, "right", 0.1)

    journal = Journal(tmp_path, MACHINE)
    names = ["kernels/hangs", "kernels/crashes", "kernels/works"]
    assert run_cases(names, [ask], journal, Times(0.0, 9.0, shared=True, clock=Clock()), longest=90.0) == 0
    assert [journal.findings[name].status for name in names] == ["crashed", "crashed", "right"]
    assert "SIGSEGV" in journal.findings["kernels/crashes"].note


def test_a_machine_without_its_device_leaves_the_rest_for_another_time(tmp_path: Path) -> None:
    def ask(name: str, _limit: float) -> Finding:
        if name.endswith("one"):
            return Finding(name, "right", 0.1)
        raise WorkerRefused("torch sees no GPU here")

    journal = Journal(tmp_path, MACHINE)
    names = ["kernels/one", "kernels/two", "kernels/three"]
    assert run_cases(names, [ask], journal, Times(0.0, 9.0, shared=True, clock=Clock()), longest=90.0) == 2
    assert set(Journal(tmp_path, MACHINE).findings) == {"kernels/one"}


def test_workers_share_the_cases(tmp_path: Path) -> None:
    meeting = threading.Barrier(2, timeout=30)

    def ask(name: str, _limit: float) -> Finding:
        meeting.wait()  # both are at work at the same time, or this breaks
        return Finding(name, "right", 0.1)

    journal = Journal(tmp_path, MACHINE)
    names = [f"correctness/{index}" for index in range(6)]
    assert run_cases(names, [ask, ask], journal, Times(0.0, 9.0, shared=True, clock=Clock()), longest=90.0) == 0
    assert set(Journal(tmp_path, MACHINE).findings) == set(names)


def wheel(folder: Path, name: str) -> None:
    info = f"{name}-1.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", "HERE = True\n")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")


def test_wheels_are_there_for_the_workers_alone(tmp_path: Path) -> None:
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    wheels.mkdir()
    with pytest.raises(ValueError, match="there are no wheels"):
        install_wheels(wheels, site)
    wheel(wheels, "triolet_rival")
    (wheels / "broken-1-py3-none-any.whl").write_text("no archive")
    said = install_wheels(wheels, site)
    assert said.startswith("1 of 2 wheels installed")
    assert "broken-1-py3-none-any.whl: " in said
    program = f"import triolet_rival, triolet.models.checkpoint.spec\n{STAND_IN}"
    with made(tmp_path, program, path_with(site, processes=2)) as worker:
        assert worker.machine() == GpuMachine("cpu", 90, "a machine", {})
