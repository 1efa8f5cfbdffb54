"""Log probabilities in the two forms that OpenAI's clients know.

A token of a byte-level vocabulary can be part of a character: `bytes` is exact, its text shows U+FFFD. A stop token is
listed as in vLLM: so an empty answer has the log probabilities of its end. All `bytes` together are still the answer.
"""

from collections.abc import Iterable

from ...protocol.events import TokenLogprob
from ...protocol.openai_responses import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    TokenLogprobBody,
    TopLogprobBody,
)

LOWEST = -9999.0  # JSON has no infinity; vLLM sends this for a token that cannot be drawn


def chat_logprobs(tokens: Iterable[TokenLogprob]) -> ChatLogprobs:
    return ChatLogprobs(
        content=[
            TokenLogprobBody(
                token=_text(token.text),
                logprob=_finite(token.logprob),
                bytes=None if token.stops else list(token.text),
                top_logprobs=[
                    TopLogprobBody(token=_text(top.text), logprob=_finite(top.logprob), bytes=list(top.text))
                    for top in token.top
                ],
            )
            for token in tokens
        ]
    )


def completion_logprobs(tokens: Iterable[TokenLogprob]) -> CompletionLogprobs:
    """`top_logprobs` holds the most probable tokens and the chosen one, as in OpenAI's API."""
    shape = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
    for token in tokens:
        text = _text(token.text)
        shape.tokens.append(text)
        shape.text_offset.append(token.text_offset)
        if token.logprob is None:
            shape.token_logprobs.append(None)
            shape.top_logprobs.append(None)
            continue
        alternatives: dict[str, float] = {}
        for top in token.top:
            alternatives.setdefault(_text(top.text), _finite(top.logprob))
        alternatives.setdefault(text, _finite(token.logprob))
        shape.token_logprobs.append(_finite(token.logprob))
        shape.top_logprobs.append(alternatives)
    return shape


def prompt_logprobs(tokens: Iterable[TokenLogprob]) -> list[dict[int, PromptLogprob] | None]:
    """As in vLLM: by token id, the prompt's own token first, then the most probable ones. Null for the first token."""
    return [None if token.logprob is None else _alternatives(token) for token in tokens]


def _alternatives(token: TokenLogprob) -> dict[int, PromptLogprob]:
    own = PromptLogprob(logprob=_finite(token.logprob), rank=token.rank, decoded_token=_text(token.text))
    found = {token.token_id: own}
    for rank, top in enumerate(token.top, 1):
        found.setdefault(
            top.token_id, PromptLogprob(logprob=_finite(top.logprob), rank=rank, decoded_token=_text(top.text))
        )
    return found


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _finite(logprob: float | None) -> float:
    return LOWEST if logprob is None or not logprob >= LOWEST else min(logprob, 0.0)
