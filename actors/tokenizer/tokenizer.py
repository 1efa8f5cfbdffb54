"""The tokenizer: turns prompts into token ids in a separate thread, so that a long text delays no other stream.

There is one thread: it handles a few megabytes a second, and more threads would take cores from the model. Waiting
requests go to the thread together, in one hop. If all are short there is no hop, since it costs more than the work.
Whatever the library or the template does with one text, only that request fails.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import trio
from msgspec import UNSET

from ...protocol.errors import ApiError
from ...protocol.messages import ToAdmission, Tokenized, ToTokenizer
from ...protocol.requests import ChatPrompt, Generate, Prompt, TextPrompt, TokenPrompt
from ...protocol.steps import Ready
from ..gateway.gateway import Gateway
from ..turns import pass_on, waiting
from .text_tokenizer import TextTokenizer, load_text_tokenizer

T = TypeVar("T")
_LOG: Final = logging.getLogger("triolet.tokenizer")
_BATCH: Final = 16  # requests per hop: enough to hide its 42 µs, few enough that the first does not wait long
_SHORT: Final = 128  # characters: 80 µs, while a hop takes 85 µs of CPU time on both sides
_SHORT_IDS: Final = 4096  # ids are only checked: 60 µs
MAX_WAITING: Final = 64  # calls of /tokenize and /detokenize: each holds a body, but takes no place (--max-requests)


async def read_text_tokenizer(model: str) -> TextTokenizer:
    """The tokenizer of a checkpoint folder, read in a thread. Raises EngineLoadError."""
    return await trio.to_thread.run_sync(partial(load_text_tokenizer, model), abandon_on_cancel=True)


class TokenizerLane:
    """The tokenizer and its one thread; shared by the actor and the /tokenize route."""

    def __init__(self, tokenizer: TextTokenizer, ready: Ready) -> None:
        self._tokenizer = tokenizer
        self._context_length = ready.context_length
        self._vocab_size = ready.vocab_size
        self._limiter = trio.CapacityLimiter(1)
        self._direct = trio.Lock()  # one such call at a time queues for the thread, so requests wait for at most one

    async def tokenize(self, prompt: Prompt) -> tuple[int, ...]:
        return await self._run_direct(lambda: self._encode(prompt))

    async def detokenize(self, ids: tuple[int, ...]) -> str:
        return await self._run_direct(lambda: self._tokenizer.decode(ids, vocab_size=self._vocab_size))

    async def prepare(self, requests: list[Generate]) -> list[Tokenized | ApiError]:
        """Tokenise several requests; one that fails gets its error, the others continue."""
        if all(_is_short(request) for request in requests):
            return [self._prepare(request) for request in requests]
        return await self._run(lambda: [self._prepare(request) for request in requests])

    def _prepare(self, request: Generate) -> Tokenized | ApiError:
        try:
            prompts = _guarded(lambda: tuple(self._encode(prompt) for prompt in request.prompts), request.id)
            return Tokenized(request=request, prompts=prompts)
        except ApiError as error:
            return error

    def _encode(self, prompt: Prompt) -> tuple[int, ...]:
        return self._tokenizer.encode(prompt, context_length=self._context_length, vocab_size=self._vocab_size)

    async def _run_direct(self, job: Callable[[], T]) -> T:
        if self._direct.statistics().tasks_waiting >= MAX_WAITING:
            message = f"{MAX_WAITING} calls are waiting for the tokenizer already; try again"
            raise ApiError("server_overloaded", message, retry_after=1)
        async with self._direct:
            return await self._run(lambda: _guarded(job, "a direct call"))

    async def _run(self, job: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(job, limiter=self._limiter)


def _guarded(job: Callable[[], T], whose: str) -> T:
    """Turn any failure into an `ApiError`."""
    try:
        return job()
    except (ApiError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a panic of the Rust library is not an Exception
        _LOG.exception("the tokenizer failed for %s", whose)
        message = f"the tokenizer failed on this input ({type(error).__name__}); the server's log says how"
        raise ApiError("internal_error", message) from None


def _is_short(request: Generate) -> bool:
    if len(request.prompts) != 1:
        return False
    match request.prompts[0]:
        case TokenPrompt(token_ids=ids):
            return len(ids) <= _SHORT_IDS
        case TextPrompt(text=text):
            return len(text) <= _SHORT
        case ChatPrompt(messages=messages):
            texts = [message.content or "" for message in messages if message.tool_calls is UNSET]
            return len(texts) == len(messages) <= 2 and sum(map(len, texts)) <= _SHORT


async def run_tokenizer(
    inbox: trio.MemoryReceiveChannel[ToTokenizer],
    admission: trio.MemorySendChannel[ToAdmission],
    *,
    lane: TokenizerLane,
    gateway: Gateway,
) -> None:
    """Tokenise every request that is still live."""
    with inbox, admission:
        async for first in inbox:
            batch = [request for request in (first, *waiting(inbox, _BATCH - 1)) if gateway.is_live(request.id)]
            if not batch:
                continue
            for request, result in zip(batch, await lane.prepare(batch), strict=True):
                if isinstance(result, ApiError):
                    gateway.fail(request.id, result)
                else:
                    await pass_on(admission, result)
