"""The sampling fields of a body, resolved against the model's own defaults (generation_config.json)."""

import random

from ...protocol.errors import ApiError
from ...protocol.openai_requests import GenerateBody
from ...protocol.sampling import Sampling
from ...protocol.steps import Ready


def sampling_of(body: GenerateBody, ready: Ready, *, logprobs: int | None, prompt_logprobs: int | None) -> Sampling:
    """Every parameter resolved and in range; raises ApiError where a bound depends on the model."""
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


def check_token_ids(token_ids: list[int], vocab_size: int, param: str) -> None:
    """Raises ApiError for an id that the model does not have: it would be read beyond the end of a table."""
    if token_ids and max(token_ids) >= vocab_size:
        raise ApiError("invalid_token_id", f"{param}: token ids must be below {vocab_size}.", param=param)


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
