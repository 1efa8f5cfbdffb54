"""A running engine on the bundled model, for tests: requests in, texts out, and the checks that nothing leaks."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

import triolet.actors.engine as engine_module
from triolet.actors.engine import Engine, open_engine
from triolet.actors.gateway.outbox import Outbox
from triolet.actors.observe.metrics import ledger_of
from triolet.protocol.events import Failed, Finished, StreamEvent, Token
from triolet.protocol.requests import ChatMessage, ChatPrompt, Generate, Prompt, TextPrompt
from triolet.protocol.sampling import Sampling
from triolet.protocol.settings import EngineSettings, LimitSettings, ServeSettings

MODEL = str(Path(engine_module.__file__).parent.parent / "models" / "demo" / "checkpoint")


def settings_for(*, inline: bool = False, limits: LimitSettings | None = None, **engine: Any) -> ServeSettings:
    fields: dict[str, Any] = {"model": MODEL, "threads": 1, "kv_cache_memory": 32 << 20}
    return ServeSettings(
        engine=EngineSettings(**(fields | engine)),
        limits=limits or LimitSettings(),
        inline=inline,
    )


@asynccontextmanager
async def running(settings: ServeSettings) -> AsyncGenerator[Engine]:
    """An engine for the length of a block; everything of it is gone afterwards."""
    async with open_engine(settings) as engine:
        yield engine


def chat(text: str) -> ChatPrompt:
    return ChatPrompt(messages=(ChatMessage(role="user", content=text),))


def submit(engine: Engine, prompt: Prompt | str, *, seed: int | None = None, **changes: Any) -> Outbox:
    """Send a request; without a seed it is greedy."""
    fields: dict[str, Any] = {
        "prompts": (TextPrompt(text=prompt) if isinstance(prompt, str) else prompt,),
        "sampling": Sampling(temperature=0.0) if seed is None else Sampling(temperature=1.0, seed=seed),
        "max_tokens": 16,
    }
    request = Generate(id=engine.gateway.new_id(), model=engine.model_name, **(fields | changes))
    return engine.gateway.submit(request)


class Answer:
    """Everything that one stream brought."""

    def __init__(self) -> None:
        self.events: list[StreamEvent] = []

    async def read(self, outbox: Outbox, on_event: Callable[[StreamEvent], None] = lambda event: None) -> "Answer":
        while True:
            try:
                events = await outbox.drain()
            except trio.EndOfChannel:
                return self
            for event in events:
                self.events.append(event)
                on_event(event)

    def text(self, index: int = 0) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Token) and event.index == index)

    @property
    def end(self) -> Finished | Failed:
        terminal = [event for event in self.events if isinstance(event, Finished | Failed)]
        assert len(terminal) == 1
        assert terminal[0] is self.events[-1]
        return terminal[0]

    @property
    def finished(self) -> Finished:
        """The end of a stream that must not have failed."""
        assert isinstance(self.end, Finished)
        return self.end


async def read_all(outboxes: list[Outbox]) -> list[Answer]:
    answers = [Answer() for _ in outboxes]
    async with trio.open_nursery() as nursery:
        for answer, outbox in zip(answers, outboxes, strict=True):
            nursery.start_soon(answer.read, outbox)
    return answers


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a state that must come; the limit is far above anything a busy machine needs."""
    with trio.move_on_after(60) as scope:
        while not condition():  # noqa: ASYNC110 - the state of other actors and processes gives no event
            await trio.sleep(0.002)
    assert not scope.cancelled_caught, f"waited in vain until {what}"


async def until_balanced(engine: Engine) -> None:
    """All blocks come back, and nothing of any request stays."""
    await until(lambda: engine.scheduler_statistics().blocks.owned == 0, "no block is owned")
    ledger = ledger_of(await engine.report())
    assert ledger.kv_blocks.free + ledger.kv_blocks.cached == ledger.kv_blocks.total
    assert ledger.requests == 0
    statistics = engine.scheduler_statistics()
    assert (statistics.requests, statistics.running, statistics.parked, statistics.waiting) == (0, 0, 0, 0)
