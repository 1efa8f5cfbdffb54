"""The engine when its own parts fail: a core of the test's stands for the model, so that it can misbehave."""

from collections.abc import Callable
from functools import partial

import pytest
import trio

import triolet.actors.core as core_module
from triolet.actors.detokenizer.detokenizer import Detokenizer
from triolet.actors.engine import Engine, run_engine
from triolet.actors.executor.inline import run_inline
from triolet.models.stepper import PendingStep, Stepper
from triolet.protocol.errors import ApiError
from triolet.protocol.events import Failed, Finished
from triolet.protocol.messages import ToDetokenizer
from triolet.protocol.steps import (
    GrammarFailed,
    GrammarReady,
    PrepareGrammar,
    Ready,
    ReportProgress,
    Row,
    Step,
    StepDone,
)

from .engine_house import Answer, settings_for, submit


class CountingCore:
    """Every token is one more than the last; from step `fails_at` on it raises."""

    def __init__(self, ready: Ready, fails_at: int = 10**9) -> None:
        self._ready = ready
        self._fails_at = fails_at

    def load(self, report: ReportProgress) -> tuple[Stepper, Ready]:
        return self, self._ready

    def prepare_grammar(self, order: PrepareGrammar, answer: Callable[[GrammarReady | GrammarFailed], None]) -> None:
        raise AssertionError("no request has a grammar")

    def read_adapter(self, number: int, path: str) -> Callable[[], None]:
        raise AssertionError("no request has an adapter")

    def forget_adapter(self, number: int) -> None:
        raise AssertionError("no request has an adapter")

    def begin_step(self, step: Step) -> PendingStep:
        if step.step >= self._fails_at:
            raise ZeroDivisionError("the kernel is broken")
        rows = tuple(
            Row(sequence=chunk.sequence, tokens=(200 + step.step % 100,) if chunk.sample else ())
            for chunk in step.chunks
        )
        done = StepDone(step=step.step, rows=rows, duration=0.0, model_duration=0.0)
        return PendingStep(lambda: done, computed=True)

    def progress(self) -> int:
        return 0

    def close(self) -> None:
        pass


@pytest.fixture
def with_core(make_ready: Callable[[], Ready], monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def replace(**options: int) -> None:
        core = CountingCore(make_ready(), **options)
        monkeypatch.setattr(core_module, "run_inline", partial(run_inline, load=core.load))

    return replace


async def test_a_step_that_raises_fails_its_requests_and_then_the_engine(with_core: Callable[..., None]) -> None:
    with_core(fails_at=5)
    async with trio.open_nursery() as nursery:
        engine: Engine = await nursery.start(run_engine, settings_for(inline=True))
        short = await Answer().read(submit(engine, "a", max_tokens=2, ignore_eos=True))
        assert isinstance(short.end, Finished)
        long = await Answer().read(submit(engine, "a", max_tokens=50, ignore_eos=True))
        assert isinstance(long.end, Failed)
        assert long.end.code == "engine_unavailable"
        assert "the kernel is broken" in long.end.message
        health = await engine.health()
        assert (health.ready, health.status) == (False, "failed")
        with pytest.raises(ApiError) as caught:
            submit(engine, "a")
        assert (caught.value.code, caught.value.status) == ("engine_unavailable", 503)
        assert engine.scheduler_statistics().blocks.owned == 0
        nursery.cancel_scope.cancel()


async def test_an_actor_that_raises_stops_the_engine_loudly_and_every_stream_ends(
    with_core: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_core()
    answer = Answer()

    def raises(self: Detokenizer, message: ToDetokenizer) -> None:
        raise ZeroDivisionError("a bug of ours")

    with pytest.RaisesGroup(pytest.RaisesGroup(ZeroDivisionError)):
        async with trio.open_nursery() as nursery:
            engine: Engine = await nursery.start(run_engine, settings_for(inline=True))
            monkeypatch.setattr(Detokenizer, "handle", raises)
            outbox = submit(engine, "a")
            with trio.CancelScope(shield=True):
                await answer.read(outbox)
    assert isinstance(answer.end, Failed)
    assert answer.end.code == "engine_error"
