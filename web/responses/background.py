"""Responses that are made without their client, which asks for them later.

Each has a task of the server. While any runs, one more task tells the database every second that this process is
there, and learns which of them were cancelled, perhaps by way of another web process. If the process is killed, whoever
asks sees that nobody makes the response any more.
"""

import logging
import sqlite3
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from ...actors.gateway.gateway import process_name
from ...protocol.errors import ApiError
from ...protocol.events import Failed, Finished, StreamEvent, Token
from ...protocol.requests import Generate
from ...protocol.response_items import InputItem
from ..asgi import Application
from ..errors import error_of, unexpected
from ..exchange import Content, json_content
from ..generation.event_stream import EventSource
from .answer import GrowingResponse
from .store import ResponseStore, stored_row

if TYPE_CHECKING:
    from ...actors.observe.server import ModelEngine

_LOG: Final = logging.getLogger("triolet.http")
UNENDED: Final = ("queued", "in_progress")
BEAT_SECONDS: Final = 1.0
CANCEL_SECONDS: Final = 5.0  # to wait for the end of a cancelled response; then its client gets it as it is
POLL_SECONDS: Final = 0.05
MOST_DRAIN_SECONDS: Final = 45.0  # hypercorn's own limit for this is 60


class BackgroundResponses:
    """All of this process. `running` are the requests by their responses' ids."""

    def __init__(self, app: Application, store: ResponseStore) -> None:
        self._app = app
        self._gateway = app.engine.gateway
        self._store = store
        self._runner = process_name()
        self._running: dict[str, str] = {}
        self._beats = False
        self._idle = trio.lowlevel.ParkingLot()

    async def start(
        self, engine: "ModelEngine", request: Generate, growing: GrowingResponse, items: Sequence[InputItem]
    ) -> Content:
        """Answers with the response as it is now. Raises ApiError if there is no place."""
        outbox = engine.gateway.submit(request)
        queued = growing.response
        try:
            await self._store.begin(stored_row(queued, items, request.tenant), self._runner)
        except BaseException:
            self._gateway.cancel(request.id)
            raise
        self._running[queued.id] = request.id
        if not self._beats:
            self._beats = True
            self._app.nursery.start_soon(self._beat)
        self._app.nursery.start_soon(self._run, request, growing, items, outbox)
        return json_content(msgspec.json.encode(queued))

    async def _run(
        self, request: Generate, growing: GrowingResponse, items: Sequence[InputItem], outbox: EventSource
    ) -> None:
        row = partial(stored_row, items=items, tenant=request.tenant)
        try:
            while (before := growing.response.status) in UNENDED:
                for event in await outbox.drain():
                    _take(event, growing)
                if before == "queued" and growing.response.status == "in_progress":
                    await self._store.progress(row(growing.response))
        except Exception as error:  # our bug
            growing.fail(unexpected(error))
        finally:
            self._gateway.cancel(request.id)  # harmless after its end
            if growing.response.status in UNENDED:
                growing.fail(_shut_down())
            with trio.CancelScope(shield=True):  # milliseconds
                try:
                    await self._store.end(row(growing.response))
                except (sqlite3.Error, OSError):
                    _LOG.exception("a response could not be stored")
            del self._running[growing.response.id]
            if not self._running:
                self._idle.unpark_all()

    async def _beat(self) -> None:
        while self._running:
            await trio.sleep(BEAT_SECONDS)
            try:
                for id in await self._store.beat(self._runner, [*self._running]):
                    if id in self._running:
                        self._gateway.cancel(self._running[id])
            except (sqlite3.Error, OSError):
                _LOG.exception("the responses in the background could not be looked after")
        self._beats = False

    async def cancel(self, id: str, tenant: str) -> bytes:
        """The response, ended if it was running. Raises ApiError: 404, and 400 if it is not of the background."""
        asked = await self._store.cancel(id, tenant)
        if id in self._running:
            self._gateway.cancel(self._running[id])
        with trio.move_on_after(CANCEL_SECONDS):
            while asked and _is_running(await self._store.get(id, tenant)):  # noqa: ASYNC110  # perhaps elsewhere
                await trio.sleep(POLL_SECONDS)
        stored = await self._store.get(id, tenant)
        if not msgspec.json.decode(stored, type=dict[str, object])["background"]:
            message = "Only a response with background: true can be cancelled; others end when their client leaves."
            raise ApiError("invalid_value", message, param="response_id")
        return stored

    async def finish(self) -> None:
        """The server shuts down: they may end as streams may, in the time for these."""
        with trio.move_on_after(min(self._app.engine.settings.drain_timeout, MOST_DRAIN_SECONDS)):
            await self._wait_idle()
        for request_id in self._running.values():
            self._gateway.fail(request_id, _shut_down())
        await self._wait_idle()

    async def _wait_idle(self) -> None:
        while self._running:
            await self._idle.park()


def _take(event: StreamEvent, growing: GrowingResponse) -> None:
    if isinstance(event, Token):
        growing.token(event)
    elif isinstance(event, Finished):
        growing.finish(event, int(time.time()))
    elif isinstance(event, Failed):
        growing.fail(error_of(event))
    else:
        growing.begin()


def _shut_down() -> ApiError:
    return ApiError("shutting_down", "The server shut down before the end.")


def _is_running(stored: bytes) -> bool:
    return msgspec.json.decode(stored, type=dict[str, object])["status"] in UNENDED
