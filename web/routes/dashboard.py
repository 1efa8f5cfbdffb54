"""GET /v1/dashboard: a view of the engine over a WebSocket, sent a few times a second to every watcher.

The server has no task for this. Each watcher has one, and all share one clock. The first to wake in a turn takes and
encodes the view for all. Without watchers nothing is done; a hundred watchers cost one view and a hundred writes. A
watcher that does not read misses views and delays nobody; the server's send timeout ends it. With several web
processes, the view comes from the scheduler's process, which is asked for it.

The key is given as for `/v1/stream`: in the handshake's Authorization header, or in a first `auth` frame. If there are
operator keys, it is one of these.
"""

from collections import deque
from contextlib import suppress
from math import floor
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from ...protocol.engine_view import VIEW_SECONDS, DashboardError
from ...protocol.errors import ApiError
from ...protocol.stream_frames import Auth
from ..asgi import Application
from ..auth import Keys
from ..errors import unexpected
from ..exchange import Handshake, Wire
from ..openai.decode import decode
from .stream import AUTH_SECONDS, GOING_AWAY, INTERNAL_ERROR, POLICY_VIOLATION

if TYPE_CHECKING:
    from ...actors.observe.server import Server

MAX_WATCHERS: Final = 64  # per process; each costs a write of up to 60 kB per turn
MAX_OWING: Final = 16  # sockets that still owe the key; a page sends it within a round trip
TRY_AGAIN_LATER: Final = 1013  # IANA's registry of close codes

_CLOSE_CODES: Final = {
    "server_overloaded": TRY_AGAIN_LATER,
    "engine_unavailable": TRY_AGAIN_LATER,
    "internal_error": INTERNAL_ERROR,
}

_AUTH: Final = msgspec.json.Decoder(Auth)
_encode: Final = msgspec.json.Encoder().encode


class ViewFeed:
    """The frames, each made once for all watchers."""

    def __init__(self, engine: "Server") -> None:
        self._engine = engine
        self._taking = trio.Lock()
        self._turn = -1
        self._view: bytes | ApiError = b""  # or the error, if it could not be taken
        self.watchers = 0
        self.owing: deque[Watcher] = deque()  # watchers that still owe their key, oldest first

    async def about(self) -> bytes | None:
        """Raises ApiError if the scheduler's process does not answer."""
        about = await self._engine.about()
        return None if about is None else _encode(about)

    async def view(self) -> bytes:
        """The view of this turn: the first caller takes it, the others wait. Raises ApiError like `about`."""
        turn = floor(trio.current_time() / VIEW_SECONDS)
        async with self._taking:
            if turn > self._turn:
                taken: bytes | ApiError
                try:
                    taken = _encode(await self._engine.view())
                except ApiError as error:
                    taken = error
                self._turn, self._view = turn, taken
            view = self._view
        if isinstance(view, ApiError):
            raise ApiError(view.code, view.message)  # a new one per caller: an exception keeps its traceback
        return view

    async def wait_turn(self) -> None:
        """Wait for the next turn."""
        await trio.sleep_until((floor(trio.current_time() / VIEW_SECONDS) + 1) * VIEW_SECONDS)


class Watcher:
    """One client. Its task waits for the key, if still owed, then sends views until the server drains."""

    tenant = None  # that may send large messages: an `auth` frame is all that it may send

    def __init__(self, engine: "Server", feed: ViewFeed, keys: Keys, address: str | None, *, owes_key: bool) -> None:
        self._engine = engine
        self._feed = feed
        self._keys = keys
        self._owes_key = owes_key
        self._address = address
        self._watching = trio.CancelScope()
        self._patience = trio.CancelScope()  # while waiting for the key
        self._refusal: ApiError | None = None
        self._wire: Wire  # set by `begin`

    def begin(self, wire: Wire) -> None:
        self._wire = wire
        wire.nursery.start_soon(self._run)

    async def receive(self, message: str | bytes) -> None:
        """Accepts only an `auth` frame with a valid key."""
        try:
            if not isinstance(message, str):
                raise ApiError("invalid_event", "Frames are JSON text, not binary.")
            await self._keys.tenant_of_frame(decode(message, _AUTH).api_key, self._address)
            self._owes_key = False
            self._patience.cancel()
        except ApiError as error:
            self._refusal = error
            self._watching.cancel()

    def end(self) -> None:
        self._watching.cancel()

    async def _run(self) -> None:
        with self._watching:
            try:
                if self._owes_key:
                    await self._wait_for_key()
                await self._show()
            except ApiError as error:
                self._refusal = error
            except Exception as error:  # our bug
                self._refusal = unexpected(error)
        if self._refusal is None:
            self._wire.close(GOING_AWAY)
        else:
            await self._wire.send(_encode(DashboardError(error=self._refusal.detail())))
            self._wire.close(_CLOSE_CODES.get(self._refusal.code, POLICY_VIOLATION))

    async def _wait_for_key(self) -> None:
        """When too many wait, the oldest is closed: sockets without a key must not keep out clients with one."""
        owing = self._feed.owing
        if len(owing) >= MAX_OWING:
            owing.popleft()._patience.cancel()
        owing.append(self)
        try:
            self._patience.deadline = trio.current_time() + AUTH_SECONDS
            with self._patience:
                await trio.sleep_forever()
            displaced = self not in owing
        finally:
            with suppress(ValueError):
                owing.remove(self)
        if self._owes_key and displaced:
            raise ApiError("server_overloaded", f"{MAX_OWING} sockets that came later owe their API key as well.")
        if self._owes_key:
            raise ApiError("invalid_api_key", "An API key is needed; the `auth` frame did not come.")

    async def _show(self) -> None:
        engine, feed, told = self._engine, self._feed, None
        if feed.watchers >= MAX_WATCHERS:
            raise ApiError("server_overloaded", f"{MAX_WATCHERS} clients watch the dashboard already.")
        feed.watchers += 1
        try:
            while not engine.draining:
                if (ready := engine.ready) is not told and (about := await feed.about()):
                    told = ready
                    await self._wire.send(about)
                await self._wire.send(await feed.view())
                await feed.wait_turn()
        finally:
            feed.watchers -= 1


def register(app: Application, operators: Keys) -> None:
    feed = ViewFeed(app.engine)

    def open_watcher(handshake: Handshake) -> Watcher:
        owes_key = operators.tenant_of_handshake(handshake) is None
        return Watcher(app.engine, feed, operators, handshake.address, owes_key=owes_key)

    app.socket_route("/v1/dashboard", open_watcher)
