"""What a soak and a run of hostile inputs must find, in figures made up here; nothing is started."""

from collections import Counter

import pytest

from triolet.loadtest.chaos.hostile import HostileAnswer, HostileResult, told
from triolet.loadtest.chaos.hostile_inputs import frame, inputs
from triolet.loadtest.chaos.soak import WARM, Sample, SoakResult, page

LEDGER = {"requests": 0, "kv_blocks": {"owned": 0}, "tasks": 30, "fds": 12, "children": 1}
STEP = 5000


def soaked(front_each: int, worker_pids: tuple[int, ...] = (2,), **last: object) -> SoakResult:
    """Twelve samples; the front grows by so many bytes in each after a warm-up in which it grows by much more."""
    result = SoakResult(minutes=1.0, seed=1, counts=Counter(SSE=1))
    for number in range(12):
        warm = max(0, number * STEP - WARM) // STEP
        memory = {"Rss": 90 * 2**20 + (number - warm) * 2**20 + warm * front_each}
        ledger = LEDGER | (last if number == 11 else {})
        result.samples.append(
            Sample(
                seconds=float(number),
                requests=number * STEP,
                front=memory,
                worker={"Rss": 1 << 30},
                worker_pid=worker_pids[number % len(worker_pids)],
                ledger=ledger,
            )
        )
    return result


def test_what_is_flat_passes_and_shows_in_a_page() -> None:
    result = soaked(100_000)
    assert result.judged() == []
    assert result.growth("front") == pytest.approx(200_000)
    assert page(result).count("<svg") == 4


def test_growth_after_the_warm_up_is_found() -> None:
    (found,) = soaked(600_000).judged()
    assert found == "the front grows by 1.14 MiB in 10,000 requests"


def test_what_is_left_is_found() -> None:
    assert "fds: 13 after 12" in soaked(0, fds=13).judged()
    assert "1 blocks are owned" in soaked(0, kv_blocks={"owned": 1}).judged()
    failed = soaked(0)
    failed.faults.append("SSE: reset")
    assert failed.judged() == ["1 requests failed: ['SSE: reset']"]


def test_the_worker_is_judged_by_the_time_since_its_start() -> None:
    assert soaked(0, worker_pids=(2, 3)).growth("worker") == 0
    assert soaked(0, worker_pids=tuple(range(12))).growth("worker") is None  # each sample has another one


def test_there_are_many_hostile_inputs_and_each_is_another() -> None:
    found = [*inputs()]
    assert len(found) >= 500
    assert len({(each.surface, each.name) for each in found}) == len({each.data for each in found}) == len(found)


@pytest.mark.parametrize(
    ("received", "class_"),
    [
        (b'HTTP/1.1 400 \r\n\r\n{"error":{"code":"bad_request"}}', "400 bad_request closed"),
        (b"HTTP/1.1 101 \r\n\r\n\x88\x02\x03\xea", "101 closing frame 1002 closed"),
        (frame(4, 0, 0) + frame(7, 0, 0, bytes(7) + b"\x01"), "goaway 1 closed"),
        (b"", "closed"),
    ],
)
def test_the_class_of_an_answer(received: bytes, class_: str) -> None:
    assert told(received, "closed") == class_


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"deaths": 1}, "1 processes died"),
        ({"changed": 1}, "texts of canaries"),
        ({"leaks": ["x"]}, "tell too much"),
        ({"faults": ["x"]}, "canaries failed"),
        ({"stalls": {"x": [(0.2, 0.01), (0.2, 0.02)]}}, "stall again and again: ['x']"),
        ({"health": "503"}, "health: 503"),
        ({"answers": [HostileAnswer(surface="head", name="x", answer="500 closed", stall=0.0)]}, "status 500: ['x']"),
        ({"ledger": {"requests": 1}}, "requests are left"),
    ],
)
def test_what_hostile_inputs_must_not_do(changes: dict[str, object], fault: str) -> None:
    fields: dict[str, object] = {"health": "200", "ledger": {"requests": 0}} | changes
    (found,) = HostileResult(**fields).judged()  # type: ignore[arg-type]  # the fields of one case
    assert fault in found


def test_a_stall_of_the_machine_is_no_stall_of_the_input() -> None:
    result = HostileResult(health="200", ledger={"requests": 0}, stalls={"x": [(0.2, 0.15), (0.1, 0.15)]})
    assert result.judged() == []
