"""Answers that outlive their connections: a request with a `disconnect_policy` starts one, its token finds it again."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import trio

from ...protocol.errors import ApiError
from ...protocol.events import StreamEvent
from ...protocol.requests import Generate
from ..errors import unexpected
from ..exchange import RESUME_HEADER, Content, Exchange
from .asked import Pieces
from .event_answer import EventAnswer, EventFeed, EventMessages
from .event_stream import EventSource
from .kept_answers import KeptAnswers
from .posting import Encoder
from .resumable_answer import Follower, ResumableAnswer, unknown_answer

if TYPE_CHECKING:
    from ...actors.observe.server import Server

A = TypeVar("A", bound=ResumableAnswer)


class ResumableAnswers:
    """All answers of this process that can be resumed. `nursery` is the server's, once it serves."""

    def __init__(self, engine: "Server", nursery: Callable[[], trio.Nursery]) -> None:
        self._engine = engine
        self._nursery = nursery
        gateway = engine.gateway
        self._events = gateway.accounts.kept_answers
        self._kept = KeptAnswers[ResumableAnswer](engine.settings.limits.resume_memory, gateway.kept, self._events)

    @property
    def longest(self) -> float:
        """Seconds that an answer may wait for its client."""
        return self._engine.settings.limits.max_resume_seconds

    def start(
        self, answer: ResumableAnswer, outbox: EventSource, encoder: Encoder, first: Sequence[StreamEvent] = ()
    ) -> None:
        """Write an accepted request's answer in a task of its own; somebody must follow it at once."""
        answer.begin(encoder, first)
        self._kept.keep(answer)
        self._nursery().start_soon(self._run, answer, outbox, encoder)

    async def _run(self, answer: ResumableAnswer, outbox: EventSource, encoder: Encoder) -> None:
        gateway = self._engine.gateway

        def heed_news() -> None:
            if gateway.refuses_new:  # a draining server takes no new connection to resume on
                self._kept.discard(answer)

        gateway.on_news.add(heed_news)
        try:
            heed_news()
            await answer.run(outbox, encoder, self._kept)
        finally:
            gateway.on_news.discard(heed_news)
            self._kept.discard(answer)
            gateway.cancel(answer.request_id)  # harmless after its end

    def start_events(
        self,
        request: Generate,
        outbox: EventSource,
        pieces: Pieces,
        first: Sequence[StreamEvent],
        seconds: float,
        exchange: Exchange,
    ) -> Content | None:
        """The same for a streamed HTTP answer, with `first` already taken from its outbox. The exchange follows.

        None if the server drains since it was asked: nothing is kept then, and it is a stream like any other.
        """
        if self._engine.gateway.refuses_new:
            return None
        answer = EventAnswer(request, pieces, seconds, self.longest)
        self.start(answer, outbox, EventMessages(pieces), first)
        return self.follow_events(answer, 0, exchange)

    def follow_events(self, answer: EventAnswer, after: int, exchange: Exchange) -> Content:
        """The events from number `after` on. The end of the exchange leaves the answer, and does not end it."""
        pieces, silence = answer.pieces, self._engine.settings.keep_alive_interval
        feed = EventFeed(pieces.keep_alive, silence, at_once=after == answer.count)
        follower = Follower("", feed.post, feed.end, after)
        answer.hand_to(follower)
        exchange.on_leave = follower.scope.cancel
        self._nursery().start_soon(self._follow, answer, follower, feed)
        return Content(feed.body(), (*pieces.fields, (RESUME_HEADER.lower().encode(), answer.token.encode())))

    async def _follow(self, answer: EventAnswer, follower: Follower, feed: EventFeed) -> None:
        try:
            await answer.follow(follower)
        except Exception as error:  # ApiError, or our bug: this task is the server's, and must not end it
            if not follower.ended:
                follower.end()
                said = error if isinstance(error, ApiError) else unexpected(error)
                feed.post(answer.pieces.failed(said))  # of this connection, not of the answer: it has no number

    async def find(self, kind: type[A], token: str, tenant: str, after: int, param: str) -> A:
        """The answer with this token, if it has `after` frames and will have another. Raises ApiError."""
        try:
            answer = await self._find(kind, token, tenant, param)
            if after > answer.count - answer.ended:
                end = " and has ended" if answer.ended else ""
                message = f"This answer has {answer.count} frames{end}: nothing comes behind what `after` says."
                raise ApiError("invalid_value", message, param="after")
        except ApiError:
            self._events["refused"] += 1
            raise
        self._events["resumed"] += 1
        return answer

    async def _find(self, kind: type[A], token: str, tenant: str, param: str) -> A:
        answer = self._kept.find(token, tenant)
        if isinstance(answer, kind):
            return answer
        id = token.rpartition(".")[0]
        if not self._engine.gateway.is_own(id) and await self._engine.explain(id, tenant) is not None:
            message = "Another web process of this server keeps this answer: open a new connection and resume there."
            raise ApiError("misdirected", message, param=param)
        raise unknown_answer(param)

    def cancel(self, answer: ResumableAnswer) -> None:
        """End its request; whoever follows gets the end of a cancelled one."""
        self._engine.gateway.cancel(answer.request_id)
