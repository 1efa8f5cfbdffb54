"""The flight recorder: what it says of steps, of the worker and of each minute, and that it never grows."""

import sys

import msgspec

from triolet.actors.flight import EVENTS, STEP_RECORDS, TEXT, Flight
from triolet.actors.supervisor.worker_status import WorkerStatus
from triolet.protocol.flight import FlightEvent, FlightMinute, Record, StepSent
from triolet.protocol.reports import Health

from .scheduler.scheduling import Bench, admit, flood, ready, text

HEALTHY = Health(ready=True, status="ready", reason="")


def recorded(flight: Flight) -> list[Record]:
    """As a report has it: tuples that do not fit the Structs raise."""
    return msgspec.convert([*flight.events, *flight.steps], list[Record])


def test_steps_say_what_they_compute_and_why_the_first_waiting_one_waits() -> None:
    bench = Bench(worker=ready(max_running=1))
    bench.send(admit("a", text(3)), admit("b", text(5, 100)))
    bench.step()
    bench.step()
    first, second, *_ = [record for record in recorded(bench.state.flight) if isinstance(record, StepSent)]
    assert (first.sequences, first.tokens, first.prefill_tokens, first.new) == (1, 3, 3, 1)
    assert (second.tokens, second.prefill_tokens, second.new) == (1, 0, 0)
    for step in (first, second):
        assert (step.waiting, step.blocked, step.need, step.free) == (1, "rows", 1, 0)


def test_a_steady_step_says_the_same_in_fewer_words() -> None:
    bench = Bench()
    bench.send(*flood(4))
    bench.step()
    bench.step()
    steady = [record for record in recorded(bench.state.flight) if isinstance(record, StepSent)][1]
    assert (steady.sequences, steady.tokens) == (4, 4)
    assert (steady.prefill_tokens, steady.new, steady.preempted, steady.waiting, steady.blocked) == (0, 0, 0, 0, "")


def test_an_answer_says_how_long_the_step_was_outside_the_worker() -> None:
    flight = Flight()
    status = WorkerStatus(flight=flight)
    bench = Bench()
    bench.send(admit("a", text(3)))
    step = bench.state.plan()
    assert step is not None
    status.step_sent(step, 10.0)
    status.step_done(step.step, 0.25, 10.5)
    assert list(flight.steps) == [("back", step.step, 10.5, 0.25, 0.25)]


def test_changes_are_told_once_and_each_minute_has_a_line() -> None:
    flight = Flight()
    refused = {"server_overloaded": 2}
    for second in range(100, 200):
        steps = second - 100
        flight.watch(float(second), HEALTHY, refused, steps=steps, seconds=steps * 0.5, tokens=steps * 8)
        if second == 150:
            refused["rate_limit_exceeded"] = 1
    assert recorded(flight) == [
        FlightEvent(100.0, "health", "ready"),
        FlightEvent(100.0, "refused", "server_overloaded 2"),
        FlightEvent(151.0, "refused", "rate_limit_exceeded 1"),
        FlightMinute(160.0, 60, 30.0, 480),
    ]


def test_it_is_bounded_whatever_happens() -> None:
    flight, numbers = Flight(), (1 << 60,) * 7
    for at in range(3 * STEP_RECORDS):
        flight.steps.append(
            ("sent", at + (1 << 60), float(at), 1 << 60, 1 << 60, *numbers[:5], "suspect", *numbers[5:])
        )
        flight.event(float(at), "worker", "ü" * 10_000)
    assert (len(flight.steps), len(flight.events)) == (STEP_RECORDS, EVENTS)
    assert {len(str(record[3])) for record in flight.events} == {TEXT}
    held = {id(value): value for record in [*flight.steps, *flight.events] for value in (record, *record)}
    assert sum(map(sys.getsizeof, held.values())) < 5_000_000
