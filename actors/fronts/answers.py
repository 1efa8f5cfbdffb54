"""What the scheduler's process answers a web process that asks. Each question is answered in a task of its own."""

from collections.abc import Awaitable, Callable, Mapping
from typing import assert_never

import msgspec
import trio

from ...protocol.fronts import Ask
from ..core import Core
from ..observe.reports import ServerReport
from ..observe.shared_view import CollectFigures, SharedView
from ..observe.viewer import Viewer
from ..supervisor.worker_status import Health
from .division import owner
from .front_line import NOTHING, FrontLine


class Answers:
    """From the scheduler's own tables, and from what the fronts say when they are asked in turn."""

    def __init__(
        self,
        core: Core,
        lines: Mapping[str, FrontLine],
        *,
        model_name: str,
        health: Callable[[], Health],
        report: Callable[[], Awaitable[ServerReport]],
        figures: CollectFigures,
    ) -> None:
        """`lines` are those of the moment, by the name that begins the ids of a front's requests."""
        self._core = core
        self._lines = lines
        self._health = health
        self._report = report
        started = trio.current_time()
        self._viewer = Viewer(
            model_name, state=core.state, status=core.status, health=health, started=started, process=self._label
        )
        self._view = SharedView(self._viewer, figures)

    async def answer(self, question: Ask) -> bytes:
        match question.question:
            case "health":
                return msgspec.msgpack.encode(self._health())
            case "standing":
                return msgspec.msgpack.encode(self._core.state.standing(question.id, trio.current_time()))
            case "explain":
                return await self._explain(question)
            case "about":
                ready = self._core.status.ready
                about = None if ready is None else self._viewer.about(ready, trio.current_time())
                return msgspec.msgpack.encode(about)
            case "view":
                return await self._view.take()
            case "server" | "report":
                return msgspec.msgpack.encode(await self._report())
            case _:
                assert_never(question.question)

    async def _explain(self, question: Ask) -> bytes:
        """The explanation of whichever front has the request: its id says so, a name of the client's does not."""
        line = self._lines.get(owner(question.id))
        found: list[bytes] = []

        async def ask(line: FrontLine) -> None:
            if (answer := await line.explain(question.id, question.tenant)) != NOTHING:
                found.append(answer)

        async with trio.open_nursery() as nursery:
            for each in [line] if line else self._lines.values():
                nursery.start_soon(ask, each)
        return found[0] if found else NOTHING

    def _label(self, id: str) -> str:
        """The front that holds a request; nothing for one that has just died, whose requests are being cancelled."""
        line = self._lines.get(owner(id))
        return line.label if line else ""
