"""The engine in one web process of several: the outer half is here, the scheduler behind a link.

The actors hold ordinary channel ends and see no difference. When the link ends, so does this engine: every stream gets
an error, and the process exits.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec
import trio

from ...protocol.adapters import Adapter
from ...protocol.engine_view import AboutEngine, View
from ...protocol.errors import ApiError
from ...protocol.explanation import Explanation, Standing
from ...protocol.flight import FlightRecording
from ...protocol.fronts import OpenFront, Question, Refused
from ...protocol.reports import FrontReport, Health, ServerReport
from ..front_actors import FrontActors
from ..gateway.quotas import Quotas
from ..observe.observe import own_figures
from ..observe.server import Server
from ..observe.traces import Traces, open_traces
from ..tokenizer.tokenizer import read_text_tokenizer
from .front_link import ASK_SECONDS, FrontLink
from .questions import NOTHING

_Answered = TypeVar("_Answered")


class FrontEngine(FrontActors):
    """The `Server` for the web of this process: it asks over the link for what it does not know."""

    def __init__(self, opening: OpenFront, link: FrontLink, traces: Traces | None) -> None:
        super().__init__(
            opening.settings,
            scheduler=link.to_scheduler,
            status=link.status,
            adapters=link.adapters,
            quotas=Quotas(opening.settings.key_tables),
            process=opening.process,
            traces=traces,
        )
        self._questions = link.questions

    async def health(self) -> Health:
        if self.draining:
            return Health(ready=False, status="draining", reason="the server is shutting down")
        return await self._ask_for("health", Health)

    async def report(self) -> ServerReport:
        return await self._ask_for("report", ServerReport)

    async def recordings(self) -> Mapping[str, FlightRecording]:
        return {self.model_name: await self._ask_for("recording", FlightRecording)}

    async def about(self) -> AboutEngine | None:
        return await self._ask("about", AboutEngine)

    async def view(self) -> View:
        return await self._ask_for("view", View)

    async def explain(self, wanted: str, tenant: str) -> Explanation | None:
        """Explain a request, also of another front."""
        found = await self.own_explanation(wanted, tenant)
        return found or await self._ask("explain", Explanation, wanted, tenant)

    async def own_explanation(self, wanted: str, tenant: str) -> Explanation | None:
        """Explain a request of this front for another one, without asking further."""
        return await super().explain(wanted, tenant)

    async def standing(self, id: str) -> Standing | None:
        return await self._ask("standing", Standing, id)

    async def load_adapter(self, name: str, path: str, *, replaces: bool) -> None:
        adapter = await self.tried_adapter(name, path, replaces=replaces)
        await self._wish("replace_adapter" if replaces else "offer_adapter", adapter=adapter)

    async def unload_adapter(self, name: str) -> None:
        await self._wish("remove_adapter", name)

    async def _wish(self, question: Question, id: str = "", adapter: Adapter | None = None) -> None:
        """Raises ApiError if it is refused."""
        if refused := await self._ask(question, Refused, id, adapter=adapter):
            raise ApiError(refused.code, refused.message, param=refused.param)

    def own_report(self) -> FrontReport:
        return FrontReport(
            live=self.gateway.live_requests,
            accounts=self.accounts.figures(),
            process=own_figures(),
            kept=self.gateway.kept,
        )

    async def _ask(
        self,
        question: Question,
        kind: type[_Answered],
        id: str = "",
        tenant: str = "",
        adapter: Adapter | None = None,
    ) -> _Answered | None:
        """Raises ApiError (503) if no answer comes in time."""
        body = await self._questions.ask(question, id, tenant, adapter)
        if body is None:
            text = f"The scheduler's process did not answer within {ASK_SECONDS:g} s."
            raise ApiError("engine_unavailable", text, retry_after=2)
        return None if body == NOTHING else msgspec.msgpack.decode(body, type=kind)

    async def _ask_for(self, question: Question, kind: type[_Answered]) -> _Answered:
        """Ask a question that always has an answer."""
        answer = await self._ask(question, kind)
        assert answer is not None, question
        return answer


async def run_front(link: FrontLink, opening: OpenFront, *, on_open: Callable[[Server], None]) -> None:
    """Run this process's half of the engine until cancelled. Raises SchedulerLost.

    `on_open` gets it before the model is loaded.
    """
    traces = await trio.to_thread.run_sync(open_traces, opening.settings.otlp_endpoint)
    engine = FrontEngine(opening, link, traces)
    last_word = ApiError("shutting_down", "the server was stopped before this request ended")
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            on_open(engine)
            text = await read_text_tokenizer(opening.settings.engine.model, opening.settings.engine.chat_template)
            engine.start(nursery, text, await link.wait_ready(), None)
            link.serve(engine.detokenizer(text).handle, engine.own_report, engine.own_explanation)
            await engine.open()
    except Exception:
        last_word = ApiError("engine_error", "the engine failed; the server's log says how")
        raise
    finally:
        await engine.end(last_word)
        link.held_open.close()
