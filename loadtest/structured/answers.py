"""Answers to a schema: drawn at random from the masks of its grammar, or written by a server; and whether they fit."""

import json
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any, Final, Literal
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
from jsonschema import Draft202012Validator, FormatChecker
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from .schemas import Schema

Outcome = Literal["valid", "invalid", "cut", "refused", "failed"]
MAX_TOKENS: Final = 400
ANSWER_SECONDS: Final = 300.0
_ENDS: Final = (b'"', b"]", b"}", b",")  # a random walk through strings would hardly ever leave them


def fits(answer: str, schema: Schema) -> bool:
    try:
        value = json.loads(answer)
    except ValueError:
        return False
    validator: Any = Draft202012Validator(schema, format_checker=FormatChecker())  # Any: it leaves types open
    return bool(validator.is_valid(value))


def drawn(grammar: str, tokenizer: LLTokenizer, random: Random, max_tokens: int = MAX_TOKENS) -> str | None:
    """A text that the grammar allows, token by token; None if it did not end in time. Raises ValueError."""
    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    tokens: list[int] = []
    ends, closing = _marked(tokenizer)
    for _ in range(max_tokens):
        allowed = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        allowed = allowed[: tokenizer.vocab_size]
        if (allowed & ends).any() and (matcher.is_stopped() or random.random() < 0.5):
            return tokenizer.decode_bytes(tokens).decode()
        texts = allowed & ~ends & 1
        leaving = texts & closing
        choices = np.flatnonzero(leaving if leaving.any() and random.random() < 0.3 else texts)
        tokens.append(int(choices[random.randrange(len(choices))]))
        if not matcher.consume_token(tokens[-1]):
            raise ValueError(matcher.get_error())
    return None


@cache
def _marked(tokenizer: LLTokenizer) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """By token: 1 for those that end an answer, and 1 for those that begin with one of `_ENDS`."""
    ends, closing = np.zeros((2, tokenizer.vocab_size), np.uint8)
    ends[tokenizer.eos_tokens] = 1
    for token in range(tokenizer.vocab_size):
        closing[token] = tokenizer.decode_bytes([token])[:1] in _ENDS
    return ends, closing


def ask(url: str, schema: Schema, seed: int) -> tuple[Outcome, str]:
    """The outcome of one chat request with this schema, and the answer or the error."""
    format = {"type": "json_schema", "json_schema": {"name": "random", "schema": schema, "strict": True}}
    body: dict[str, Any] = {  # Any: JSON
        "messages": [{"role": "user", "content": "Write an example as JSON."}],
        "response_format": format,
        "max_tokens": MAX_TOKENS,
        "seed": seed,
    }
    request = Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=ANSWER_SECONDS) as reply:
            (choice,) = json.load(reply)["choices"]
    except HTTPError as error:
        return "refused" if error.code == 400 else "failed", error.read().decode()
    text: str = choice["message"]["content"]
    if choice["finish_reason"] == "length":
        return "cut", text
    return "valid" if fits(text, schema) else "invalid", text


def outcome_of(draw: Callable[[], str | None], schema: Schema) -> tuple[Outcome, str]:
    """The same for an answer that is drawn here."""
    try:
        text = draw()
    except ValueError as error:
        return "failed", str(error)
    if text is None:
        return "cut", ""
    return "valid" if fits(text, schema) else "invalid", text
