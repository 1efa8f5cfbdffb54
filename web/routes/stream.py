"""GET /v1/stream: many requests over one WebSocket.

The connection's reader calls `StreamSocket` (web/transport/websocket.py), so an idle socket is one task.

The reader never waits for the client to read. It posts its frames (stream_outgoing.py), and that queue is bounded.
Each request has a small task that posts events and waits until they are sent. If the client stops reading, its outboxes
are not drained and the engine parks its requests for lack of credit. The memory held is one drain per request.
While the client keeps up, that task sleeps and a step's tokens go straight to the socket.

Of a resumable request this task only follows: what posts the events outlives the socket (resumable_answer.py).
"""

from functools import partial
from typing import TYPE_CHECKING, NoReturn

import msgspec
import trio

from ...protocol.errors import ApiError
from ...protocol.requests import Generate
from ...protocol.stream_frames import (
    Auth,
    CancelFrame,
    Create,
    CreditFrame,
    ExplainFrame,
    FromClient,
    ResumeFrame,
)
from ..asgi import Application
from ..auth import Keys
from ..errors import unexpected
from ..exchange import Handshake, Wire
from ..generation.asked import Origin, ServedModel
from ..generation.disconnect import waiting_seconds
from ..generation.event_stream import EventSource
from ..generation.generation import origin
from ..generation.models import message_reader, reading
from ..generation.posting import send_answer
from ..generation.resumable_answer import Follower, ResumableAnswer
from ..generation.resumable_answers import ResumableAnswers
from ..large_json import decode_aside
from ..openai.decode import decode
from ..openai.dialect import CHAT, COMPLETIONS, Body, Dialect
from .explain import explanation
from .frames import Frames, error_frame, explanation_frame, status_frame
from .socket_answer import SocketAnswer
from .stream_outgoing import Outgoing

if TYPE_CHECKING:
    from ...actors.observe.server import Server

MAX_UNREAD_ERRORS = 256  # error frames waiting for a client that does not read; beyond this it is closed
AUTH_SECONDS = 10.0  # to wait for the `auth` frame
LAST_WORDS_SECONDS = 1.0  # for waiting frames before the socket is closed

GOING_AWAY, UNSUPPORTED_DATA, POLICY_VIOLATION, INTERNAL_ERROR = 1001, 1003, 1008, 1011  # RFC 6455, 7.4.1

_FRAME = msgspec.json.Decoder(FromClient)


class _Kind(msgspec.Struct):
    prompt: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_KIND = msgspec.json.Decoder(_Kind)


class CloseSocket(Exception):
    """The client did something that closes the socket. The error was already sent."""

    def __init__(self, code: int) -> None:
        self.code = code


class StreamSocket:
    """One client's connection: its running requests, by the client's names, and frames waiting to be sent."""

    __slots__ = (
        "_address", "_answers", "_ended", "_engine", "_followed", "_headers", "_keys", "_outgoing", "_patience",
        "_running", "_tenant", "_told", "_unsent", "_wire",
    )  # fmt: skip

    def __init__(self, engine: "Server", answers: ResumableAnswers, keys: Keys, handshake: Handshake) -> None:
        """Raises ApiError (401) for a wrong key."""
        self._engine = engine
        self._headers = handshake.headers
        self._address = handshake.address
        self._answers = answers
        self._keys = keys
        self._tenant = keys.tenant_of_handshake(handshake)  # None: not known yet
        self._running: dict[str, str] = {}  # the client's name -> the server's id
        self._ended = False
        self._followed: set[str] = set()  # names among these: their requests outlive the socket
        self._unsent = 0  # requests whose last frame is not sent yet: running or just ended
        self._told: int | None = None  # of the worker's changes, the last that the client was told; None: it is well
        self._patience: trio.CancelScope | None = None  # of the task that waits for the key
        self._wire: Wire  # set by `begin`, like those below
        self._outgoing: Outgoing

    @property
    def tenant(self) -> str | None:
        return self._tenant

    def begin(self, wire: Wire) -> None:
        self._wire = wire
        self._outgoing = Outgoing(wire)
        self._engine.gateway.on_news.add(self._tell_news)
        self._tell_news()
        if self._tenant is None:
            wire.nursery.start_soon(self._expect_key)

    def end(self) -> None:
        self._ended = True
        self._engine.gateway.on_news.discard(self._tell_news)
        for name, id in self._running.items():
            if name not in self._followed:
                self._engine.gateway.cancel(id)

    async def _expect_key(self) -> None:
        with trio.move_on_after(AUTH_SECONDS) as self._patience:
            await trio.sleep_forever()
        if self._tenant is None:
            self._outgoing.post(error_frame(ApiError("invalid_api_key", "The `auth` frame did not come.").detail()))
            await self._close(POLICY_VIOLATION)

    async def _close(self, code: int) -> None:
        with trio.move_on_after(LAST_WORDS_SECONDS):
            await self._outgoing.flush()
        self._wire.close(code)

    async def receive(self, message: str | bytes) -> None:
        try:
            await self._take(message)
        except CloseSocket as close:
            await self._close(close.code)

    async def _take(self, message: str | bytes) -> None:
        if not isinstance(message, str):
            self._close_with(ApiError("invalid_event", "Frames are JSON text, not binary."), UNSUPPORTED_DATA)
        try:
            frame = await decode_aside(message, partial(decode, decoder=_FRAME), self._tenant or "")
        except ApiError as error:
            self._say(error_frame(ApiError("invalid_event", error.message, param=error.param).detail()))
            if self._tenant is None:
                raise CloseSocket(POLICY_VIOLATION) from None
            return
        if isinstance(frame, ExplainFrame) and self._tenant is not None:
            await self._explain(frame.id, self._tenant)
        elif isinstance(frame, Create) and self._tenant is not None:
            await self._create(frame, self._tenant)
        elif isinstance(frame, ResumeFrame) and self._tenant is not None:
            await self._resume(frame, self._tenant)
        elif isinstance(frame, Auth):
            await self._identify(frame.api_key)
        else:
            self._handle(frame)

    async def _identify(self, key: str) -> None:
        try:
            self._tenant = await self._keys.tenant_of_frame(key, self._address)
        except ApiError as error:
            self._close_with(error, POLICY_VIOLATION)
        if self._patience is not None:
            self._patience.cancel()
        self._tell_news()

    def _handle(self, frame: ExplainFrame | Create | CreditFrame | CancelFrame | ResumeFrame) -> None:
        if self._tenant is None or isinstance(frame, Create):
            self._close_with(
                ApiError("invalid_api_key", "An API key is needed: send an `auth` frame first."), POLICY_VIOLATION
            )
        elif frame.id in self._running:  # otherwise it has just ended
            if isinstance(frame, CreditFrame):
                self._engine.gateway.grant(self._running[frame.id], frame.tokens)
            else:
                self._engine.gateway.cancel(self._running[frame.id])

    async def _explain(self, name: str, tenant: str) -> None:
        """Answered by the reader itself, so a client has only one question open at a time."""
        try:
            if name not in self._running:
                raise ApiError("not_found", f"No running request has the id {name!r}.", param="id")
            self._say(explanation_frame(name, await explanation(self._engine, self._running[name], tenant)))
        except ApiError as error:
            self._say(error_frame(error.detail()))

    async def _create(self, frame: Create, tenant: str) -> None:
        if self._is_taken(frame.id):
            return
        try:
            self._check_room()
            asks, body = origin(self._engine, tenant, self._headers), message_reader(frame.request, tenant)
            async with reading(self._engine, body, _read, asks, absent="begin") as (engine, _, (request, waits)):
                if self._ended:  # while a large body was read
                    return
                outbox = engine.gateway.submit(request)
                if frame.credit is not None:
                    engine.gateway.grant(request.id, frame.credit)
        except ApiError as error:
            self._say(Frames(frame.id, 0).failed(error))
            return
        frames = Frames(frame.id, len(request.prompts) * request.n)
        if waits is not None:
            answer = SocketAnswer(request, frame.id, waits, self._answers.longest)
            answer.append(frames.accepted(request.id, answer.token))
            self._answers.start(answer, outbox, frames)
            self._follow(frame.id, answer, 0)
            return
        self._running[frame.id] = request.id
        self._unsent += 1
        self._wire.nursery.start_soon(self._answer, frame.id, outbox, frames, name="answer")

    async def _resume(self, frame: ResumeFrame, tenant: str) -> None:
        if self._is_taken(frame.id):
            return
        try:
            self._check_room()
            answer = await self._answers.find(SocketAnswer, frame.resume, tenant, frame.after, "resume")
        except ApiError as error:
            self._say(Frames(frame.id, 0).failed(error))
            return
        if not self._ended:  # while another process was asked
            self._follow(frame.id, answer, frame.after)

    def _is_taken(self, name: str) -> bool:
        """Answered by `error`: `failed` would look like the end of the request with this name."""
        if taken := name in self._running:
            error = ApiError("invalid_value", f"The id {name!r} belongs to a running request.", param="id")
            self._say(error_frame(error.detail()))
        return taken

    def _check_room(self) -> None:
        limit = self._engine.settings.limits.max_socket_requests
        if self._unsent >= limit:
            raise ApiError("rate_limit_exceeded", f"One socket may run {limit} requests at a time.", retry_after=1)

    async def _answer(self, name: str, outbox: EventSource, frames: Frames) -> None:
        """Moves one request's events to the client, no faster than it reads."""
        try:
            await send_answer(outbox, frames, self._outgoing.post, partial(self._free, name))
        except Exception as error:  # our bug
            unexpected(error)
            self._wire.close(INTERNAL_ERROR)
        self._unsent -= 1
        self._leave_when_draining()

    def _tell_news(self) -> None:
        """Outside any task: say how the worker is, if that is news to this client, and leave when the server drains."""
        worker = self._engine.gateway.worker
        well = worker.state == "ready"
        if self._tenant is not None and self._told != (None if well else worker.changes) and self._has_room:
            self._told = None if well else worker.changes
            self._outgoing.post(status_frame(worker.state, worker.trouble, worker.loading))
        self._leave_when_draining()

    @property
    def _has_room(self) -> bool:
        return self._outgoing.waiting < MAX_UNREAD_ERRORS + self._unsent

    def _free(self, name: str) -> None:
        """Its request ends. Called before the client knows: it may use the name again at once."""
        del self._running[name]
        self._followed.discard(name)

    def _follow(self, name: str, answer: ResumableAnswer, after: int) -> None:
        self._running[name] = answer.request_id
        self._followed.add(name)
        self._unsent += 1
        follower = Follower(name, self._outgoing.post, partial(self._free, name), after)
        answer.hand_to(follower)
        self._wire.nursery.start_soon(self._follow_to_end, follower, answer, name="follow")

    async def _follow_to_end(self, follower: Follower, answer: ResumableAnswer) -> None:
        try:
            await answer.follow(follower)
        except ApiError as error:
            follower.end()
            self._outgoing.post(Frames(follower.name, 0, follower.next).failed(error))
        self._unsent -= 1
        self._leave_when_draining()

    def _leave_when_draining(self) -> None:
        """Close once the last answer is sent; an open socket would delay the server's shutdown."""
        if self._engine.gateway.refuses_new and not self._unsent:
            self._wire.close(GOING_AWAY)

    def _say(self, frame: bytes) -> None:
        if not self._has_room:
            raise CloseSocket(POLICY_VIOLATION)
        self._outgoing.post(frame)

    def _close_with(self, error: ApiError, code: int) -> NoReturn:
        self._outgoing.post(error_frame(error.detail()))
        raise CloseSocket(code)


def _read(served: ServedModel, asks: Origin, request: msgspec.Raw) -> tuple[Generate, float | None]:
    """With the seconds that it may wait for its client, if it outlives the socket."""
    if decode(request, _KIND).prompt is not msgspec.UNSET:
        return _generate(COMPLETIONS, served, asks, request)
    return _generate(CHAT, served, asks, request)


def _generate(
    dialect: Dialect[Body], served: ServedModel, asks: Origin, request: msgspec.Raw
) -> tuple[Generate, float | None]:
    body = _body(dialect, request)
    generate = dialect.generate(body, served, asks)
    return generate, waiting_seconds(body.disconnect_policy, served.limits, stream=True)


def _body(dialect: Dialect[Body], request: msgspec.Raw) -> Body:
    """The body of the same request over HTTP, with streaming. Refuses fields that only HTTP has."""
    body = decode(request, dialect.decoder)
    if body.stream is False:
        raise ApiError("invalid_value", "A WebSocket always streams; leave stream out.", param="stream")
    if body.stream_options is not None and body.stream_options.continuous_usage_stats:
        raise ApiError(
            "unsupported_parameter",
            "A WebSocket's frames carry their token counts; usage comes with `finished`.",
            param="stream_options.continuous_usage_stats",
        )
    return msgspec.structs.replace(body, stream=True)


def register(app: Application, keys: Keys, answers: ResumableAnswers) -> None:
    app.socket_route("/v1/stream", partial(StreamSocket, app.engine, answers, keys))
