"""Answers that outlive their socket: a `create` frame with `resume_seconds` starts one, a `resume` frame finds it."""

from ...protocol.errors import ApiError
from ...protocol.requests import Generate
from ..asgi import Application
from ..generation.event_stream import EventSource
from .frames import Frames
from .kept_answers import KeptAnswers
from .resumable_answer import ResumableAnswer, unknown_answer


class ResumableAnswers:
    """All answers of this process that can be resumed."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._engine = app.engine
        gateway = app.engine.gateway
        self._events = gateway.accounts.kept_answers
        self._kept = KeptAnswers[ResumableAnswer](app.engine.settings.limits.resume_memory, gateway.kept, self._events)

    def check(self, seconds: float) -> None:
        """Raises ApiError if no answer may be kept for so long."""
        longest = self._engine.settings.limits.max_resume_seconds
        if seconds > longest:
            message = f"This server keeps an answer for at most {longest:g} seconds (--max-resume-seconds)."
            raise ApiError("invalid_value", message, param="resume_seconds")

    def start(
        self, request: Generate, outbox: EventSource, frames: Frames, name: str, seconds: float
    ) -> ResumableAnswer:
        """Write an accepted request's answer in a task of its own; somebody must follow it at once."""
        answer = ResumableAnswer(request, name, seconds)
        answer.append(frames.accepted(request.id, answer.token, seconds))
        self._kept.keep(answer)
        self._app.nursery.start_soon(self._run, answer, outbox, frames)
        return answer

    async def _run(self, answer: ResumableAnswer, outbox: EventSource, frames: Frames) -> None:
        gateway = self._engine.gateway

        def heed_news() -> None:
            if gateway.refuses_new:  # a draining server takes no new connection to resume on
                self._kept.discard(answer)

        gateway.on_news.add(heed_news)
        try:
            heed_news()
            await answer.run(outbox, frames, self._kept)
        finally:
            gateway.on_news.discard(heed_news)
            self._kept.discard(answer)
            gateway.cancel(answer.request_id)  # harmless after its end

    async def find(self, token: str, tenant: str, after: int) -> ResumableAnswer:
        """The answer with this token, if it has `after` frames and will have another. Raises ApiError."""
        try:
            answer = await self._find(token, tenant)
            if after > answer.count - answer.ended:
                end = " and has ended" if answer.ended else ""
                message = f"This answer has {answer.count} frames{end}; `after` is how many of them you have."
                raise ApiError("invalid_value", message, param="after")
        except ApiError:
            self._events["refused"] += 1
            raise
        self._events["resumed"] += 1
        return answer

    async def _find(self, token: str, tenant: str) -> ResumableAnswer:
        answer = self._kept.find(token, tenant)
        if answer is not None:
            return answer
        id = token.rpartition(".")[0]
        if not self._engine.gateway.is_own(id) and await self._engine.explain(id, tenant) is not None:
            message = "Another web process of this server keeps this answer: open a new socket and resume there."
            raise ApiError("misdirected", message, param="resume")
        raise unknown_answer()
