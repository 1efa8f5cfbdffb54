"""One answer that outlives its connection: its task, its kept frames, and the connection that follows it.

The task belongs to the server, not to a connection. It takes the events from the outbox, keeps their frames (a
WebSocket's, or server-sent events), and passes each on to whoever follows. A follower that reads slowly holds the
answer up, as in every stream. Without a follower it is written to its end, if `seconds` suffice; then it is cancelled
and forgotten. With `math.inf` seconds it is always written to its end, and then kept for `longest` seconds.

One connection follows at a time. The latest takes over, because it is usually the same client: the server may not have
noticed yet that its old connection is dead.
"""

import math
import secrets
from collections.abc import Callable, Sequence
from typing import Final

import trio

from ...protocol.errors import ApiError
from ...protocol.events import Failed, Finished, StreamEvent
from ...protocol.requests import Generate
from ..errors import unexpected
from .event_stream import EventSource
from .kept_answers import KeptAnswer, KeptAnswers
from .posting import Encoder, Post, post_all, send_answer

_BATCH: Final = 64  # missed frames that are sent in one turn of the event loop


class Follower:
    """A connection that follows an answer, under a name of its own. `on_end` is called before its last frame."""

    __slots__ = ("caught_up", "ended", "name", "next", "on_end", "post", "scope")

    def __init__(self, name: str, post: Post, on_end: Callable[[], None], after: int) -> None:
        self.name = name
        self.post = post
        self.on_end = on_end
        self.next = after  # the number of the next frame that it gets
        self.caught_up = trio.Event()  # it gets each frame as it comes, or it has left
        self.ended = False
        self.scope = trio.CancelScope()

    def end(self) -> None:
        self.ended = True
        self.on_end()


class ResumableAnswer(KeptAnswer):
    """One request's answer, its task, and the connection that follows it, if any."""

    def __init__(self, request: Generate, seconds: float, longest: float) -> None:
        super().__init__(f"{request.id}.{secrets.token_urlsafe(24)}", request.tenant)
        self.request_id = request.id
        self._seconds = seconds
        self._longest = longest
        self._lifetime = trio.CancelScope()
        self._pause = trio.CancelScope()  # its task's wait for its follower
        self._follower: Follower | None = None
        self._posted_to: Follower | None = None  # who got the last frame
        self._over = trio.Event()  # the last frame is sent, or kept if nobody follows

    def cut(self, message: bytes) -> list[bytes]:
        """The frames that an encoder's message consists of."""
        return [message]

    def begin(self, encoder: Encoder, first: Sequence[StreamEvent]) -> None:
        """Take events that are here already, before the answer is kept."""
        for message in encoder.encode(first):
            for frame in self.cut(message):
                self.append(frame)
        self.ended = bool(first) and isinstance(first[-1], Finished | Failed)

    async def run(self, outbox: EventSource, encoder: Encoder, answers: "KeptAnswers[ResumableAnswer]") -> None:
        """Write the answer, and keep it for as long as somebody follows or may come back."""

        def post(message: bytes) -> trio.Event | None:
            unsent: trio.Event | None = None
            for frame in self.cut(message):
                answers.append(self, frame)
                unsent = self._pass_on(frame)
            return unsent

        with self._lifetime:
            try:
                if not self.ended:
                    await send_answer(outbox, encoder, post, self._end, self._until_sent)
            except Exception as error:  # our bug
                if not self.ended:
                    self._end()
                    post(encoder.failed(unexpected(error)))
            self._over.set()
            if self._follower is None and self._seconds == math.inf:
                self._wait_for_client()
            await trio.sleep_forever()

    def hand_to(self, follower: Follower) -> None:
        """From now on this connection follows; its task must call `follow`."""
        before, self._follower = self._follower, follower
        if before is not None:
            before.scope.cancel()
            self._pause.cancel()
        self._lifetime.deadline = math.inf

    async def follow(self, follower: Follower) -> None:
        """Send the frames from number `follower.next` on, then each as it comes; returns once the last is sent.

        Raises ApiError if another connection follows instead, or if it cannot be kept long enough to catch up.
        """
        try:
            if not self.kept:  # there was no room for it at all
                raise unknown_answer()
            with follower.scope:
                await self._catch_up(follower)
                await self._over.wait()
        finally:
            if self._follower is follower:
                self._follower = None
                self._pause.cancel()
                self._wait_for_client()
            follower.caught_up.set()
        if follower.scope.cancelled_caught and not follower.ended:
            if self._follower is None:
                raise unknown_answer()
            raise ApiError("resumed_elsewhere", "Another connection follows this answer now.")

    def _wait_for_client(self) -> None:
        """Nobody follows, or nobody did when it ended: its time begins."""
        seconds = self._longest if self._seconds == math.inf and self.ended else self._seconds
        self._lifetime.deadline = trio.current_time() + seconds if self.kept else -math.inf

    async def _catch_up(self, follower: Follower) -> None:
        unsent: trio.Event | None = None
        while missed := self.frames(follower.next, _BATCH):
            follower.next += len(missed)
            if self.ended and follower.next == self.count:
                follower.end()
            unsent = post_all(follower.post, missed)
            if follower.next == self.count:  # nothing is missing that it could lose
                break
            await _sent(unsent)
        await trio.lowlevel.checkpoint_if_cancelled()  # forgotten in the same turn: what it has not got is gone
        follower.caught_up.set()
        await _sent(unsent)

    async def _until_sent(self, unsent: trio.Event) -> None:
        """Or until its follower leaves: the next one does not wait for one that has stopped reading."""
        if self._follower is None or self._follower is not self._posted_to:
            await trio.lowlevel.checkpoint()
            return
        with trio.CancelScope() as self._pause:
            await unsent.wait()

    def _pass_on(self, frame: bytes) -> trio.Event | None:
        follower = self._posted_to = self._follower
        if follower is None:
            return None
        if not follower.caught_up.is_set():
            return follower.caught_up
        follower.next += 1
        return follower.post(frame)

    def _end(self) -> None:
        self.ended = True
        if self._follower is not None and self._follower.caught_up.is_set():
            self._follower.end()

    def on_forgotten(self) -> None:
        """A connection that gets each frame as it comes needs no kept ones: for it the answer goes on."""
        if self._follower is None:
            self._lifetime.cancel()
        elif not self._follower.caught_up.is_set():
            self._follower.scope.cancel()


async def _sent(unsent: trio.Event | None) -> None:
    await trio.lowlevel.checkpoint() if unsent is None else await unsent.wait()


def unknown_answer(param: str = "resume") -> ApiError:
    """The same for every reason, so that nobody learns of another's answers."""
    message = (
        "No answer is kept under this token: it is unknown, its time is over, memory was short, or the server is new."
    )
    return ApiError("not_found", message, param=param)
