"""One answer that outlives its socket: its task, its kept frames, and the socket that follows it.

The task belongs to the server, not to a socket. It takes the events from the outbox, keeps their frames, and passes
each on to the socket that follows. A follower that reads slowly holds the answer up, as in every stream. Without a
follower it is written to its end, if `seconds` suffice; then it is cancelled and forgotten.

One socket follows at a time. The latest takes over, because it is usually the same client: the server may not have
noticed yet that its old connection is dead.
"""

import math
import secrets
from collections.abc import Callable
from typing import Final

import msgspec
import trio

from ...protocol.errors import ApiError
from ...protocol.requests import Generate
from ..errors import unexpected
from ..generation.event_stream import EventSource
from .frames import Frames
from .kept_answers import KeptAnswer, KeptAnswers
from .stream_outgoing import Post, post_all, send_answer

_BATCH: Final = 64  # missed frames that are sent in one turn of the event loop


class Follower:
    """A socket that follows an answer, under a name of its own. `on_end` is called before it gets the last frame."""

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
    """One request's answer, its task, and the socket that follows it, if any."""

    def __init__(self, request: Generate, name: str, seconds: float) -> None:
        super().__init__(f"{request.id}.{secrets.token_urlsafe(24)}", request.tenant)
        self.request_id = request.id
        self._name = name  # in its frames
        self._seconds = seconds
        self._lifetime = trio.CancelScope()
        self._follower: Follower | None = None
        self._over = trio.Event()  # the last frame is sent, or kept if nobody follows

    async def run(self, outbox: EventSource, frames: Frames, answers: "KeptAnswers[ResumableAnswer]") -> None:
        """Write the answer, and keep it for as long as somebody follows or may come back."""

        def post(frame: bytes) -> trio.Event | None:
            answers.append(self, frame)
            return self._pass_on(frame)

        with self._lifetime:
            try:
                await send_answer(outbox, frames, post, self._end)
            except Exception as error:  # our bug
                if not self.ended:
                    self._end()
                    post(frames.failed(unexpected(error)))
            self._over.set()
            await trio.sleep_forever()

    def hand_to(self, follower: Follower) -> None:
        """From now on this socket follows; its task must call `follow`."""
        before, self._follower = self._follower, follower
        if before is not None:
            before.scope.cancel()
        if follower.name != self._name:
            follower.post = _renamed(follower.post, self._name, follower.name)
        self._lifetime.deadline = math.inf

    async def follow(self, follower: Follower) -> None:
        """Send the frames from number `follower.next` on, then each as it comes; returns once the last is sent.

        Raises ApiError if another socket follows instead, or if it cannot be kept long enough to catch up.
        """
        try:
            with follower.scope:
                await self._catch_up(follower)
                await self._over.wait()
        finally:
            if self._follower is follower:
                self._follower = None
                self._lifetime.deadline = trio.current_time() + self._seconds if self.kept else -math.inf
            follower.caught_up.set()
        if follower.scope.cancelled_caught and not follower.ended:
            if self._follower is None:
                raise unknown_answer()
            raise ApiError("resumed_elsewhere", "Another socket follows this answer now.")

    async def _catch_up(self, follower: Follower) -> None:
        while missed := self.frames(follower.next, _BATCH):
            follower.next += len(missed)
            if self.ended and follower.next == self.count:
                follower.end()
            unsent = post_all(follower.post, missed)
            if unsent is None:
                await trio.lowlevel.checkpoint()
            else:
                await unsent.wait()
        await trio.lowlevel.checkpoint_if_cancelled()  # forgotten in the same turn: what it has not got is gone
        follower.caught_up.set()

    def _pass_on(self, frame: bytes) -> trio.Event | None:
        follower = self._follower
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
        """A socket that gets each frame as it comes needs no kept ones: for it the answer goes on."""
        if self._follower is None:
            self._lifetime.cancel()
        elif not self._follower.caught_up.is_set():
            self._follower.scope.cancel()


def unknown_answer() -> ApiError:
    """The same for every reason, so that nobody learns of another's answers."""
    message = (
        "No answer is kept under this token: it is unknown, its time is over, memory was short, or the server is new."
    )
    return ApiError("not_found", message, param="resume")


def _renamed(post: Post, old: str, new: str) -> Post:
    """Posts frames under another name. A frame begins with its type and its id."""
    before, after = (b'"id":%b,"seq":' % msgspec.json.encode(name) for name in (old, new))
    return lambda frame: post(frame.replace(before, after, 1))
