"""The web application in front of the real gateway and outboxes; a script stands where the other actors would.

A script is what the engine does with one request: it speaks to the gateway as the actors do. So every order of events
and every error can be put to the web, at a chosen moment and without a model.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import httpx
import pytest
import trio
import trio.testing

from triolet.actors.gateway.gateway import Gateway
from triolet.actors.gateway.quotas import Quotas
from triolet.actors.observe.explain import explain
from triolet.actors.observe.observe import own_figures
from triolet.actors.scheduler.state import SchedulerState
from triolet.actors.supervisor.worker_status import WorkerStatus
from triolet.actors.usage.usage import usage_records
from triolet.protocol.adapters import Adapter
from triolet.protocol.errors import ApiError
from triolet.protocol.events import ChoiceFinished, FinishReason, Token, TokenLogprob, TopLogprob
from triolet.protocol.explanation import Explanation, Standing
from triolet.protocol.flight import FlightRecording
from triolet.protocol.messages import Credit, ToScheduler, ToTokenizer
from triolet.protocol.openai_responses import TokenizerInfo
from triolet.protocol.reports import FrontsReport, Health, ServerReport, WorkerFigures
from triolet.protocol.requests import ChatPrompt, Generate, Prompt, TextPrompt
from triolet.protocol.settings import EngineSettings, LimitSettings, ServeSettings
from triolet.protocol.steps import MemoryPlan, Ready
from triolet.web.app import create_app
from triolet.web.transport.transport import serve

READY = Ready(
    model="tiny",
    architecture="llama",
    parameters=1,
    device="cpu",
    dtype="float32",
    quantize="none",
    context_length=128,
    vocab_size=100,
    eos_token_ids=(2,),
    max_step_tokens=64,
    max_running=8,
    memory=MemoryPlan(
        weights_bytes=1, workspace_bytes=1, kv_bytes=1, num_blocks=4, block_size=64, sequences_at_full_length=2.0
    ),
    sampling_defaults={"temperature": 0.6, "top_k": 20},
    versions={"numba": "0"},
    pid=1,
)
Script = Callable[["ScriptedEngine", Generate], Awaitable[None]]
WORDS = ("Hello", ", ", "wörld", "!")


class ScriptedEngine:
    """An engine as the web sees it. `script` is run for every request; `requests` are those that came."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self.model_name = "tiny"
        self.created = 1_700_000_000
        self.ready: Ready | None = READY
        self.state = Health(ready=True, status="ready", reason="")
        self.adapters: dict[str, Adapter] = {}
        self.requests: list[Generate] = []
        self.standing: Standing | None = None  # of every request
        self.delivered = 0  # tokens, where a script counts them
        self._arrivals, self._explained = trio.lowlevel.ParkingLot(), trio.lowlevel.ParkingLot()
        self.script: Script = answer
        to_tokenizer, self._from_web = trio.open_memory_channel[ToTokenizer](16)
        to_scheduler, self._from_gateway = trio.open_memory_channel[ToScheduler](1000)
        self.worker = WorkerStatus()
        self.worker.set_ready(READY, 0.0)
        self.usage = usage_records(settings)
        self.gateway = Gateway(
            settings.limits,
            tokenizer=to_tokenizer,
            scheduler=to_scheduler,
            worker=self.worker,
            on_end=[self.usage.note] if self.usage else (),
            quotas=Quotas(settings.key_tables),
        )

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            if self.usage is not None:
                nursery.start_soon(self.usage.run)
            async for request in self._from_web:
                self.requests.append(request)
                self._arrivals.unpark_all()
                nursery.start_soon(self.script, self, request)

    async def wait_for_requests(self, count: int) -> None:
        while len(self.requests) < count:
            await self._arrivals.park()

    async def wait_for_explanation(self) -> None:
        """Until the web has asked for the next one."""
        await self._explained.park()

    async def receive(self) -> ToScheduler:
        """What the gateway tells the scheduler next."""
        return await self._from_gateway.receive()

    def to_scheduler(self) -> list[ToScheduler]:
        """What the gateway has told the scheduler since the last call."""
        messages: list[ToScheduler] = []
        while True:
            try:
                messages.append(self._from_gateway.receive_nowait())
            except trio.WouldBlock:
                return messages

    @property
    def served(self) -> "ScriptedEngine":
        return self

    @property
    def draining(self) -> bool:
        return self.gateway.refuses_new

    async def load_adapter(self, name: str, path: str, *, replaces: bool) -> None:
        await trio.lowlevel.checkpoint()
        self.adapters = {**self.adapters, name: Adapter(name, path)}

    async def unload_adapter(self, name: str) -> None:
        await trio.lowlevel.checkpoint()
        del self.adapters[name]

    async def health(self) -> Health:
        return self.state

    async def report(self) -> ServerReport:
        return ServerReport(
            health=self.state,
            scheduler=SchedulerState(secret=b"", max_losses=1).statistics(),
            worker=WorkerFigures(pid=None, restarts=0, step_time=WorkerStatus().step_time.figures()),
            process=own_figures(),
            web=FrontsReport(
                live=self.gateway.live_requests, accounts=self.gateway.accounts.figures(), kept=self.gateway.kept
            ),
        )

    async def about(self) -> None:
        """Of no use without a worker."""

    async def recordings(self) -> dict[str, FlightRecording]:
        return {"tiny": FlightRecording(now=0.0, records=[])}

    async def explain(self, wanted: str, tenant: str) -> Explanation | None:
        await trio.lowlevel.checkpoint()
        history = self.gateway.history(wanted, tenant)
        self._explained.unpark_all()
        return None if history is None else explain(history, self.standing, self.gateway.places.share(tenant))

    async def tokenize(self, prompt: Prompt) -> tuple[int, ...]:
        await trio.lowlevel.checkpoint()
        if isinstance(prompt, ChatPrompt):
            return tuple(len(message.content or "") for message in prompt.messages)
        assert isinstance(prompt, TextPrompt)
        return tuple(prompt.text.encode())

    async def detokenize(self, ids: tuple[int, ...]) -> str:
        await trio.lowlevel.checkpoint()
        return bytes(ids).decode()

    async def tokenizer_info(self) -> TokenizerInfo:
        await trio.lowlevel.checkpoint()
        return TokenizerInfo(
            vocab_size=100,
            model_max_length=128,
            bos_token=None,
            eos_token="</s>",
            pad_token=None,
            unk_token=None,
            chat_template=None,
        )

    # The actors' side, for scripts.

    def token(self, request: Generate, text: str, index: int = 0, logprobs: tuple[TokenLogprob, ...] = ()) -> None:
        self.gateway.deliver(Token(id=request.id, index=index, text=text, tokens=1, logprobs=logprobs))
        self.gateway.flush()

    def finish_choice(self, request: Generate, index: int = 0, reason: FinishReason = "stop") -> None:
        self.gateway.deliver(ChoiceFinished(id=request.id, index=index, reason=reason, stop_tokens=1))


def logprob(text: str, offset: int) -> TokenLogprob:
    data = text.encode()
    top = (TopLogprob(7, -0.25, data), TopLogprob(8, -1.5, b"\xc3"))
    return TokenLogprob(token_id=7, logprob=-0.25, top=top, text=data, text_offset=offset)


async def answer(engine: ScriptedEngine, request: Generate) -> None:
    """Says WORDS in every choice."""
    await trio.lowlevel.checkpoint()
    engine.gateway.admitted(request.id, 5)
    engine.gateway.started(request.id, 4)
    choices = len(request.prompts) * request.n
    offset = 0
    for word in WORDS:
        for index in range(choices):
            engine.token(
                request, word, index, (logprob(word, offset),) if request.sampling.logprobs is not None else ()
            )
        offset += len(word)
        await trio.lowlevel.checkpoint()
    for index in range(choices):
        engine.finish_choice(request, index)
    engine.gateway.complete(request.id, "stop")


async def answer_once_explained(engine: ScriptedEngine, request: Generate) -> None:
    """Its first text comes after the first explanation, which so says "prefill" for certain."""
    await trio.lowlevel.checkpoint()
    engine.gateway.started(request.id, 4)
    engine.gateway.flush()
    await engine.wait_for_explanation()
    await answer(engine, request)


async def refuse(engine: ScriptedEngine, request: Generate) -> None:
    await trio.lowlevel.checkpoint()
    engine.gateway.fail(request.id, ApiError("context_length_exceeded", "too long", param="messages"))


async def break_down(engine: ScriptedEngine, request: Generate) -> None:
    """Fails after the first token."""
    await trio.lowlevel.checkpoint()
    engine.gateway.started(request.id)
    engine.token(request, "Hel")
    await trio.testing.wait_all_tasks_blocked()
    engine.gateway.fail(request.id, ApiError("engine_error", "the step failed"))


async def wait(engine: ScriptedEngine, request: Generate) -> None:
    """Nothing happens: the request is queued for ever."""
    await trio.sleep_forever()


async def flow(engine: ScriptedEngine, request: Generate) -> None:
    """One token, and then nothing: a long answer."""
    await trio.lowlevel.checkpoint()
    engine.gateway.started(request.id)
    engine.token(request, "Hel")


def flood(pieces: int, piece: str) -> Script:
    """Generates as the scheduler does: only on credit."""

    async def script(engine: ScriptedEngine, request: Generate) -> None:
        engine.gateway.started(request.id)
        credit = engine.settings.limits.outbox_tokens
        for engine.delivered in range(1, pieces + 1):
            while not credit:
                message = await engine.receive()
                credit += message.tokens if isinstance(message, Credit) else 0
            engine.token(request, piece)
            credit -= 1
            await trio.lowlevel.checkpoint()
        engine.gateway.complete(request.id, "stop")

    return script


Scripts = SimpleNamespace


@pytest.fixture
def scripts() -> Scripts:
    """What the engine may do with a request."""
    return SimpleNamespace(
        answer=answer,
        answer_once_explained=answer_once_explained,
        refuse=refuse,
        break_down=break_down,
        wait=wait,
        flow=flow,
    )


class Web(NamedTuple):
    engine: ScriptedEngine
    client: httpx.AsyncClient
    url: str
    stop: trio.Event

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", int(self.url.rpartition(":")[2]))


@pytest.fixture
def settings() -> ServeSettings:
    return ServeSettings(
        engine=EngineSettings(model="tiny"),
        limits=LimitSettings(max_requests=8, max_body_bytes=64 * 1024, outbox_tokens=8, max_socket_requests=3),
    )


@pytest.fixture
async def web(settings: ServeSettings) -> AsyncGenerator[Web, None]:
    engine = ScriptedEngine(settings)
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run)
        urls: list[str] = await nursery.start(
            partial(
                serve,
                create_app(engine),  # type: ignore[arg-type]  # it is the part of the engine that the web uses
                host="127.0.0.1",
                port=0,
                drain_timeout=0.5,
                shutdown_trigger=stop.wait,
            )
        )
        async with httpx.AsyncClient(base_url=urls[0], verify=False) as client:
            yield Web(engine, client, urls[0], stop)
        nursery.cancel_scope.cancel()
