"""Beam search in vLLM's and older OpenAI parameters: `use_beam_search` with `n` or `best_of` beams."""

from typing import Any, Final

from msgspec import structs

from ...protocol.errors import ApiError
from ...protocol.openai_requests import GenerateBody
from ...protocol.requests import BeamRule, Generate
from ...protocol.sampling import MAX_TOP_LOGPROBS, Sampling

MAX_BEAMS: Final = MAX_TOP_LOGPROBS // 2  # each is continued by twice as many tokens, so that half of them may stop

# What changes the distribution or how it is drawn from, and the values that do not. A search has no use for a seed.
_NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {  # Any: JSON values
    "temperature": (0, 1),  # older clients of vLLM had to send 0
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "allowed_token_ids": (),
    "bad_words": ([],),
}


def with_beams(body: GenerateBody, request: Generate) -> Generate:
    """The request as a search, if the body asks for one. Raises ApiError (400) for what a search cannot do."""
    if not body.use_beam_search:
        for name, asks in (
            ("length_penalty", body.length_penalty not in (None, 1)),
            ("early_stopping", body.early_stopping),
        ):
            if asks:
                raise ApiError("invalid_value", f"{name} needs use_beam_search: true.", param=name)
        return request
    if request.n > MAX_BEAMS:
        param = "n" if body.n == request.n else "best_of"
        raise ApiError("integer_out_of_range", f"{param}: at most {MAX_BEAMS} beams are searched with.", param=param)
    for name, neutral in _NEUTRAL.items():
        value = getattr(body, name)
        if value is not None and value not in neutral:
            raise _contradiction(name)
    if request.grammar_source is not None:
        raise _contradiction(request.grammar_source.param)
    if request.tool_use is not None:
        raise _contradiction("tools")
    if request.reasoning_budget:
        raise _contradiction("thinking_token_budget")
    if request.sampling.prompt_logprobs is not None:
        raise _contradiction("echo" if request.prompt_logprobs is None else "prompt_logprobs")
    return structs.replace(
        request,
        beams=BeamRule(
            answers=body.n or 1,
            length_penalty=1.0 if body.length_penalty is None else body.length_penalty,
            early_stopping=body.early_stopping or False,
        ),
        reasoning_budget=None,  # of 0, which is left, the chat template alone tells the model
        # The model's defaults count for drawing only.
        sampling=Sampling(temperature=0.0, min_tokens=body.min_tokens or 0, logprobs=request.sampling.logprobs),
    )


def _contradiction(param: str) -> ApiError:
    return ApiError("invalid_value", f"{param} cannot be combined with use_beam_search; leave it out.", param=param)
