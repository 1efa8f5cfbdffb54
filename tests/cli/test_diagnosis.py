"""What `triolet doctor` says looks wrong: a table of reports and sentences. Of a healthy server it says nothing."""

from typing import Any

import pytest
from msgspec import structs

from triolet.actors.gateway.accounts import Accounts
from triolet.actors.scheduler.state import SchedulerState
from triolet.actors.supervisor.worker_status import WorkerStatus
from triolet.cli.diagnosis import problems, step_rows
from triolet.protocol.flight import (
    DoctorReport,
    FlightEvent,
    FlightMinute,
    FlightRecording,
    Record,
    StepBack,
    StepSent,
)
from triolet.protocol.reports import (
    BlockCounts,
    FrontsReport,
    Health,
    Ledger,
    ProcessFigures,
    ServerReport,
    WorkerFigures,
)

NOW = 10_000.0
HEALTHY = Health(ready=True, status="ready", reason="")
IDLE = SchedulerState(secret=b"", max_losses=1).statistics()
BLOCKS = BlockCounts(free=0, cached=2, owned=98, total=100)
STARTED = FlightEvent(NOW - 5000, "worker", "ready: pid 7")


def steps(count: int, *, duration: float = 0.02, link: float = 0.001, preempted: int = 0) -> list[Record]:
    """The last ones, all back."""
    found: list[Record] = []
    for number in range(1, count + 1):
        at = NOW - (count - number + 1) * duration
        found += [StepSent(number, at, 8, 8, preempted=preempted), StepBack(number, at + duration, duration, link)]
    return found


def minutes(*each: tuple[int, float, int]) -> list[Record]:
    """Steps, seconds, tokens."""
    return [FlightMinute(NOW - 60 * (len(each) - number), *one) for number, one in enumerate(each)]


def waiting(**reasons: int) -> dict[str, Any]:
    return {"waiting": sum(reasons.values()), "waiting_by_reason": reasons, "blocks": BLOCKS}


def report(
    *records: Record,
    health: Health = HEALTHY,
    ledger: Ledger | None = None,
    **scheduler: Any,  # statistics
) -> DoctorReport:
    status = WorkerStatus()
    figures = ServerReport(
        health=health,
        scheduler=structs.replace(IDLE, **scheduler),
        worker=WorkerFigures(pid=7, restarts=0, step_time=status.step_time.figures()),
        process=ProcessFigures(tasks=1, fds=1, rss_bytes=1, cpu_seconds=1.0),
        web=FrontsReport(live=0, accounts=Accounts().figures()),
    )
    recording = FlightRecording(now=NOW, records=[STARTED, *records])
    return DoctorReport(
        version="1", wall=0.0, health=health, ledger=ledger, reports={"m": figures}, recordings={"m": recording}
    )


def ledger(*, requests: int, owned: int) -> Ledger:
    blocks = BlockCounts(free=100 - owned, cached=0, owned=owned, total=100)
    return Ledger(kv_blocks=blocks, requests=requests, kept_answers=0, tasks=1, fds=1, children=1, rss_bytes=1)


SILENT = Health(ready=False, status="silent", reason="the worker process has not answered for 3.0 s")
LOST = FlightEvent(NOW - 20, "worker", "restarting: the worker died with SIGSEGV; another one is being started")
USUAL = ((600, 12.0, 4800),) * 3  # a step takes 0.02 s, a token 0.0025 s

CASES = {
    "silent": (report(health=SILENT), "The server is silent: the worker process has not answered for 3.0 s."),
    "blocks": (
        report(**waiting(blocks=1, order=11)),
        "Of 12 waiting choices 1 needs KV blocks, 11 are behind: 98 of 100 are in use. More --kv-cache-memory, or "
        "shorter prompts and answers.",
    ),
    "rows": (
        report(**waiting(rows=3)),
        "Of 3 waiting choices 3 need a row of the batch: more --max-running, if memory allows.",
    ),
    "readers": (report(parked=12), "12 choices of answers wait for their readers, which are slow."),
    "lost": (
        report(LOST, LOST),
        "The worker was lost 2 times in the last 10 minutes, last: the worker died with SIGSEGV.",
    ),
    "convicted": (
        report(FlightEvent(NOW - 5, "convicted", "request r1 killed 2 workers")),
        "The request r1 killed 2 workers: its crash report is in the data folder.",
    ),
    "refused": (
        report(
            FlightEvent(NOW - 9, "refused", "server_overloaded 40, model_loading 1"),
            FlightEvent(NOW - 5, "refused", "server_overloaded 2"),
        ),
        "Requests were refused or failed in the last 10 minutes: 42 with server_overloaded, 1 with model_loading.",
    ),
    "not back": (
        report(*steps(20), StepSent(21, NOW - 8.0, 64, 512)),
        "Step 21 (64 sequences, 512 tokens) was sent 8.0 s ago and is not back; steps take 0.020 s.",
    ),
    "slower": (
        report(*minutes(*USUAL, (15, 12.0, 120))),
        "A step takes 40 times as long as in the 3 minutes before, a token 40 times: is the machine busy?",
    ),
    "preempted": (
        report(*steps(10, preempted=2)),
        "20 preemptions in 10 steps: KV blocks are short, and answers are computed again.",
    ),
    "front": (
        report(*steps(100, link=0.05)),
        "Steps spend 5.0 s outside the worker and 2.0 s in it: the front process is too busy.",
    ),
    "leak": (
        report(ledger=ledger(requests=0, owned=4)),
        "4 KV blocks are owned though no request lives: a defect, please report it.",
    ),
    "stuck": (
        report(FlightEvent(NOW - 9, "loop", "turns"), FlightEvent(NOW - 5, "loop", "stuck")),
        "The event loop is stuck: `triolet doctor --pid PID` shows where it is.",
    ),
    "engine": (
        report(FlightEvent(NOW, "stopped", "LedgerError in blocks.py:9")),
        "The engine ended: LedgerError in blocks.py:9.",
    ),
    "killed": (
        report(health=Health(ready=False, status="recorded", reason="")),
        "The recording ends without a stop: the process was killed, or runs still.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_looks_wrong_is_said_and_nothing_else(case: str) -> None:
    found, sentence = CASES[case]
    assert problems(found) == [sentence]


FINE = {
    "idle": report(),
    "busy": report(*steps(100), ledger=ledger(requests=8, owned=50), running=8),
    "a lost worker long ago": report(FlightEvent(NOW - 700, "worker", "restarting: it died")),
    "a step that a lost worker had": report(
        StepSent(1, NOW - 4000, 1, 1), FlightEvent(NOW - 3999, "worker", "restarting: x"), *steps(3)
    ),
    "a first step": report(StepSent(1, NOW - 1.5, 1, 512)),
    "long steps since prompts are read": report(*minutes(*USUAL, (60, 30.0, 30_000))),
    "short steps with few tokens": report(*minutes(*USUAL, (2000, 30.0, 2000))),
    "mistakes of clients": report(FlightEvent(NOW - 9, "refused", "invalid_value 40, not_found 1")),
    "the next plan's": report(**waiting(step=2)),
    "stopped": report(
        FlightEvent(NOW, "stopped", "in order"), health=Health(ready=False, status="recorded", reason="")
    ),
}


@pytest.mark.parametrize("case", FINE)
def test_nothing_is_said_of(case: str) -> None:
    assert problems(FINE[case]) == []


def test_of_several_models_each_sentence_names_its_model() -> None:
    one = report(LOST)
    two = structs.replace(one, recordings={"a": one.recordings["m"], "b": FlightRecording(now=NOW, records=[])})
    assert [sentence[:20] for sentence in problems(two)] == ["a: The worker was lo"]


def test_a_step_is_joined_with_its_answer() -> None:
    sent, back = StepSent(3, 1.0, 2, 2), StepBack(3, 1.5, 0.25, 0.125)
    assert step_rows([sent, StepSent(4, 1.1, 2, 2), back]) == [(sent, back), (StepSent(4, 1.1, 2, 2), None)]
