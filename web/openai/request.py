"""Turns a decoded body into the engine's request, for HTTP and WebSocket.

`generate_from_chat` and `generate_from_completion` take a body and return a `Generate`, or raise an ApiError that names
the field. The engine checks later what needs the tokenizer: lengths, the chat template.
"""

import random

import msgspec

from ...protocol.adapters import Adapter
from ...protocol.errors import ApiError, context_exceeded, model_not_found
from ...protocol.openai_requests import ChatBody, CompletionBody, GenerateBody
from ...protocol.requests import Generate, Prompt, TextPrompt, TokenPrompt
from ...protocol.sampling import MAX_TOP_LOGPROBS, Sampling
from ...protocol.served_models import LATEST
from ...protocol.settings import LimitSettings
from ...protocol.steps import Ready
from ..generation.asked import Origin, ServedModel
from .beams import with_beams
from .conversation import chat_prompt
from .decode import refuse_unsupported
from .formats import grammar_source
from .thinking import thinking_wish
from .tools import chat_tools

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions; chat answers may fill the context


def generate_from_chat(body: ChatBody, served: ServedModel, origin: Origin) -> Generate:
    """Raises ApiError (400, 404)."""
    refuse_unsupported(body)
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise _invalid("max_completion_tokens", "differs from max_tokens; send one of them")
    if body.top_logprobs and not body.logprobs:
        raise _invalid("top_logprobs", "needs logprobs: true")
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    request = _generate(
        body,
        served,
        origin,
        prompts=(chat_prompt(body),),
        max_tokens=max_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    wish, tool_use = thinking_wish(body), chat_tools(body)[1]
    request = msgspec.structs.replace(
        request,
        reads_output=True,
        tool_use=tool_use,
        reasoning_budget=wish.budget,
        include_reasoning=wish.include,
    )
    return with_beams(body, request)


def generate_from_completion(body: CompletionBody, served: ServedModel, origin: Origin) -> Generate:
    """Raises ApiError (400, 404)."""
    refuse_unsupported(body)
    if body.max_tokens == 0 and not body.echo:
        raise ApiError("integer_out_of_range", "max_tokens: 0 needs echo: true; send 1 or more.", param="max_tokens")
    if body.logprobs is True:
        message = f"logprobs is a number here: send how many alternatives a token has, 0 to {MAX_TOP_LOGPROBS}."
        raise ApiError("invalid_type", message, param="logprobs")
    request = _generate(
        body,
        served,
        origin,
        prompts=_prompts(body, served),
        max_tokens=DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens,
        logprobs=None if body.logprobs is False else body.logprobs,
        echo=bool(body.echo),
    )
    return with_beams(body, request)


def named_adapter(model: str | None, served: ServedModel, fallbacks: tuple[str, ...] = ()) -> Adapter | None:
    """The LoRA adapter that a request's `model` names; None for the model itself.

    Its name is `NAME` or `MODEL:NAME`. The first that is served counts, of `model` and the fallbacks. Raises ApiError
    (404) if none is.
    """
    if model is None:
        return None
    for name in (model, *fallbacks):
        if name in (served.model, served.model + LATEST):
            return None
        if adapter := served.adapters.get(name.removeprefix(f"{served.model}:")):
            return adapter
    raise model_not_found(model, [served.model, *served.adapters])


def check_token_ids(token_ids: list[int], vocab_size: int, param: str) -> None:
    """Raises ApiError for an unknown token id: using it would read past the end of a table."""
    if token_ids and max(token_ids) >= vocab_size:
        raise ApiError("invalid_token_id", f"{param}: token ids must be below {vocab_size}.", param=param)


def _generate(
    body: GenerateBody,
    served: ServedModel,
    origin: Origin,
    *,
    prompts: tuple[Prompt, ...],
    max_tokens: int | None,
    logprobs: int | None,
    echo: bool = False,
) -> Generate:
    adapter = named_adapter(body.model, served, origin.fallbacks)
    n = _choices_per_prompt(body)
    if len(prompts) * n > served.limits.max_choices:
        param = "best_of" if _chooses(body) else "n" if n > 1 else "prompt"
        raise ApiError(
            "integer_out_of_range",
            f"{len(prompts)} prompts with {param} = {n}: at most {served.limits.max_choices} choices are allowed.",
            param=param,
        )
    if body.stream_options is not None and not body.stream:
        raise ApiError("invalid_type", "stream_options needs stream: true.", param="stream_options")
    if body.min_tokens and max_tokens is not None and body.min_tokens > max_tokens:
        raise _invalid("min_tokens", f"is above max_tokens ({max_tokens})")
    if body.return_tokens_as_token_ids and logprobs is None and body.prompt_logprobs is None:
        raise _invalid("return_tokens_as_token_ids", "needs logprobs")
    if body.prompt_logprobs is not None and body.stream:
        raise _invalid("prompt_logprobs", "comes with a whole answer only: leave stream out")
    stop_token_ids = body.stop_token_ids or []
    check_token_ids(stop_token_ids, served.ready.vocab_size, "stop_token_ids")
    return Generate(
        id=origin.id,
        name=origin.name,
        traceparent=origin.traceparent,
        model=served.model,
        prompts=prompts,
        sampling=_sampling(
            body,
            served.ready,
            logprobs=_most(logprobs, 0 if _chooses(body) else None),
            prompt_logprobs=_most(logprobs if echo else None, body.prompt_logprobs),
        ),
        n=n,
        max_tokens=max_tokens,
        stop=stop_strings(body.stop, served.limits),
        bad_words=tuple(body.bad_words or ()),
        stop_regex=stop_strings(body.stop_regex, served.limits, "stop_regex"),
        stop_token_ids=tuple(stop_token_ids),
        ignore_eos=bool(body.ignore_eos),
        include_stop=bool(body.include_stop_str_in_output),
        skip_special_tokens=body.skip_special_tokens is not False,
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
        truncate_prompt_tokens=_truncation(body, served.ready),
        truncation_side=body.truncation_side or "left",
        returns_token_ids=bool(body.return_token_ids),
        prompt_logprobs=body.prompt_logprobs,
        grammar_source=grammar_source(body),
        echo=echo,
        priority=body.priority or 0,
        tenant=origin.tenant,
        cache_salt=body.cache_salt or "",
        adapter=adapter,
        determinism=body.determinism or "default",
        arrival_time=origin.arrival_time,
        deadline=_earlier(origin.deadline, _due(origin, body.deadline_ms)),
        first_token_deadline=_due(origin, body.ttft_deadline_ms),
    )


def _due(origin: Origin, milliseconds: int | None) -> float | None:
    return None if milliseconds is None else origin.arrival_time + milliseconds / 1000


def _earlier(one: float | None, other: float | None) -> float | None:
    return one if other is None else other if one is None else min(one, other)


def _sampling(body: GenerateBody, ready: Ready, *, logprobs: int | None, prompt_logprobs: int | None) -> Sampling:
    """Fills in missing parameters from the model's defaults (generation_config.json)."""
    top_k = _default(body.top_k, ready, "top_k", 0)
    top_p = _default(body.top_p, ready, "top_p", 1.0)
    if top_p == 0:  # nothing but the most probable token
        top_k, top_p = 1, 1.0
    return Sampling(
        repetition_penalty=_default(body.repetition_penalty, ready, "repetition_penalty", 1.0),
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=_logit_bias(body, ready.vocab_size),
        allowed_tokens=_allowed_tokens(body.allowed_token_ids, ready.vocab_size),
        min_tokens=body.min_tokens or 0,
        temperature=_default(body.temperature, ready, "temperature", 1.0),
        top_k=0 if top_k == -1 else int(top_k),
        top_p=top_p,
        min_p=_default(body.min_p, ready, "min_p", 0.0),
        seed=_seed(body.seed),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def asks_logprobs(body: GenerateBody) -> bool:
    return isinstance(body, ChatBody | CompletionBody) and body.logprobs is not None and body.logprobs is not False


def _choices_per_prompt(body: GenerateBody) -> int:
    """How many are generated: the n best of `best_of` are in the answer."""
    n = 1 if body.n is None else body.n
    if body.best_of is None or body.best_of == n:
        return n
    if body.best_of < n:
        raise _invalid("best_of", f"is below n ({n})")
    if body.stream:
        raise _invalid("best_of", "chooses among whole answers: leave stream out")
    return body.best_of


def _chooses(body: GenerateBody) -> bool:
    return body.best_of is not None and body.best_of > (1 if body.n is None else body.n)


def _truncation(body: GenerateBody, ready: Ready) -> int | None:
    most = body.truncate_prompt_tokens
    if most is None:
        if body.truncation_side is not None:
            raise _invalid("truncation_side", "needs truncate_prompt_tokens")
        return None
    if most == 0 or most > ready.context_length:
        problem = f"truncate_prompt_tokens must be 1 to {ready.context_length}, or -1 for as many as fit."
        raise ApiError("integer_out_of_range", problem, param="truncate_prompt_tokens")
    return most


def _most(*numbers: int | None) -> int | None:
    """The largest of those that are given."""
    return max((number for number in numbers if number is not None), default=None)


def _default(value: float | None, ready: Ready, name: str, neutral: float) -> float:
    return ready.sampling_defaults.get(name, neutral) if value is None else value


def _seed(seed: int | None) -> int:
    if seed is None or seed == -1:  # as vLLM and llama.cpp understand it
        return random.getrandbits(64)
    if not -(2**63) <= seed < 2**64:
        raise ApiError("invalid_value", "seed must be between -2**63 and 2**64 - 1.", param="seed")
    return seed % 2**64


def _logit_bias(body: GenerateBody, vocab_size: int) -> tuple[tuple[int, float], ...]:
    if not body.logit_bias:
        return ()
    check_token_ids(list(body.logit_bias), vocab_size, "logit_bias")
    return tuple(sorted(body.logit_bias.items()))


def _allowed_tokens(token_ids: list[int] | None, vocab_size: int) -> bytes:
    """A bit per token, in whole 32-bit words, as the sampler reads them."""
    if token_ids is None:
        return b""
    check_token_ids(token_ids, vocab_size, "allowed_token_ids")
    mask = bytearray(4 * -(-vocab_size // 32))
    for id in token_ids:
        mask[id >> 3] |= 1 << (id & 7)
    return bytes(mask)


def stop_strings(stop: str | list[str] | None, limits: LimitSettings, param: str = "stop") -> tuple[str, ...]:
    """Raises ApiError (400) for too many, and for empty or long ones."""
    strings = [stop] if isinstance(stop, str) else stop or []
    if len(strings) > limits.max_stop_strings:
        problem = f"{param}: at most {limits.max_stop_strings} strings are allowed."
        raise ApiError("invalid_stop", problem, param=param)
    for index, string in enumerate(strings):
        if not 0 < len(string) <= limits.max_stop_length:
            raise ApiError(
                "invalid_stop",
                f"{param}: each string must have 1 to {limits.max_stop_length} characters.",
                param=param if isinstance(stop, str) else f"{param}[{index}]",
            )
    return tuple(strings)


def _prompts(body: CompletionBody, served: ServedModel) -> tuple[Prompt, ...]:
    prompt, add_special_tokens = body.prompt, body.add_special_tokens is not False
    if body.suffix:
        if not isinstance(prompt, str):
            raise _invalid("suffix", "needs one prompt, as a text")
        if body.echo or body.truncate_prompt_tokens is not None:
            raise _invalid("suffix", "cannot be combined with echo or truncate_prompt_tokens")
    if isinstance(prompt, str):
        return (TextPrompt(text=prompt, suffix=body.suffix or "", add_special_tokens=add_special_tokens),)
    if not prompt:
        raise _invalid("prompt", "must not be empty")
    if not isinstance(prompt[0], int) and len(prompt) > served.limits.max_choices:
        raise ApiError(
            "integer_out_of_range", f"prompt: at most {served.limits.max_choices} prompts are allowed.", param="prompt"
        )
    token_ids = [item for item in prompt if isinstance(item, int)]
    if len(token_ids) == len(prompt):
        return (_token_prompt(token_ids, body, served, "prompt"),)
    texts = [item for item in prompt if isinstance(item, str)]
    if len(texts) == len(prompt):
        return tuple(TextPrompt(text=text, add_special_tokens=add_special_tokens) for text in texts)
    lists = [item for item in prompt if isinstance(item, list)]
    if len(lists) == len(prompt):
        return tuple(_token_prompt(ids, body, served, f"prompt[{index}]") for index, ids in enumerate(lists))
    raise ApiError("invalid_type", "prompt must not mix texts, token ids and lists of them.", param="prompt")


def _token_prompt(token_ids: list[int], body: CompletionBody, served: ServedModel, param: str) -> TokenPrompt:
    if len(token_ids) > served.ready.context_length and body.truncate_prompt_tokens is None:
        problem = f"The prompt has {len(token_ids)} tokens: shorten it."
        raise context_exceeded(served.ready.context_length, problem, param=param)
    check_token_ids(token_ids, served.ready.vocab_size, param)
    return TokenPrompt(token_ids=tuple(token_ids))


def _invalid(param: str, problem: str) -> ApiError:
    return ApiError("invalid_value", f"{param} {problem}.", param=param)
