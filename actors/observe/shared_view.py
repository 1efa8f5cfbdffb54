"""The dashboard's view of a server of several web processes: taken when one of them asks, the same for all that do.

Nobody asks while nobody looks. Every front is asked for its counts first, so that each view has the histograms and
requests of all; one that does not answer in time counts with its last ones, and views come more slowly until it does
or is given up.
"""

from collections.abc import Awaitable, Callable
from math import inf
from typing import Final

import msgspec
import trio

from ...protocol.engine_view import VIEW_SECONDS, WebProcesses
from ..gateway.accounts import Accounts
from .reports import FrontsReport
from .viewer import Viewer

# Fronts ask once in VIEW_SECONDS, each by a clock of its own. So one that asks alone always gets a new view, however
# late its questions are by turns, and any number of them cost two views in that time.
_FRESH: Final = VIEW_SECONDS / 2

CollectFigures = Callable[[], Awaitable[FrontsReport]]


class SharedView:
    """The last view, as it crosses the links."""

    def __init__(self, viewer: Viewer, figures: CollectFigures) -> None:
        self._viewer = viewer
        self._figures = figures
        self._taking = trio.Lock()
        self._taken = -inf
        self._body = b""

    async def take(self) -> bytes:
        async with self._taking:
            if trio.current_time() - self._taken >= _FRESH:
                fronts = await self._figures()
                accounts = Accounts()
                accounts.absorb(fronts.accounts)
                web = WebProcesses(
                    count=len(fronts.processes),
                    silent=fronts.silent,
                    restarts=fronts.restarts,
                    resident_bytes=sum(process.rss_bytes for process in fronts.processes.values()),
                )
                now = trio.current_time()
                self._body = msgspec.msgpack.encode(self._viewer.view(now, accounts, fronts.live, web))
                self._taken = now
            return self._body
