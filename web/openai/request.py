"""Turns a decoded body into the engine's request, for HTTP and WebSocket.

`generate_from_chat` and `generate_from_completion` take a body and return a `Generate`, or raise an ApiError that names
the field. The engine checks later what needs the tokenizer: lengths, the chat template.
"""

import random
from typing import NamedTuple

from msgspec import UNSET

from ...protocol.errors import ApiError
from ...protocol.openai_messages import AssistantMessage, DeveloperMessage, MessageBody, TextContent, ToolMessage
from ...protocol.openai_requests import ChatBody, CompletionBody, GenerateBody
from ...protocol.requests import ChatMessage, ChatPrompt, Generate, Prompt, TextPrompt, TokenPrompt
from ...protocol.sampling import Sampling
from ...protocol.settings import LimitSettings
from ...protocol.steps import Ready
from .decode import refuse_unsupported

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions; chat answers may fill the context


class ServedModel(NamedTuple):
    """The model and the limits that requests are checked against."""

    model: str
    ready: Ready
    limits: LimitSettings


class Origin(NamedTuple):
    """Where a request comes from, and its ids."""

    id: str
    tenant: str
    arrival_time: float
    name: str = ""
    traceparent: str = ""


def generate_from_chat(body: ChatBody, served: ServedModel, origin: Origin) -> Generate:
    """Raises ApiError (400, 404)."""
    refuse_unsupported(body)
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise _invalid("max_completion_tokens", "differs from max_tokens; send one of them")
    if body.top_logprobs and not body.logprobs:
        raise _invalid("top_logprobs", "needs logprobs: true")
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    return _generate(
        body,
        served,
        origin,
        prompts=(chat_prompt(body.messages),),
        max_tokens=max_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )


def generate_from_completion(body: CompletionBody, served: ServedModel, origin: Origin) -> Generate:
    """Raises ApiError (400, 404)."""
    refuse_unsupported(body)
    return _generate(
        body,
        served,
        origin,
        prompts=_prompts(body.prompt, served),
        max_tokens=DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens,
        logprobs=body.logprobs,
        echo=bool(body.echo),
    )


def check_model(model: str | None, served_model: str) -> None:
    if model not in (None, served_model):
        raise ApiError("model_not_found", f"There is no model {model!r} here, only {served_model!r}.", param="model")


def check_token_ids(token_ids: list[int], vocab_size: int, param: str) -> None:
    """Raises ApiError for an unknown token id: using it would read past the end of a table."""
    if token_ids and max(token_ids) >= vocab_size:
        raise ApiError("invalid_token_id", f"{param}: token ids must be below {vocab_size}.", param=param)


def chat_prompt(messages: list[MessageBody], *, add_generation_prompt: bool = True) -> ChatPrompt:
    turns = tuple(_turn(message, index) for index, message in enumerate(messages))
    return ChatPrompt(messages=turns, add_generation_prompt=add_generation_prompt)


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
    check_model(body.model, served.model)
    n = 1 if body.n is None else body.n
    if body.best_of not in (None, n):
        raise ApiError("unsupported_parameter", "best_of is not supported; use n.", param="best_of")
    if len(prompts) * n > served.limits.max_choices:
        param = "n" if n > 1 else "prompt"
        raise ApiError(
            "integer_out_of_range",
            f"{len(prompts)} prompts with n = {n}: at most {served.limits.max_choices} choices are allowed.",
            param=param,
        )
    if body.stream_options is not None and not body.stream:
        raise ApiError("invalid_type", "stream_options needs stream: true.", param="stream_options")
    if body.min_tokens is not None and max_tokens is not None and body.min_tokens > max_tokens:
        raise _invalid("min_tokens", f"is above max_tokens ({max_tokens})")
    stop_token_ids = body.stop_token_ids or []
    check_token_ids(stop_token_ids, served.ready.vocab_size, "stop_token_ids")
    return Generate(
        id=origin.id,
        name=origin.name,
        traceparent=origin.traceparent,
        model=served.model,
        prompts=prompts,
        sampling=_sampling(body, served.ready, logprobs=logprobs, prompt_logprobs=logprobs if echo else None),
        n=n,
        max_tokens=max_tokens,
        stop=_stop(body.stop, served.limits),
        stop_token_ids=tuple(stop_token_ids),
        ignore_eos=bool(body.ignore_eos),
        include_stop=bool(body.include_stop_str_in_output),
        skip_special_tokens=body.skip_special_tokens is not False,
        echo=echo,
        priority=body.priority or 0,
        tenant=origin.tenant,
        cache_salt=body.cache_salt or "",
        determinism=body.determinism or "default",
        arrival_time=origin.arrival_time,
    )


def _sampling(body: GenerateBody, ready: Ready, *, logprobs: int | None, prompt_logprobs: int | None) -> Sampling:
    """Fills in missing parameters from the model's defaults (generation_config.json)."""
    top_k = _default(body.top_k, ready, "top_k", 0)
    return Sampling(
        repetition_penalty=_default(body.repetition_penalty, ready, "repetition_penalty", 1.0),
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=_logit_bias(body, ready.vocab_size),
        min_tokens=body.min_tokens or 0,
        temperature=_default(body.temperature, ready, "temperature", 1.0),
        top_k=0 if top_k == -1 else int(top_k),
        top_p=_default(body.top_p, ready, "top_p", 1.0),
        min_p=_default(body.min_p, ready, "min_p", 0.0),
        seed=_seed(body.seed),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def _default(value: float | None, ready: Ready, name: str, neutral: float) -> float:
    return ready.sampling_defaults.get(name, neutral) if value is None else value


def _seed(seed: int | None) -> int:
    if seed is None:
        return random.getrandbits(64)
    if not 0 <= seed < 2**64:
        raise ApiError("invalid_value", "seed must be between 0 and 2**64 - 1.", param="seed")
    return seed


def _logit_bias(body: GenerateBody, vocab_size: int) -> tuple[tuple[int, float], ...]:
    if not body.logit_bias:
        return ()
    check_token_ids(list(body.logit_bias), vocab_size, "logit_bias")
    return tuple(sorted(body.logit_bias.items()))


def _stop(stop: str | list[str] | None, limits: LimitSettings) -> tuple[str, ...]:
    strings = [stop] if isinstance(stop, str) else stop or []
    if len(strings) > limits.max_stop_strings:
        raise ApiError("invalid_stop", f"stop: at most {limits.max_stop_strings} strings are allowed.", param="stop")
    for index, string in enumerate(strings):
        if not 0 < len(string) <= limits.max_stop_length:
            raise ApiError(
                "invalid_stop",
                f"stop: each string must have 1 to {limits.max_stop_length} characters.",
                param="stop" if isinstance(stop, str) else f"stop[{index}]",
            )
    return tuple(strings)


def _turn(message: MessageBody, index: int) -> ChatMessage:
    role = "system" if isinstance(message, DeveloperMessage) else str(message.__struct_config__.tag)
    calls = message.tool_calls if isinstance(message, AssistantMessage) else None
    if isinstance(message, AssistantMessage) and message.content is None and not calls:
        raise ApiError(
            "invalid_messages",
            f"messages[{index}].content may be null only beside tool_calls.",
            param=f"messages[{index}].content",
        )
    return ChatMessage(
        role=role,
        content=None if message.content is None else _text(message.content),
        name=UNSET if message.name is None else message.name,
        tool_calls=tuple(calls) if calls else UNSET,
        tool_call_id=message.tool_call_id if isinstance(message, ToolMessage) else UNSET,
    )


def _text(content: TextContent) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


def _prompts(prompt: str | list[int | str | list[int]], served: ServedModel) -> tuple[Prompt, ...]:
    if isinstance(prompt, str):
        return (TextPrompt(text=prompt),)
    if not prompt:
        raise _invalid("prompt", "must not be empty")
    if not isinstance(prompt[0], int) and len(prompt) > served.limits.max_choices:
        raise ApiError(
            "integer_out_of_range", f"prompt: at most {served.limits.max_choices} prompts are allowed.", param="prompt"
        )
    token_ids = [item for item in prompt if isinstance(item, int)]
    if len(token_ids) == len(prompt):
        return (_token_prompt(token_ids, served, "prompt"),)
    texts = [item for item in prompt if isinstance(item, str)]
    if len(texts) == len(prompt):
        return tuple(TextPrompt(text=text) for text in texts)
    lists = [item for item in prompt if isinstance(item, list)]
    if len(lists) == len(prompt):
        return tuple(_token_prompt(ids, served, f"prompt[{index}]") for index, ids in enumerate(lists))
    raise ApiError("invalid_type", "prompt must not mix texts, token ids and lists of them.", param="prompt")


def _token_prompt(token_ids: list[int], served: ServedModel, param: str) -> TokenPrompt:
    if len(token_ids) > served.ready.context_length:
        raise ApiError(
            "context_length_exceeded",
            f"{param} has {len(token_ids)} tokens; the context length is {served.ready.context_length}.",
            param=param,
        )
    check_token_ids(token_ids, served.ready.vocab_size, param)
    return TokenPrompt(token_ids=tuple(token_ids))


def _invalid(param: str, problem: str) -> ApiError:
    return ApiError("invalid_value", f"{param} {problem}.", param=param)
