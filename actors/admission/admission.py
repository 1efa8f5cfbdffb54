"""Admission decides what may be computed. It checks every limit on a tokenised request, once; a refusal is an answer.

`decide` is the whole rule, a pure function: a tokenised request and the time in, an `Admit` or an `ApiError` out. The
gateway has already checked whether there is a place.
"""

from typing import Final

import trio

from ...protocol.errors import ApiError, context_exceeded
from ...protocol.messages import Admit, ToAdmission, Tokenized, ToScheduler
from ...protocol.requests import ChatPrompt, Generate
from ...protocol.steps import Ready
from ..gateway.gateway import Gateway
from ..turns import waiting

# Of the prompt, in an echo or beside the answer, including alternatives. Each takes 2 µs of the front's loop to spell,
# and some 120 bytes until it is sent: 0.3 s and 16 MB for a request of a few kilobytes.
MAX_PROMPT_LOGPROBS: Final = 2**17
# In an answer, over all choices, including alternatives: one choice with 20 of them over a context of 32,768. Without
# streaming the whole answer is held in memory: 80 MB, encoded at once.
MAX_LOGPROBS: Final = 21 * 2**15


def decide(tokenized: Tokenized, ready: Ready, now: float, kv_tokens: int | None = None) -> Admit | ApiError:
    """Admit the request with all numbers resolved, or say what is wrong with it. `kv_tokens` is its key's limit."""
    request = tokenized.request
    try:
        _check_deadline(request, now)
        _check_ids(request, ready)
        _check_grammar(request, ready)
        _check_some_token_is_left(request, ready)
        _check_prompt_logprobs(request, sum(map(len, tokenized.prompts)))
        resolve = _check_pooled if request.pooled else _resolve_max_tokens
        max_tokens = tuple(
            resolve(request, len(prompt), ready, _param(request, place), kv_tokens)
            for place, prompt in enumerate(tokenized.prompts)
        )
        _check_logprobs(request, sum(max_tokens))
    except ApiError as error:
        return error
    eos = () if request.ignore_eos else ready.eos_token_ids
    return Admit(
        request=request,
        prompts=tokenized.prompts,
        max_tokens=max_tokens,
        stop_token_ids=tuple(dict.fromkeys((*eos, *request.stop_token_ids))),
        eos_token_ids=eos,
        seconds=tokenized.seconds,
    )


def _param(request: Generate, place: int) -> str:
    if isinstance(request.prompts[place], ChatPrompt):
        return "messages"
    name = "input" if request.pooled else "prompt"
    return name if len(request.prompts) == 1 else f"{name}[{place}]"


def _check_deadline(request: Generate, now: float) -> None:
    if request.first_due is not None and now >= request.first_due:
        raise ApiError("deadline_exceeded", "the request's deadline passed before it was admitted")


def _check_ids(request: Generate, ready: Ready) -> None:
    named = (("stop_token_ids", request.stop_token_ids), ("logit_bias", [id for id, _ in request.sampling.logit_bias]))
    for param, ids in named:
        for id in ids:
            if not 0 <= id < ready.vocab_size:
                message = f"token id {id} is outside the model's vocabulary, 0 to {ready.vocab_size - 1}"
                raise ApiError("invalid_token_id", message, param=param)


def _check_some_token_is_left(request: Generate, ready: Ready) -> None:
    """Of the allowed tokens one must be neither banned alone nor, under min_tokens, a stop token."""
    sampling = request.sampling
    if not sampling.allowed_tokens:
        return
    left = int.from_bytes(sampling.allowed_tokens, "little")
    banned = {word[0] for word in sampling.bad_words if len(word) == 1}
    if sampling.min_tokens:
        banned.update(request.stop_token_ids, () if request.ignore_eos else ready.eos_token_ids)
    for id in banned:
        left &= ~(1 << id)
    if not left:
        message = "allowed_token_ids: bad_words and min_tokens leave none of these tokens"
        raise ApiError("invalid_value", message, param="allowed_token_ids")


def _check_grammar(request: Generate, ready: Ready) -> None:
    """An answer with a grammar ends where the grammar ends: nothing may keep it going."""
    if not request.grammar:
        return
    if request.sampling.min_tokens:
        message = "an answer with a schema or another grammar ends where that ends: leave out min_tokens"
        raise ApiError("invalid_value", message, param="min_tokens")
    if request.ignore_eos:
        message = "an answer with a schema or another grammar ends where that ends: leave out ignore_eos"
        raise ApiError("invalid_value", message, param="ignore_eos")
    if not ready.eos_token_ids:
        message = "this model names no end-of-sequence token, so no answer could end where its schema or grammar does"
        raise ApiError("unsupported_parameter", message)


def _check_prompt_logprobs(request: Generate, prompt_tokens: int) -> None:
    alternatives = request.sampling.prompt_logprobs
    if alternatives is None:
        return
    wanted = request.n * prompt_tokens * (1 + alternatives)
    if wanted > MAX_PROMPT_LOGPROBS:
        param = "logprobs" if request.prompt_logprobs is None else "prompt_logprobs"
        message = (
            f"{param} {alternatives} asks for {wanted} log probabilities of the prompt in all choices; "
            f"at most {MAX_PROMPT_LOGPROBS} are given: lower {param} or n, or shorten the prompt"
        )
        raise ApiError("invalid_value", message, param=param)


def _check_logprobs(request: Generate, max_tokens: int) -> None:
    """`max_tokens` is the sum over prompts, for one choice each."""
    alternatives = request.sampling.logprobs
    if alternatives is None:
        return
    wanted = request.n * max_tokens * (1 + alternatives)
    if wanted > MAX_LOGPROBS:
        choices = len(request.prompts) * request.n
        message = (
            f"{choices} choices with {request.n * max_tokens} tokens in all (n, max_tokens) and {alternatives} "
            f"alternatives each (logprobs, top_logprobs) may bring {wanted} log probabilities; at most {MAX_LOGPROBS} "
            f"are given: set max_tokens to {MAX_LOGPROBS // (choices * (1 + alternatives))} or less, or ask for fewer "
            "choices or alternatives"
        )
        raise ApiError("integer_out_of_range", message, param="logprobs")


def _beyond_key(length: int, kv_tokens: int, remedy: str, param: str) -> ApiError:
    message = f"the API key may hold {kv_tokens} tokens in the KV cache (kv_tokens), and this needs {length}: {remedy}"
    return ApiError("context_length_exceeded", message, param=param)


def _check_pooled(request: Generate, length: int, ready: Ready, param: str, kv_tokens: int | None) -> int:
    """A text that is pooled takes the place of one token behind it, which is never computed."""
    if kv_tokens is not None and length > kv_tokens:
        raise _beyond_key(length, kv_tokens, "shorten the text", param)
    if length == 0:
        raise ApiError("invalid_value", "the text is empty: it has no token", param=param)
    if length > ready.context_length:
        problem = f"The text has {length} tokens: shorten it, or send truncate_prompt_tokens: -1 to have it cut."
        raise context_exceeded(ready.context_length, problem, param=param)
    return 1


def _resolve_max_tokens(request: Generate, length: int, ready: Ready, param: str, kv_tokens: int | None) -> int:
    """The number of tokens to generate for a prompt of `length` tokens."""
    if length == 0:
        raise ApiError("invalid_value", "the prompt is empty: it has no token to continue from", param=param)
    context = ready.context_length
    if length + 1 > context:
        problem = f"The prompt has {length} tokens, and the answer needs at least one: shorten the prompt."
        raise context_exceeded(context, problem, param=param)
    # The KV cache holds at least one full-length sequence, or the model is not loaded; so this rarely applies.
    capacity = min(context, ready.memory.num_blocks * ready.memory.block_size)
    if length + 1 > capacity:
        problem = f"The prompt has {length} tokens, but the server's KV cache holds {capacity} (--kv-cache-memory)."
        raise context_exceeded(context, problem, param=param)
    wanted = 1 if request.max_tokens is None or request.ends_at_context else max(request.max_tokens, 1)
    if kv_tokens is not None and length + wanted > kv_tokens:
        problem = "shorten the prompt" if length >= kv_tokens else f"set max_tokens to {kv_tokens - length} or less"
        raise _beyond_key(length + wanted, kv_tokens, problem, param if length >= kv_tokens else "max_tokens")
    capacity = capacity if kv_tokens is None else min(capacity, kv_tokens)
    # max_tokens 0 echoes the prompt. One token is computed all the same, and the detokenizer drops it.
    wanted = capacity - length if request.max_tokens is None else request.max_tokens or 1
    if request.ends_at_context:
        wanted = min(wanted, capacity - length)
    if length + wanted > capacity:
        problem = (
            f"The prompt has {length} tokens and max_tokens is {wanted}: together {length + wanted}. "
            f"Set max_tokens to {capacity - length} or less, or leave it out"
        )
        if capacity < context:
            problem += f" (the KV cache holds {capacity} tokens, --kv-cache-memory)"
        raise context_exceeded(context, f"{problem}.", param="max_tokens")
    if request.sampling.min_tokens > wanted:
        message = f"min_tokens {request.sampling.min_tokens} is more than the {wanted} tokens the answer may have"
        raise ApiError("invalid_value", message, param="min_tokens")
    return wanted


async def run_admission(
    inbox: trio.MemoryReceiveChannel[ToAdmission],
    *,
    ready: Ready,
    gateway: Gateway,
    scheduler: trio.MemorySendChannel[ToScheduler],
) -> None:
    """Decide about every tokenised request; skips those cancelled meanwhile."""
    with inbox, scheduler:
        async for first in inbox:
            for tokenized in (first, *waiting(inbox)):
                id = tokenized.request.id
                if not gateway.is_live(id):
                    continue
                kv_tokens = gateway.quotas.kv_tokens(tokenized.request.tenant)
                decision = decide(tokenized, ready, trio.current_time(), kv_tokens)
                if isinstance(decision, ApiError):
                    gateway.fail(id, decision)
                    continue
                gateway.admitted(id, sum(map(len, tokenized.prompts)))
                # There is no await since `is_live`, so a Cancel can only come after this message.
                scheduler.send_nowait(decision)
