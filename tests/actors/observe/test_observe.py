"""Views of the engine: what the rows of batch and queue say in each state, how much is said at most, and that looking
changes nothing.
"""

from collections import Counter

import msgspec
import pytest

from triolet.actors.fronts.division import owner
from triolet.actors.gateway.accounts import Accounts
from triolet.actors.observe.observe import Observer
from triolet.actors.observe.view_rows import TenantNumbers, batch_rows, owned_map, queue_rows, totals
from triolet.actors.scheduler.state import SchedulerState
from triolet.actors.supervisor.worker_status import WorkerStatus
from triolet.protocol.engine_view import MAX_ROWS, SEVERAL, AboutEngine, BatchRow, QueueRow, ToDashboard, View
from triolet.protocol.messages import Cancel, Credit, WorkerLost
from triolet.protocol.reports import FrontsReport
from triolet.protocol.settings import EngineSettings, ServeSettings

from ..scheduler.scheduling import Bench, admit, done, ready, text


def batch(bench: Bench) -> list[BatchRow]:
    return batch_rows(bench.state, bench.now, TenantNumbers())


def queue(bench: Bench) -> list[QueueRow]:
    return queue_rows(bench.state, bench.now, TenantNumbers())


class Looking:
    """An observer with a hand on its clock."""

    def __init__(self, state: SchedulerState) -> None:
        self.now = 0.0
        self.status = WorkerStatus()
        self.observer = Observer(
            ServeSettings(engine=EngineSettings(model="m")),
            state=state,
            status=self.status,
            draining=lambda: False,
            collect_web=_nobody_asks,
            clock=lambda: self.now,
        )

    def look(self, now: float) -> View:
        self.now = now
        return self.observer.view_with(FrontsReport(live=0, accounts=Accounts().figures()))

    def about(self, now: float) -> AboutEngine:
        self.now = now
        self.status.set_ready(ready().ready, now)
        about = self.observer.about()
        assert about is not None
        return about


async def _nobody_asks() -> FrontsReport:
    raise AssertionError("the web's figures are given here")


def test_a_row_grows_from_prefill_to_decode() -> None:
    bench = Bench(worker=ready(max_step_tokens=64))
    bench.send(admit("front-1a", text(100), arrival_time=2.0, max_tokens=50, priority=3))
    bench.now = 5.5
    bench.step()
    (row,) = batch(bench)
    assert row == BatchRow(
        sequence=1, request=1, id="1a", priority=3, state="prefill", prompt=100, computed=64, limit=150, blocks=1,
        seconds=3.5,
    )  # fmt: skip
    bench.step()
    (row,) = batch(bench)
    assert (row.state, row.computed, row.generated, row.blocks) == ("decode", 100, 1, 2)
    for generated in range(2, 5):
        bench.step()
        (row,) = batch(bench)
        assert (row.generated, row.computed) == (generated, 99 + generated)


def test_cached_prompt_tokens_are_told() -> None:
    bench = Bench()
    bench.send(admit("a", text(130)))
    bench.step()
    bench.send(admit("b", text(130)))
    bench.step()
    first, second = batch(bench)
    assert (first.cached, second.cached) == (0, 128)
    found = owned_map(bench.state)
    shared = bench.state.table.sequences[1].blocks[0]
    assert found.owner[shared] == SEVERAL
    assert {first.request, second.request} == {owner for owner in found.owner if owner > 0}


def test_choices_of_a_request_share_its_number_also_when_the_first_has_ended() -> None:
    bench = Bench()
    bench.send(admit("a", text(10)), admit("b", text(10, 50), n=3, max_tokens=5))
    bench.step()
    assert [(row.id, row.choice, row.request) for row in batch(bench)] == [
        ("a", 0, 1), ("b", 0, 2), ("b", 1, 2), ("b", 2, 2)
    ]  # fmt: skip
    bench.step(s2=0)  # its first choice says end of sequence
    assert [(row.choice, row.request) for row in batch(bench)] == [(0, 1), (1, 2), (2, 2)]


def test_a_reader_that_is_behind_parks_its_row() -> None:
    bench = Bench(outbox_tokens=2)
    bench.send(admit("a", text(10)))
    for _ in range(2):
        bench.step()
    assert bench.state.plan() is None
    (row,) = batch(bench)
    assert (row.state, row.generated, row.blocks) == ("parked", 2, 1)
    assert owned_map(bench.state).owner.count(row.request) == 1  # it keeps its blocks
    bench.send(Credit(id="a", tokens=5))
    bench.step()
    assert batch(bench)[0].state == "decode"


def test_a_preempted_sequence_waits_and_then_computes_again() -> None:
    bench = Bench(worker=ready(num_blocks=4, max_step_tokens=100, max_running=2))
    bench.send(admit("late", text(60), max_tokens=100, priority=5))
    for _ in range(70):
        bench.step()
    bench.send(admit("urgent", text(120, 1000), max_tokens=60, priority=0))
    bench.step()
    (urgent,), (waiting,) = batch(bench), queue(bench)
    assert (urgent.id, waiting.id, waiting.generated) == ("urgent", "late", 70)
    assert waiting.blocked in ("blocks", "budget")
    while bench.state.table.requests.get("urgent"):
        bench.step()
    while not batch(bench):
        bench.step()
    (row,) = batch(bench)
    assert row.id == "late"
    assert row.state == "recompute" or row.computed >= row.prompt + row.generated - 1
    assert bench.state.totals.preemptions == 1


def test_the_queue_tells_who_waits_for_rows_and_who_for_its_turn() -> None:
    bench = Bench(worker=ready(max_running=2))
    bench.send(*(admit(name, text(10, first)) for name, first in zip("abcd", (1, 100, 200, 300), strict=True)))
    bench.step()
    assert [(row.id, row.blocked) for row in queue(bench)] == [("c", "rows"), ("d", "order")]


def test_the_queue_tells_how_many_blocks_are_missing() -> None:
    bench = Bench(worker=ready(num_blocks=4, max_step_tokens=512))
    bench.send(admit("a", text(100), max_tokens=50), admit("b", text(150, 1000), max_tokens=50))
    bench.step()
    (row,) = queue(bench)
    assert (row.id, row.blocked, row.blocks_wanted, row.blocks_available) == ("b", "blocks", 3, 1)
    assert bench.state.table.pool.counts().owned == 2  # and of the other two one is kept for the row that runs


def test_the_queue_counts_only_blocks_that_are_not_cached_for_it() -> None:
    bench = Bench(worker=ready(num_blocks=4, max_step_tokens=512))
    bench.send(admit("a", text(128), max_tokens=1))
    bench.step()  # it ends, and its two blocks stay cached
    bench.send(admit("b", text(100, 1000), max_tokens=50), admit("c", text(180), max_tokens=10))
    bench.step()
    (row,) = queue(bench)
    assert (row.id, row.blocked) == ("c", "blocks")
    assert (row.blocks_wanted, row.blocks_available) == (1, 0)  # of 3, two are cached; nothing is free beside those


def test_without_a_worker_everybody_waits_for_it() -> None:
    bench = Bench()
    bench.send(admit("a", text(10)))
    bench.step()
    bench.send(WorkerLost(reason="gone"), admit("b", text(10, 50)))
    assert batch(bench) == []
    assert [(row.id, row.blocked) for row in queue(bench)] == [("a", "worker"), ("b", "worker")]


def test_a_step_without_tokens_left_says_so() -> None:
    bench = Bench(worker=ready(max_step_tokens=64))
    bench.send(admit("a", text(100)), admit("b", text(100, 1000)))
    bench.step()
    assert [row.blocked for row in queue(bench)] == ["budget"]


def test_prefill_tokens_are_counted_as_planned() -> None:
    bench = Bench(worker=ready(max_step_tokens=64))
    bench.send(admit("a", text(100), max_tokens=5))
    counted: list[int] = []
    for _ in range(4):
        bench.step()
        counted.append(totals(bench.state.statistics().totals, Accounts(), WorkerStatus()).prefill_tokens)
    assert counted == [64, 100, 100, 100]  # the tokens decoded since are not among them


def test_names_are_cut_and_tenants_numbered() -> None:
    bench = Bench()
    bench.send(
        admit("1f3a-00ff", text(10), tenant="digest of a key"),
        admit("x" * 100, text(10, 50), tenant="digest of another"),
        admit("c", text(10, 100), tenant="digest of a key"),
    )
    bench.step()
    tenant = TenantNumbers()
    rows = batch_rows(bench.state, 0.0, tenant)
    assert [row.id for row in rows] == ["00ff", "x" * 12, "c"]
    assert [row.tenant for row in rows] == [1, 2, 1]
    assert [row.tenant for row in batch_rows(bench.state, 0.0, tenant)] == [1, 2, 1]
    assert b"digest" not in msgspec.json.encode(Looking(bench.state).look(0.0))
    assert TenantNumbers()("") == 0


def test_rows_name_the_process_that_holds_them() -> None:
    bench = Bench(worker=ready(max_running=1))
    bench.send(admit("w1-7", text(10)), admit("w2-7", text(10, 50)))
    bench.step()
    rows = batch_rows(bench.state, 0.0, TenantNumbers(), owner)
    waiting = queue_rows(bench.state, 0.0, TenantNumbers(), owner)
    assert [(row.id, row.process) for row in rows] == [("7", "w1")]
    assert [(row.id, row.process) for row in waiting] == [("7", "w2")]


def same_as_explained(bench: Bench) -> list[QueueRow]:
    """The queue, each of whose rows says what an explanation of its request says at the same moment."""
    rows = queue(bench)
    for row in rows:
        standing = bench.state.standing(row.id, bench.now)
        assert standing is not None
        assert standing.blocked_on is not None
        assert row.blocked == standing.blocked_on.kind
        if row.blocked == "blocks":
            assert (row.blocks_wanted, row.blocks_available) == (standing.blocked_on.need, standing.blocked_on.free)
    assert bench.state.statistics().waiting_by_reason == dict(Counter(row.blocked for row in rows))
    return rows


def test_page_and_explanation_speak_of_the_same_plan_also_when_much_has_changed_since() -> None:
    bench = Bench(worker=ready(num_blocks=6, max_step_tokens=512))
    bench.send(*(admit(name, text(150, 1000 * n), max_tokens=20) for n, name in enumerate("abc")))
    bench.step()
    before = [
        QueueRow(
            sequence=2, request=2, id="b", prompt=150, seconds=0, blocked="blocks", blocks_wanted=3, blocks_available=2
        ),
        QueueRow(sequence=3, request=3, id="c", prompt=150, seconds=0, blocked="order"),
    ]
    assert same_as_explained(bench) == before
    bench.send(Cancel(id="a"), admit("late", text(10, 6000)), admit("urgent", text(10, 7000), priority=-1))
    urgent, *others, late = same_as_explained(bench)
    assert others == before  # three blocks have come free, and only the next plan will know
    assert [(row.id, row.blocked) for row in (urgent, late)] == [("urgent", "step"), ("late", "step")]
    bench.step()
    assert [(row.id, row.blocked) for row in same_as_explained(bench)] == [("c", "blocks"), ("late", "order")]


def test_a_view_is_bounded_and_counts_what_it_leaves_out() -> None:
    bench = Bench(worker=ready(num_blocks=1000, max_running=MAX_ROWS + 10, max_step_tokens=10 * MAX_ROWS))
    bench.send(*(admit(f"r{number}", text(3, number)) for number in range(3 * MAX_ROWS)))
    bench.step()
    view = Looking(bench.state).look(0.0)
    assert (len(view.rows), view.running) == (MAX_ROWS, MAX_ROWS + 10)
    assert (len(view.queue), view.waiting) == (MAX_ROWS, 2 * MAX_ROWS - 10)
    assert sum(view.waiting_by_reason.values()) == view.waiting
    assert len(msgspec.json.encode(view)) < 120_000


def test_looking_changes_nothing() -> None:
    """Two schedulers in step, one of them watched all the time, decide the same."""
    plain, watched = (Bench(worker=ready(num_blocks=6, max_step_tokens=96, max_running=3)) for _ in range(2))
    looking = Looking(watched.state)
    for bench in (plain, watched):
        bench.send(*(admit(f"r{n}", text(40 + 30 * n, 100 * n), max_tokens=40, priority=n % 2) for n in range(6)))
    for _ in range(300):
        before = watched.state.statistics()
        looking.look(watched.now)
        assert watched.state.statistics() == before
        steps = [bench.state.plan() for bench in (plain, watched)]
        assert steps[0] == steps[1]
        if steps[0] is None:
            break
        for bench, step in zip((plain, watched), steps, strict=True):
            assert step is not None
            bench.send(done(step))
    assert not watched.state.table.requests


def test_frames_decode_as_they_were_encoded() -> None:
    bench = Bench()
    bench.send(admit("a", text(10)), admit("b", text(10)))
    bench.step()
    looking = Looking(bench.state)
    view = looking.look(3.0)
    about = looking.about(7.0)
    assert about.uptime == 7.0
    assert [sample.time for sample in about.history] == [3.0]
    for frame in (view, about):
        assert msgspec.json.decode(msgspec.json.encode(frame), type=ToDashboard) == frame


@pytest.mark.parametrize(
    ("times", "kept"), [((0.0, 0.5, 1.0, 1.9, 2.0), [0.0, 1.0, 2.0]), ((0.0, 100.0), [0.0, 100.0])]
)
def test_samples_are_a_second_apart(times: tuple[float, ...], kept: list[float]) -> None:
    bench = Bench()
    looking = Looking(bench.state)
    views: list[View] = [looking.look(time) for time in times]
    assert [view.time for view in views] == list(times)
    assert [sample.time for sample in looking.about(0.0).history] == kept
