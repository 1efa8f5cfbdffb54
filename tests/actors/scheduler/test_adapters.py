"""Requests with a LoRA adapter: they wait for the worker to load it, and share a prefix only with their like."""

import pytest

from triolet.protocol.adapters import Adapter
from triolet.protocol.events import TokenLogprob, TopLogprob
from triolet.protocol.messages import AdapterGone, Cancel, Credit, WorkerLost
from triolet.protocol.reports import AdapterFigures
from triolet.protocol.requests import BeamRule
from triolet.protocol.steps import (
    AdapterFailed,
    AdapterReady,
    ForgetAdapters,
    GrammarReady,
    PrepareAdapter,
    PrepareGrammar,
    Row,
    Step,
    StepDone,
)

from .scheduling import Bench, admit, choices_of, computed, ready, text

LAW = Adapter("law", "/adapters/law")


def test_a_request_waits_for_its_adapter_and_others_go_before_it() -> None:
    bench = Bench()
    bench.send(admit("a", text(3), adapter=LAW), admit("b", text(4, 50)), admit("c", text(5, 90), adapter=LAW))
    assert bench.state.take_preparations() == [PrepareAdapter(adapter=1, path="/adapters/law")]
    assert computed(bench.step()) == {2: 4}
    assert bench.whereabouts("a") == bench.whereabouts("c") == {0: "adapter"}
    under_way = AdapterFigures(most=16, loading=1, loads=1, waiting_names=("law",))
    assert bench.state.statistics().adapters == under_way
    bench.send(AdapterReady(adapter=1))
    loaded = AdapterFigures(most=16, loaded=1, loads=1, running_names=("law",))
    assert bench.state.statistics().adapters == loaded
    assert [record.adapter for record in bench.step().new] == [1, 1]
    assert not bench.state.take_preparations()


def test_an_adapter_that_cannot_be_loaded_fails_its_requests_alone() -> None:
    bench = Bench()
    bench.send(admit("a", text(3), adapter=LAW), admit("b", text(3)))
    bench.state.take_preparations()
    bench.send(AdapterFailed(adapter=1, message="rank 4096 is too high"))
    (failed,) = [choice for message in bench.texts() for choice in choices_of(message)]
    assert (failed.id, failed.error) == ("a", "adapter_failed")
    assert failed.message == "The LoRA adapter cannot be loaded: rank 4096 is too high"
    assert computed(bench.step()) == {2: 3}


def test_what_another_loading_of_the_same_name_computed_is_not_read() -> None:
    """Nor what it was computed with before the worker had to forget it: its files may have changed."""
    bench = Bench()
    for number, adapter in enumerate((LAW, Adapter("law", "/adapters/law", 2)), 1):
        bench.send(admit(str(number), text(200), adapter=adapter))
        bench.state.take_preparations()
        bench.send(AdapterReady(adapter=number))
        assert computed(bench.step()) == {number: 200}
        bench.send(Cancel(id=str(number)))
    bench.send(admit("again", text(200), adapter=LAW))
    assert computed(bench.step()) == {3: 8}


def test_a_new_worker_loads_again_what_is_in_use() -> None:
    bench = Bench()
    bench.send(admit("a", text(3), adapter=LAW), admit("b", text(3), adapter=Adapter("prose", "/adapters/prose")))
    bench.state.take_preparations()
    bench.send(AdapterReady(adapter=1), AdapterReady(adapter=2))
    bench.step()
    bench.send(Cancel(id="b"), WorkerLost(reason="test"), ready())
    assert bench.state.take_preparations() == [PrepareAdapter(adapter=1, path="/adapters/law")]
    assert bench.state.plan() is None
    bench.send(AdapterReady(adapter=1))
    assert bench.step().new[0].tokens == (*text(3), 5)


def test_an_adapter_that_kills_every_worker_ends_its_requests() -> None:
    bench = Bench(max_losses=2)
    bench.send(admit("a", text(3), adapter=LAW), admit("b", text(3, 50)))
    for _ in range(2):
        bench.state.take_preparations()
        bench.step()
        bench.send(WorkerLost(reason="test"), ready())
    failed = [choice.id for message in bench.texts() for choice in choices_of(message) if choice.error]
    assert failed == ["a"]


def named(name: str) -> Adapter:
    return Adapter(name, f"/adapters/{name}")


def test_the_least_recently_used_adapter_leaves_for_another() -> None:
    bench = Bench(max_adapters=2)
    for number, name in enumerate(("a", "b"), 1):
        bench.send(admit(name, text(3), adapter=named(name)))
        bench.state.take_preparations()
        bench.send(AdapterReady(adapter=number), Cancel(id=name))
    bench.send(admit("a2", text(3), adapter=named("a")), admit("c", text(3), adapter=named("c")))
    assert bench.state.take_preparations() == [
        ForgetAdapters(adapters=(2,)),
        PrepareAdapter(adapter=3, path="/adapters/c"),
    ]


def test_every_adapter_has_its_turn_however_many_requests_name_the_others() -> None:
    bench = Bench(max_adapters=1)
    bench.send(admit("a", text(3), adapter=named("a")))
    bench.state.take_preparations()
    bench.send(AdapterReady(adapter=1), admit("b", text(4, 50), adapter=named("b")))
    assert not bench.state.take_preparations()
    assert computed(bench.step()) == {1: 3}  # it is there for nobody yet, so it does not leave
    bench.send(admit("a2", text(5, 90), adapter=named("a")))
    assert not bench.state.take_preparations()
    assert computed(bench.step()) == {1: 1}  # the running one goes on
    assert bench.whereabouts("a2") == {0: "adapter"}
    bench.send(Cancel(id="a"))
    assert bench.state.take_preparations() == [
        ForgetAdapters(adapters=(1,)),
        PrepareAdapter(adapter=2, path="/adapters/b"),
    ]
    bench.send(AdapterReady(adapter=2))
    assert not bench.state.take_preparations()
    assert computed(bench.step()) == {2: 4}
    bench.send(admit("b2", text(6, 200), adapter=named("b")))
    assert not bench.state.take_preparations()
    bench.send(Cancel(id="b"))
    assert bench.state.take_preparations() == [
        ForgetAdapters(adapters=(2,)),
        PrepareAdapter(adapter=1, path="/adapters/a"),
    ]


def test_an_unloaded_adapter_leaves_the_worker_after_its_last_request() -> None:
    bench = Bench()
    bench.send(admit("a", text(3), adapter=LAW))
    bench.state.take_preparations()
    bench.send(AdapterReady(adapter=1), AdapterGone(adapter=LAW))
    assert not bench.state.take_preparations()
    assert computed(bench.step()) == {1: 3}
    bench.send(Cancel(id="a"))
    assert bench.state.take_preparations() == [ForgetAdapters(adapters=(1,))]


def test_a_request_for_an_unloaded_adapter_may_come_late_and_is_the_last() -> None:
    bench = Bench()
    bench.send(AdapterGone(adapter=LAW), admit("late", text(3), adapter=LAW, max_tokens=1))
    load(bench)
    bench.step()
    assert bench.state.take_preparations() == [ForgetAdapters(adapters=(1,))]


def load(bench: Bench) -> None:
    """Give the worker what it needs."""
    for made in bench.state.take_preparations():
        if isinstance(made, PrepareAdapter):
            bench.send(AdapterReady(adapter=made.adapter))


@pytest.mark.parametrize("served", [True, False])
def test_a_line_gives_its_adapters_place_to_a_request_and_gets_it_back(served: bool) -> None:
    bench = Bench(max_adapters=1)
    if not served:
        bench.send(admit("stream", text(3, 300), max_tokens=20))
        bench.step()
    bench.send(admit("line", text(3), max_tokens=5, background=True, adapter=named("a")))
    load(bench)
    bench.step()
    bench.send(admit("stream2", text(3, 600), max_tokens=20), admit("b", text(3, 50), max_tokens=2, adapter=named("b")))
    for _ in range(2):
        load(bench)
        bench.step()
    assert "b" not in bench.state.table.requests
    while bench.state.table.requests:
        load(bench)
        bench.step()
    assert bench.state.statistics().totals.preemptions == served


def test_a_line_takes_no_adapters_place_from_a_request_but_has_its_turn_among_lines() -> None:
    bench = Bench(max_adapters=1, outbox_tokens=2)
    bench.send(admit("slow", text(3), adapter=named("a")))
    load(bench)
    bench.step()
    bench.step()
    for place, name in enumerate("bc"):
        bench.send(admit(name, text(3, 50 + 50 * place), max_tokens=2, background=True, adapter=named(name)))
    assert not bench.state.take_preparations()
    bench.send(Cancel(id="slow"))
    load(bench)
    bench.step()
    assert not bench.state.take_preparations()  # the running line goes on
    bench.step()
    load(bench)
    bench.step()
    bench.step()
    assert not bench.state.table.requests


def test_a_slow_reader_keeps_no_adapters_place() -> None:
    bench = Bench(max_adapters=1, outbox_tokens=2)
    bench.send(admit("slow", text(3), adapter=named("a")))
    load(bench)
    bench.step()
    bench.step()
    bench.send(admit("b", text(3, 50), adapter=named("b")))
    load(bench)
    assert computed(bench.step()) == {2: 3}
    assert not bench.state.take_preparations()  # its reader has not come back
    bench.send(Credit(id="slow", tokens=1))
    load(bench)
    assert computed(bench.step()) == {2: 1}
    load(bench)  # now "b" waits for its reader
    assert computed(bench.step()) == {1: 5}


def test_a_beam_search_comes_back_when_its_adapter_had_to_leave() -> None:
    """Its beams wait for one another: those that wait for their adapter must not be waited for by the others."""
    bench = Bench(max_adapters=1)
    rule = BeamRule(answers=2, early_stopping=False)
    bench.send(admit("search", text(3), n=2, beams=rule, max_tokens=4, adapter=named("a"), stops=()))
    load(bench)
    bench.send(best_of(bench.plan()))
    bench.send(admit("b", text(3, 50), max_tokens=1, adapter=named("b")))
    while bench.state.table.requests:
        load(bench)
        bench.send(best_of(bench.plan()))


def best_of(step: Step) -> StepDone:
    """Each row's best tokens; those of the first one are the best of all, so the second beam begins as the first."""
    rows: list[Row] = []
    for place, chunk in enumerate(step.chunks):
        top = tuple(TopLogprob(token_id=7 + rank, logprob=-1.0 - 9 * place - rank) for rank in range(4))
        logprobs = (TokenLogprob(token_id=7, logprob=top[0].logprob, top=top),)
        sampled = Row(sequence=chunk.sequence, tokens=(7,), logprobs=logprobs)
        rows.append(sampled if chunk.sample else Row(sequence=chunk.sequence, tokens=()))
    return StepDone(step=step.step, rows=tuple(rows), duration=0.01, model_duration=0.005)


def test_an_adapter_is_loaded_once_the_grammar_of_its_request_is_built() -> None:
    """Two requests could otherwise each keep what the other one waits for."""
    bench = Bench()
    bench.send(admit("a", text(3), adapter=LAW, grammar="x"))
    assert bench.state.take_preparations() == [PrepareGrammar(grammar=1, text="x", forget=())]
    bench.send(GrammarReady(grammar=1))
    assert bench.state.take_preparations() == [PrepareAdapter(adapter=1, path="/adapters/law")]
