"""One request's events as numbered WebSocket frames.

Nearly every event is one token's text. Its frame is spliced from bytes prepared once per choice. All other frames are
encoded from the Structs of protocol/stream_frames.py, and a test checks that both give the same bytes.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from ...protocol.errors import ApiError, ErrorDetail
from ...protocol.events import ChoiceFinished, Failed, Finished, PromptTokens, Started, StreamEvent, Token
from ...protocol.explanation import Explanation
from ...protocol.openai_responses import usage_body
from ...protocol.reports import Loading, WorkerState
from ...protocol.stream_frames import (
    AcceptedFrame,
    ErrorFrame,
    ExplanationFrame,
    FailedFrame,
    FinishedChoice,
    FinishedFrame,
    PromptFrame,
    ServerFrame,
    StartedFrame,
    StatusFrame,
    TokenFrame,
    call_begins,
)
from ..errors import error_of
from ..openai.logprobs import chat_logprobs

_encode = msgspec.json.Encoder().encode

# Between number and text, and behind it, of the choices and tokens that frames have; those beyond are encoded.
_PREPARED: Final = 64
_MIDDLES: Final = tuple(b',"index":%d,"kind":"text","text":' % index for index in range(_PREPARED))
_ENDS: Final = tuple(b',"tokens":%d}' % tokens for tokens in range(_PREPARED))


class Frames:
    """Encodes the events of one request, in order. `choices` is how many it has, `seq` the first frame's number."""

    __slots__ = ("_choices", "_finished", "_head", "_id", "_seq")

    def __init__(self, id: str, choices: int, seq: int = 0) -> None:
        self._id = id
        self._head = b'{"type":"token","id":%b,"seq":' % _encode(id)
        self._seq = seq
        self._choices = choices
        self._finished: dict[int, FinishedChoice] = {}

    def encode(self, events: Sequence[StreamEvent]) -> list[bytes]:
        """Adjacent texts of one choice become one frame: a slow client gets larger frames, not more."""
        frames: list[bytes] = []
        for event in _joined(events):
            if isinstance(event, Token):
                frames.append(self._token(event))
            elif isinstance(event, ChoiceFinished):
                self._finished[event.index] = FinishedChoice(
                    index=event.index, reason=event.reason, stop_reason=event.stop_reason
                )
            elif isinstance(event, Started):
                frames.append(
                    _encode(StartedFrame(id=self._id, seq=self._next(), model=event.model, request_id=event.id))
                )
            elif isinstance(event, Finished):
                frames.append(self._end(event))
            elif isinstance(event, PromptTokens):
                ids = event.token_ids
                frames.append(_encode(PromptFrame(id=self._id, seq=self._next(), index=event.index, token_ids=ids)))
            elif isinstance(event, Failed):
                frames.append(self.failed(error_of(event)))
        return frames

    def accepted(self, request_id: str, resume: str) -> bytes:
        return _encode(AcceptedFrame(id=self._id, seq=self._next(), request_id=request_id, resume=resume))

    def failed(self, error: ApiError) -> bytes:
        retry_after = msgspec.UNSET if error.retry_after is None else error.retry_after
        return _encode(FailedFrame(id=self._id, seq=self._next(), error=error.detail(), retry_after=retry_after))

    def text(self, index: int, text: str, tokens: int) -> bytes:
        """The frame of a `Token` with only these fields."""
        if index >= _PREPARED or tokens >= _PREPARED:
            return self._encoded(Token(id=self._id, index=index, text=text, tokens=tokens))
        seq = self._seq
        self._seq = seq + 1
        return b"%b%d%b%b%b" % (self._head, seq, _MIDDLES[index], _encode(text), _ENDS[tokens])

    def _token(self, token: Token) -> bytes:
        if token.kind == "text" and not token.logprobs and not token.token_ids:
            return self.text(token.index, token.text, token.tokens)
        return self._encoded(token)

    def _encoded(self, token: Token) -> bytes:
        return _encode(
            TokenFrame(
                id=self._id,
                seq=self._next(),
                index=token.index,
                kind=token.kind,
                text=token.text,
                tokens=token.tokens,
                call=token.call if token.kind == "tool" else msgspec.UNSET,
                begins=call_begins(token.starts),
                logprobs=chat_logprobs(token.logprobs) if token.logprobs else msgspec.UNSET,
                token_ids=token.token_ids or msgspec.UNSET,
            )
        )

    def _end(self, finished: Finished) -> bytes:
        choices = [
            self._finished.get(index) or FinishedChoice(index=index, reason=finished.reason)
            for index in range(self._choices)
        ]
        return _encode(
            FinishedFrame(
                id=self._id,
                seq=self._next(),
                reason=finished.reason,
                choices=choices,
                usage=usage_body(finished.usage),
                timing=finished.timing,
            )
        )

    def _next(self) -> int:
        seq = self._seq
        self._seq += 1
        return seq


def error_frame(detail: ErrorDetail) -> bytes:
    frame: ServerFrame = ErrorFrame(error=detail)
    return _encode(frame)


def explanation_frame(id: str, explanation: Explanation) -> bytes:
    frame: ServerFrame = ExplanationFrame(id=id, explanation=explanation)
    return _encode(frame)


def status_frame(state: WorkerState, reason: str, loading: Loading | None) -> bytes:
    frame: ServerFrame = StatusFrame(
        ready=state == "ready", status=state, reason=reason, loading=loading or msgspec.UNSET
    )
    return _encode(frame)


def _joined(events: Sequence[StreamEvent]) -> list[StreamEvent]:
    joined: list[StreamEvent] = []
    for event in events:
        last = joined[-1] if joined else None
        if (
            isinstance(event, Token)
            and isinstance(last, Token)
            and (last.index, last.kind, last.call) == (event.index, event.kind, event.call)
            and event.starts is None
        ):
            joined[-1] = msgspec.structs.replace(
                last,
                text=last.text + event.text,
                tokens=last.tokens + event.tokens,
                logprobs=last.logprobs + event.logprobs,
                token_ids=last.token_ids + event.token_ids,
            )
        else:
            joined.append(event)
    return joined
