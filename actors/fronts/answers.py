"""The scheduler's process answers questions of web processes. Each question is answered in its own task."""

from collections.abc import Awaitable, Callable, Mapping
from math import inf
from typing import Final, assert_never

import msgspec
import trio

from ...protocol.engine_view import VIEW_SECONDS
from ...protocol.errors import ApiError
from ...protocol.fronts import Inquiry, Refused
from ..adapters import AdapterTable
from ..observe.observe import Observer
from ..observe.task_tree import task_tree
from .division import owner
from .front_line import FrontLine
from .questions import NOTHING

# Fronts ask once per VIEW_SECONDS, each by its own clock. A front that asks alone always gets a new view, even if its
# questions come a little early or late; any number of fronts cost two views in that time.
_FRESH: Final = VIEW_SECONDS / 2


class Answers:
    """Answers from the scheduler's tables, and from the fronts, which it asks in turn."""

    def __init__(
        self,
        observer: Observer,
        lines: Mapping[str, FrontLine],
        adapters: AdapterTable,
        tell_adapters: Callable[[], Awaitable[None]],
    ) -> None:
        """`lines` are the current ones, by the name that begins the ids of a front's requests.

        `tell_adapters` returns when every front has the table of adapters.
        """
        self._observer = observer
        self._adapters = adapters
        self._tell_adapters = tell_adapters
        self._lines = lines
        self._taking = trio.Lock()
        self._taken = -inf  # when the last view was taken
        self._view = b""

    async def answer(self, question: Inquiry) -> bytes:
        match question.question:
            case "health":
                return msgspec.msgpack.encode(self._observer.health())
            case "standing":
                return msgspec.msgpack.encode(self._observer.standing(question.id))
            case "explain":
                return await self._explain(question)
            case "about":
                return msgspec.msgpack.encode(self._observer.about())
            case "view":
                return await self.shared_view()
            case "recording":
                root = trio.lowlevel.current_root_task()
                return msgspec.msgpack.encode(self._observer.recording(task_tree(root) if root else None))
            case "report" | "own_report":
                return msgspec.msgpack.encode(await self._observer.report())
            case "offer_adapter" | "replace_adapter" | "remove_adapter":
                return await self._change_adapters(question)
            case _:
                assert_never(question.question)

    async def shared_view(self) -> bytes:
        """The dashboard's view, the same for all fronts that ask for it at about the same time.

        Without watchers nobody asks. First the fronts are asked for their counts. If one does not answer in time, its
        last counts are used, and views come more slowly until it answers or is given up.
        """
        async with self._taking:
            if trio.current_time() - self._taken >= _FRESH:
                self._view = msgspec.msgpack.encode(await self._observer.view())
                self._taken = trio.current_time()
            return self._view

    async def _change_adapters(self, question: Inquiry) -> bytes:
        try:
            if question.adapter is None:
                self._adapters.remove(question.id)
            else:
                self._adapters.put(question.adapter, replaces=question.question == "replace_adapter")
        except ApiError as error:
            return msgspec.msgpack.encode(Refused(code=error.code, message=error.message, param=error.param))
        await self._tell_adapters()
        return NOTHING

    async def _explain(self, question: Inquiry) -> bytes:
        """The explanation by the front that has the request. An id names the front; a client's name does not."""
        line = self._lines.get(owner(question.id))
        found: list[bytes] = []

        async def ask(line: FrontLine) -> None:
            if (answer := await line.explain(question.id, question.tenant)) != NOTHING:
                found.append(answer)

        async with trio.open_nursery() as nursery:
            for each in [line] if line else self._lines.values():
                nursery.start_soon(ask, each)
        return found[0] if found else NOTHING
