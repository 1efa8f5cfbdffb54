"""Requests with a LoRA adapter: they wait for the worker to load it, and share a prefix only with their like."""

from triolet.protocol.adapters import Adapter
from triolet.protocol.messages import AdapterGone, Cancel, WorkerLost
from triolet.protocol.reports import AdapterFigures
from triolet.protocol.steps import AdapterFailed, AdapterReady, ForgetAdapters, PrepareAdapter

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
