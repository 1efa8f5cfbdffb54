"""The detokenizer: turns token ids from the scheduler into text in the outboxes. It never waits for a reader.

It owns the text of every live choice, finds stop strings and tells the scheduler, and ends requests whose choices are
all complete. After a stop string the scheduler may still send tokens of steps in flight; they are dropped here.

Nearly all messages are tokens that end nothing, of a choice whose text cannot be cut. They take a fast path,
`_add_rows`: the requests' look-ups are kept from step to step, so there is no object and no look-up per token. `_add`
serves all others; a test compares the two.
"""

from collections.abc import Sequence
from time import perf_counter
from typing import assert_never

import msgspec
import trio

from ...protocol.errors import REGISTRY, ApiError, ErrorCode
from ...protocol.events import ChoiceFinished, FinishReason, PromptTokens, Token, Vector
from ...protocol.messages import (
    ChoiceTokens,
    DropRequest,
    OpenChoice,
    StepTokens,
    Stop,
    ToDetokenizer,
    ToScheduler,
)
from ..gateway.gateway import Gateway
from ..gateway.history import StreamRecord
from ..tokenizer.text_tokenizer import TextTokenizer
from ..turns import waiting
from .choice_text import ChoiceText, TextDelta
from .incremental_text import IncrementalText
from .read_choice import choice_of


class _OpenRequest:
    """The unfinished choices of one request. Choices that are not opened yet are only counted."""

    def __init__(self, choices: int) -> None:
        self.unfinished = choices
        self.open: dict[int, ChoiceText] = {}
        self.prompt_due: set[int] = set()  # choices whose prompt waits for its log probabilities


class Detokenizer:
    """The state and its transitions; synchronous throughout."""

    def __init__(
        self, *, tokenizer: TextTokenizer, gateway: Gateway, scheduler: trio.MemorySendChannel[ToScheduler]
    ) -> None:
        self._tokenizer = tokenizer
        self._gateway = gateway
        self._scheduler = scheduler
        self._requests: dict[str, _OpenRequest] = {}
        self._ids: tuple[str, ...] | None = None  # of the last step's rows; None when they must be looked up again
        self._plain: list[tuple[IncrementalText, StreamRecord] | None] = []  # what `_plain_text` said of each

    def handle(self, messages: Sequence[ToDetokenizer]) -> None:
        """Handle all messages that have come: a stream gets its part in one write."""
        began = perf_counter()
        for message in messages:
            match message:
                case StepTokens():
                    self._add_rows(message)
                    for tokens in message.others:
                        self._add(tokens)
                case OpenChoice():
                    self._open(message)
                case DropRequest(id=id, reason=reason):
                    self._drop(id, reason)
                case _:
                    assert_never(message)
        self._gateway.flush()
        self._gateway.accounts.text_seconds += perf_counter() - began

    def _add_rows(self, step: StepTokens) -> None:
        """A token costs 1.7 µs from here to its socket. By way of `_add`, as with stop strings, it costs 5.3."""
        deliver, now, ids = self._gateway.deliver_text, trio.current_time(), step.ids
        if ids != self._ids:
            self._ids, self._plain = ids, [self._plain_text(id) for id in ids]
        for id, plain, tokens in zip(ids, self._plain, step.rows, strict=True):
            if plain is None:
                self._add(ChoiceTokens(id=id, index=0, tokens=tokens))
            else:
                text, stream = plain
                deliver(stream, 0, text.decode(tokens), len(tokens), now)

    def _plain_text(self, id: str) -> tuple[IncrementalText, StreamRecord] | None:
        """The decoder and the stream of a request whose first choice is open and gives its text as it is decoded."""
        state, stream = self._requests.get(id), self._gateway.stream(id)
        choice = state.open.get(0) if state else None
        text = choice.plain if choice else None
        return (text, stream) if text and stream else None

    def _open(self, message: OpenChoice) -> None:
        request, id, index = message.request, message.request.id, message.index
        if not self._gateway.is_live(id):
            return
        state = self._requests.get(id)
        if state is None:
            state = self._requests[id] = _OpenRequest(len(request.prompts) * request.n)
        choice = state.open[index] = choice_of(request, message.prompt, index, self._tokenizer)
        # The choices of one prompt share it: usage counts it once, and its cached part as the first choice found it.
        self._gateway.started(id, 0 if index % request.n else message.cached_tokens)
        if choice.wants_prompt_logprobs:
            state.prompt_due.add(index)
        else:
            self._tell_prompt(id, index, choice)
        self._look_up_again()

    def _tell_prompt(self, id: str, index: int, choice: ChoiceText) -> None:
        """What the answer says of the prompt: its ids and log probabilities, and its text."""
        request = choice.request
        if request.returns_token_ids or request.prompt_logprobs is not None:
            scores = choice.prompt_logprobs()
            self._gateway.deliver(PromptTokens(id=id, index=index, token_ids=choice.prompt, logprobs=scores))
        if request.echo:
            self._deliver(id, index, choice.echo())

    def _look_up_again(self) -> None:
        """Some request began, ended or changed. The last step's decoders hold requests with their prompts: they go."""
        self._ids, self._plain = None, []

    def _forget(self, id: str) -> _OpenRequest | None:
        self._look_up_again()
        return self._requests.pop(id, None)

    def _add(self, tokens: ChoiceTokens) -> None:
        id, index = tokens.id, tokens.index
        if tokens.reason == "error":  # of the whole request; this choice may not be open yet, or no longer
            self._forget(id)
            self._gateway.fail(id, _error(tokens))
            return
        state = self._requests.get(id)
        if state is None or not self._gateway.is_live(id):
            self._forget(id)
            return
        choice = state.open.get(index)
        if choice is None:
            return
        if choice.request.pooled:
            self._gateway.deliver(Vector(id=id, index=index, values=tokens.vector))
            self._close(state, ChoiceFinished(id=id, index=index, reason="stop"))
            return
        choice.add_prompt_logprobs(tokens.prompt_logprobs)
        if index in state.prompt_due and (tokens.tokens or tokens.reason):
            state.prompt_due.discard(index)
            self._tell_prompt(id, index, choice)
        if choice.echoes_only:  # the one token that was computed is not asked for
            if tokens.reason is not None:
                reason = "length" if tokens.reason == "stop" else tokens.reason
                self._close(state, ChoiceFinished(id=id, index=index, reason=reason))
            return
        delta = choice.add_tokens(tokens.tokens, tokens.logprobs, last=tokens.reason is not None)
        token_ids = tokens.tokens[: delta.kept] if choice.request.returns_token_ids else ()
        if choice.request.returns_token_ids and tokens.stop_token is not None and delta.stop is None:
            token_ids += (tokens.stop_token,)
        self._deliver(id, index, delta, token_ids)
        if delta.plain:
            self._look_up_again()
        if delta.stop is not None or delta.enough:
            if tokens.reason is None:
                self._scheduler.send_nowait(Stop(id=id, index=index, tokens_kept=choice.tokens))
            ending: FinishReason = "tool_calls" if delta.enough else "stop"
            self._close(state, ChoiceFinished(id=id, index=index, reason=ending, stop_reason=delta.stop))
        elif tokens.reason is not None:
            # The scheduler ends a choice with `stop` only for a stop token; this was generated and counts.
            finished = ChoiceFinished(
                id=id,
                index=index,
                reason="tool_calls" if tokens.reason == "stop" and choice.calls else tokens.reason,
                stop_reason=tokens.stop_reason,
                stop_tokens=1 if tokens.reason == "stop" else 0,
            )
            self._close(state, finished)

    def _drop(self, id: str, reason: FinishReason) -> None:
        """The request ended otherwise. The text its choices still hold back belongs to its answer."""
        state, record = self._forget(id), self._gateway.stream(id)
        if record is None:
            return
        choices = sorted(state.open.items()) if state is not None else []
        for index, choice in choices:
            self._deliver(id, index, choice.add_tokens((), last=True))
        if reason == "deadline" and not record.completion_tokens:
            error = ApiError("deadline_exceeded", "the request's deadline passed before its first token was computed")
            self._gateway.fail(id, error)
            return
        for index, _ in choices:
            self._gateway.deliver(ChoiceFinished(id=id, index=index, reason=reason))
        self._gateway.complete(id, reason)

    def _deliver(self, id: str, index: int, delta: TextDelta, token_ids: tuple[int, ...] = ()) -> None:
        for part in delta.parts[:-1]:
            self._gateway.deliver(part)
        if delta.parts:
            self._gateway.deliver(msgspec.structs.replace(delta.parts[-1], token_ids=token_ids))
        elif delta.text or delta.kept or delta.logprobs or token_ids:
            token = Token(
                id=id, index=index, text=delta.text, tokens=delta.kept, logprobs=delta.logprobs, token_ids=token_ids
            )
            self._gateway.deliver(token)

    def _close(self, state: _OpenRequest, finished: ChoiceFinished) -> None:
        del state.open[finished.index]
        self._look_up_again()
        state.unfinished -= 1
        self._gateway.deliver(finished)
        if not state.unfinished:
            self._forget(finished.id)
            self._gateway.complete(finished.id, finished.reason)


def _error(tokens: ChoiceTokens) -> ApiError:
    code: ErrorCode = "engine_error"
    for known in REGISTRY:  # narrows the string to the registry's type
        if known == tokens.error:
            code = known
    message = tokens.message or "the engine failed while computing this request"
    return ApiError(code, message, retry_after=tokens.retry_after)


async def run_detokenizer(
    inbox: trio.MemoryReceiveChannel[ToDetokenizer],
    *,
    tokenizer: TextTokenizer,
    gateway: Gateway,
    scheduler: trio.MemorySendChannel[ToScheduler],
) -> None:
    """Turn every message into events, until the scheduler closes its end."""
    with inbox, scheduler:
        detokenizer = Detokenizer(tokenizer=tokenizer, gateway=gateway, scheduler=scheduler)
        async for first in inbox:
            detokenizer.handle((first, *waiting(inbox)))
