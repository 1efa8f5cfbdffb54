"""The tokenizer: turns prompts into token ids in a separate thread, so that a long text delays no other stream.

There is one thread: it handles a few megabytes a second, and more threads would take cores from the model. Waiting
requests go to the thread together, in one hop (text_queue.py). If all are short there is no hop, since it costs more
than the work. Whatever the library or the template does with one text, only that request fails.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import msgspec
import trio

from ...protocol.errors import ApiError, without_frames
from ...protocol.messages import ToAdmission, ToGrammar, Tokenized, ToTokenizer
from ...protocol.openai_responses import TokenizerInfo
from ...protocol.requests import ChatPrompt, Generate, Prompt
from ...protocol.steps import Ready
from ..gateway.gateway import Gateway
from ..turns import pass_on, waiting
from .stop_regex import stop_pattern
from .task import check_task
from .text_queue import TextQueue, characters
from .text_tokenizer import TextTokenizer, load_text_tokenizer

T = TypeVar("T")
_LOG: Final = logging.getLogger("triolet.tokenizer")
_SHORT: Final = 128  # characters: 80 µs, while a hop takes 85 µs of CPU time on both sides
_ANY_LENGTH: Final = 2**31  # of a prompt that is cut: its body is bounded
MAX_WAITING: Final = 64  # calls of /tokenize and /detokenize: each holds a body, but takes no place (--max-requests)


async def read_text_tokenizer(model: str, chat_template: str | None) -> TextTokenizer:
    """The tokenizer of a checkpoint folder or GGUF file, read in a thread. Raises EngineLoadError."""
    return await trio.to_thread.run_sync(partial(load_text_tokenizer, model, chat_template), abandon_on_cancel=True)


class TokenizerLane:
    """The tokenizer and its one thread; shared by the actor and the /tokenize route."""

    def __init__(self, tokenizer: TextTokenizer, ready: Ready) -> None:
        self._tokenizer = tokenizer
        self._context_length = ready.context_length
        self._capacity = min(ready.context_length, ready.memory.num_blocks * ready.memory.block_size)
        self._vocab_size = ready.vocab_size
        self._eos_token_ids = ready.eos_token_ids
        self._pooling = ready.pooling
        self._limiter = trio.CapacityLimiter(1)
        self._direct = trio.Lock()  # one such call at a time queues for the thread, so requests wait for at most one

    async def tokenize(self, prompt: Prompt) -> tuple[int, ...]:
        return await self._run_direct(lambda: self._encode(prompt))

    async def detokenize(self, ids: tuple[int, ...]) -> str:
        return await self._run_direct(lambda: self._tokenizer.decode(ids, vocab_size=self._vocab_size))

    def info(self) -> TokenizerInfo:
        templates, tokenizer = self._tokenizer.templates, self._tokenizer.tokenizer
        template = templates.plain if templates else None
        named = template.special_tokens if template else {}
        # A checkpoint may name no end in its tokenizer's configuration, but the model has one.
        end = tokenizer.id_to_token(self._eos_token_ids[0]) if self._eos_token_ids else None
        return TokenizerInfo(
            vocab_size=self._vocab_size,
            model_max_length=self._context_length,
            bos_token=named.get("bos_token"),
            eos_token=named.get("eos_token", end),
            pad_token=named.get("pad_token"),
            unk_token=named.get("unk_token"),
            chat_template=template.source if template else None,
        )

    async def prepare(self, requests: list[Generate]) -> list[Tokenized | ApiError]:
        """Tokenise several requests; one that fails gets its error, the others continue."""
        if all(_is_short(request) for request in requests):
            return [self._prepare(request) for request in requests]
        return await self._run(lambda: [self._prepare(request) for request in requests])

    def _prepare(self, request: Generate) -> Tokenized | ApiError:
        try:
            check_task(request, self._pooling)
            if request.pooled:
                return _guarded(lambda: self._pooled(request), request.id)
            request = _guarded(partial(self._with_stops, request), request.id)
            if grammar := _guarded(partial(self._tokenizer.call_grammar, request), request.id):
                request = msgspec.structs.replace(request, grammar_source=grammar)
            prompts = _guarded(lambda: self._encode_all(request), request.id)
            if request.reads_output and (thinking := self._tokenizer.thinking(request.prompts[0], prompts[0])):
                request = msgspec.structs.replace(request, thinking=thinking)
            return Tokenized(request=request, prompts=prompts)
        except ApiError as error:
            return without_frames(error)

    def _pooled(self, request: Generate) -> Tokenized:
        """A text that is too long is refused by admission, unless the request says where to cut it."""
        length, vocab_size = self._context_length, self._vocab_size
        most = request.truncate_prompt_tokens
        read = partial(self._tokenizer.encode_pooled, context_length=length, vocab_size=vocab_size, most=most)
        prompts, seconds = zip(*map(read, request.prompts), strict=True)
        return Tokenized(request=request, prompts=prompts, seconds=seconds if any(seconds) else ())

    def _with_stops(self, request: Generate) -> Generate:
        """Check the expressions that stop it, and spell its banned words in tokens."""
        for expression in request.stop_regex:
            stop_pattern(expression)
        if not request.bad_words:
            return request
        bad_words = tuple(self._tokenizer.banned_sequences(request.bad_words))
        sampling = msgspec.structs.replace(request.sampling, bad_words=bad_words)
        return msgspec.structs.replace(request, sampling=sampling)

    def _encode_all(self, request: Generate) -> tuple[tuple[int, ...], ...]:
        most, side = request.truncate_prompt_tokens, request.truncation_side
        if most is None:
            return tuple(self._encode(prompt) for prompt in request.prompts)
        if most == -1:
            most = max(self._capacity - (request.max_tokens or 1), 1)
        tokenizer, prompts = self._tokenizer, list[tuple[int, ...]]()
        for prompt in request.prompts:
            ids = tokenizer.encode(prompt, context_length=_ANY_LENGTH, vocab_size=self._vocab_size)
            prompts.append(tokenizer.truncate(prompt, ids, most, side))
        return tuple(prompts)

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
    if request.stop_regex or request.bad_words:  # to compile, and to tokenise twice
        return False
    turns = [len(prompt.messages) if isinstance(prompt, ChatPrompt) else 1 for prompt in request.prompts]
    return len(turns) == 1 and turns[0] <= 2 and characters(request) <= _SHORT


async def run_tokenizer(
    inbox: trio.MemoryReceiveChannel[ToTokenizer],
    admission: trio.MemorySendChannel[ToAdmission],
    grammar: trio.MemorySendChannel[ToGrammar],
    *,
    lane: TokenizerLane,
    gateway: Gateway,
) -> None:
    """Tokenise every request that is still live, each API key in turn."""
    with inbox, admission, grammar:
        queue = TextQueue()
        async for first in inbox:
            queue.add(first)
            while queue:
                for request in waiting(inbox):
                    queue.add(request)
                batch = [request for request in queue.next_batch() if gateway.is_live(request.id)]
                for request, result in zip(batch, await lane.prepare(batch), strict=True):
                    if isinstance(result, ApiError):
                        gateway.fail(request.id, result)
                    else:
                        await pass_on(admission if result.request.grammar_source is None else grammar, result)
                if queue:
                    await trio.lowlevel.checkpoint()
