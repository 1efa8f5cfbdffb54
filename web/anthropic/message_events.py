"""A streamed message as Anthropic's events: blocks one after the other, each begun, filled and stopped."""

from collections.abc import Sequence
from typing import Final

from ...protocol.anthropic_responses import (
    AnswerBlock,
    AnthropicMessage,
    BlockInput,
    BlockText,
    BlockThinking,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    MessageDelta,
    MessagePing,
    MessageStart,
    MessageStop,
    MessageUsage,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    message_usage,
)
from ...protocol.errors import ApiError
from ...protocol.events import ChoiceFinished, Failed, Finished, Started, StreamEvent, Token
from ...protocol.requests import Generate
from ..errors import error_of
from ..generation.asked import Pieces
from ..generation.sse import encode, named_event, one_line
from .errors import anthropic_error
from .message import ID_PREFIX, message_end

_PING: Final = named_event(MessagePing())


class MessageEvents(Pieces):
    """Knows which block is open: `_part` is its kind and, of a tool call, its number."""

    __slots__ = ("_count", "_end", "_part", "_request", "_spliced", "_started")

    def __init__(self, request: Generate) -> None:
        self._request = request
        self._started = False
        self._count = 0  # blocks begun
        self._part: tuple[str, int] | None = None
        self._spliced = (b"", b"")  # of the open block's text: what is before and after it
        self._end: ChoiceFinished | None = None

    @property
    def keep_alive(self) -> bytes:
        return _PING

    def encode(self, events: Sequence[StreamEvent]) -> bytes:
        return b"".join([self._event(event) for event in events])

    def text(self, index: int, text: str, tokens: int) -> bytes:
        if not text:  # held back: it may begin a stop string or a character
            return b""
        begun = self._begin(("text", 0), TextBlock(text=""))
        before, after = self._spliced
        spelt = encode(text)
        return b"%b%b%b%b" % (begun, before, spelt if spelt.isascii() else one_line(spelt), after)

    def failed(self, error: ApiError) -> bytes:
        return named_event(anthropic_error(error, self._request.name))

    def _event(self, event: StreamEvent) -> bytes:
        if isinstance(event, Token):
            return self._token(event)
        if isinstance(event, ChoiceFinished):
            self._end = event
            return b""
        if isinstance(event, Started):
            return self._start(event.prompt_tokens)
        if isinstance(event, Finished):
            return self._finish(event)
        if isinstance(event, Failed):
            return self.failed(error_of(event))
        return b""  # the prompt's tokens, for which nobody can ask here

    def _start(self, prompt_tokens: int) -> bytes:
        self._started = True
        message = AnthropicMessage(
            id=ID_PREFIX + self._request.id,
            model=self._request.served_as,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=MessageUsage(input_tokens=prompt_tokens, output_tokens=0),
        )
        return named_event(MessageStart(message=message))

    def _token(self, token: Token) -> bytes:
        if token.kind == "text":
            return self.text(token.index, token.text, token.tokens)
        if token.kind == "reasoning":
            return self._thought(token.text) if token.text else b""
        begun = b""
        if token.starts is not None:
            part = ("tool", token.call)
            begun = self._begin(part, ToolUseBlock(id=token.starts.id, name=token.starts.name, input={}))
        return begun + self._delta(BlockInput(partial_json=token.text)) if token.text else begun

    def _thought(self, text: str) -> bytes:
        begun = self._begin(("reasoning", 0), ThinkingBlock(thinking=""))
        return begun + self._delta(BlockThinking(thinking=text))

    def _finish(self, finished: Finished) -> bytes:
        usage = finished.usage
        begun = b"" if self._started else self._start(usage.prompt_tokens)
        end = MessageDelta(delta=message_end(self._request, self._end, finished), usage=message_usage(usage))
        return b"".join((begun, self._stop(), named_event(end), named_event(MessageStop())))

    def _begin(self, part: tuple[str, int], block: AnswerBlock) -> bytes:
        """Stop the block before and begin this one, unless it is open."""
        if part == self._part:
            return b""
        stopped = self._stop()
        self._part = part
        self._count += 1
        if part[0] == "text":
            key = b'"text":'
            head, tail = self._delta(BlockText(text="")).rsplit(key + b'""', 1)
            self._spliced = head + key, tail
        return stopped + named_event(ContentBlockStart(index=self._count - 1, content_block=block))

    def _delta(self, delta: BlockText | BlockThinking | BlockInput) -> bytes:
        return named_event(ContentBlockDelta(index=self._count - 1, delta=delta))

    def _stop(self) -> bytes:
        if self._part is None:
            return b""
        self._part = None
        return named_event(ContentBlockStop(index=self._count - 1))
