"""GET /v1/dashboard: what the engine is doing, over a WebSocket, a few times a second, to whoever watches.

There is no task for it: each watcher's own takes turns on one clock, and the first that comes in a turn has the view
taken and encoded for all of them. So without a watcher nothing is done, and a hundred cost one view and a hundred
writes. A watcher that does not read misses views and makes nobody wait; the server's deadline for sending ends it.
With several web processes the view is the scheduler's process's, and taking it a question to it.

The key is asked for as `/v1/stream` does: in the handshake's Authorization header, or as a first `auth` frame.
"""

from collections import deque
from contextlib import suppress
from math import floor
from typing import TYPE_CHECKING, Final

import msgspec
import trio
from quart import websocket
from quart_trio.wrappers import TrioResponse as Response

from ...protocol.engine_view import VIEW_SECONDS, DashboardError
from ...protocol.errors import ApiError
from ...protocol.steps import Ready
from ...protocol.stream_frames import Auth
from ..asgi import Application, error_response
from ..auth import Keys
from ..openai.decode import decode
from .stream import AUTH_SECONDS, GOING_AWAY, POLICY_VIOLATION

if TYPE_CHECKING:
    from ...actors.observe.observe import Server

MAX_WATCHERS: Final = 64  # of this process; each costs a write of up to 60 kB a turn
MAX_OWING: Final = 16  # sockets that still owe the key; a page sends it within a round trip
TRY_AGAIN_LATER: Final = 1013  # IANA's registry of close codes

_PASSING: Final = ("server_overloaded", "engine_unavailable")

_AUTH: Final = msgspec.json.Decoder(Auth)
_encode: Final = msgspec.json.Encoder().encode


class Feed:
    """The frames, each made once for all who watch."""

    def __init__(self, engine: "Server") -> None:
        self._engine = engine
        self._taking = trio.Lock()
        self._turn = -1
        self._view: str | ApiError = ""  # the error where it could not be had
        self.watchers = 0
        self.owing: deque[trio.CancelScope] = deque()  # of those whose key is waited for, the oldest first

    async def about(self) -> str | None:
        """Raises ApiError where the scheduler's process does not answer."""
        about = await self._engine.about()
        return None if about is None else _encode(about).decode()

    async def view(self) -> str:
        """The view of this turn; the first who asks has it taken, the others wait for it. Raises ApiError likewise."""
        turn = floor(trio.current_time() / VIEW_SECONDS)
        async with self._taking:
            if turn > self._turn:
                taken: str | ApiError
                try:
                    taken = _encode(await self._engine.view()).decode()
                except ApiError as error:
                    taken = error
                self._turn, self._view = turn, taken
            view = self._view
        if isinstance(view, ApiError):
            raise ApiError(view.code, view.message)  # one for each: an exception keeps the trace of who raised it
        return view

    async def wait_turn(self) -> None:
        """Until the next one."""
        await trio.sleep_until((floor(trio.current_time() / VIEW_SECONDS) + 1) * VIEW_SECONDS)


def _refusal(data: str | bytes, keys: Keys) -> ApiError | None:
    """What is wrong with a client's frame: it may be an `auth` with a right key, and nothing else."""
    try:
        if not isinstance(data, str):
            raise ApiError("invalid_event", "Frames are JSON text, not binary.")
        keys.tenant(decode(data, _AUTH).api_key.encode())
    except ApiError as error:
        return error
    return None


async def _wait_for_key(keys: Keys, owing: deque[trio.CancelScope]) -> ApiError | None:
    """The oldest who waits gives way: sockets that never say a key keep nobody out who has one."""
    if len(owing) >= MAX_OWING:
        owing.popleft().cancel()
    scope = trio.CancelScope(deadline=trio.current_time() + AUTH_SECONDS)
    owing.append(scope)
    try:
        with scope:
            return _refusal(await websocket.receive(), keys)
        displaced = scope not in owing
    finally:
        with suppress(ValueError):
            owing.remove(scope)
    if displaced:
        return ApiError("server_overloaded", f"{MAX_OWING} sockets that came later owe their API key as well.")
    return ApiError("invalid_api_key", "An API key is needed; the `auth` frame did not come.")


async def _watch(engine: "Server", feed: Feed, keys: Keys) -> ApiError | None:
    """Send views until the client leaves (the handler is cancelled), says what it should not, or the server drains."""
    refusal: ApiError | None = None

    async def show() -> None:
        nonlocal refusal
        told: Ready | None = None
        try:
            while not engine.draining:
                if (ready := engine.ready) is not told and (about := await feed.about()):
                    told = ready
                    await websocket.send(about)
                await websocket.send(await feed.view())
                await feed.wait_turn()
        except ApiError as error:
            refusal = error
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(show)
        while refusal is None:
            refusal = _refusal(await websocket.receive(), keys)
        nursery.cancel_scope.cancel()
    return refusal


def register(app: Application, keys: Keys) -> None:
    engine = app.engine
    feed = Feed(engine)

    async def show() -> ApiError | None:
        if feed.watchers >= MAX_WATCHERS:
            return ApiError("server_overloaded", f"{MAX_WATCHERS} clients watch the dashboard already.")
        feed.watchers += 1
        try:
            return await _watch(engine, feed, keys)
        finally:
            feed.watchers -= 1

    @app.websocket("/v1/dashboard")
    async def dashboard_feed() -> None:
        handshake = websocket.headers
        must_wait_for_key = bool(keys) and "Authorization" not in handshake
        if not must_wait_for_key:
            keys.tenant_of(handshake)
        refusal = await _wait_for_key(keys, feed.owing) if must_wait_for_key else None
        if refusal is None:
            refusal = await show()
        if refusal is None:
            await websocket.close(GOING_AWAY)
        else:
            await _refuse(refusal)

    @app.get("/v1/dashboard")
    async def dashboard_without_upgrade() -> Response:
        response = error_response(ApiError("upgrade_required", "Connect to /v1/dashboard with a WebSocket."))
        response.headers["Upgrade"] = "websocket"
        return response


async def _refuse(error: ApiError) -> None:
    await websocket.send(_encode(DashboardError(error=error.detail())).decode())
    await websocket.close(TRY_AGAIN_LATER if error.code in _PASSING else POLICY_VIOLATION)
