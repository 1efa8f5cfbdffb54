"""A store of a few grammars on the bundled model's tokenizer, without a model, and guides of it."""

import queue
import random
from collections.abc import Iterator

import numpy as np
from llguidance import LLMatcher

from triolet.models.checkpoint.open import Checkpoint
from triolet.models.guides.grammars import GrammarStore, load_grammars
from triolet.models.guides.guide import Guide
from triolet.protocol.requests import Thinking
from triolet.protocol.sampling import Sampling
from triolet.protocol.steps import GrammarFailed, GrammarReady, PrepareGrammar, SequenceRecord

PROMPT = (5, 6, 7)
SCHEMA = {
    "type": "object",
    "properties": {
        "a_long_fixed_key": {"enum": ["red", "reddish", "green"]},
        "numbers": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        "text": {"type": "string", "maxLength": 6},
        "flag": {"type": "boolean"},
    },
    "required": ["a_long_fixed_key", "numbers", "text", "flag"],
    "additionalProperties": False,
}
JSON_TEXT = LLMatcher.grammar_from_json_schema(SCHEMA, overrides={"whitespace_flexible": False})
SIGN = LLMatcher.grammar_from_regex("yes, of course|no")


class Panic(BaseException):
    """As PyO3 raises a panic: no Exception."""


class Bench:
    """A store with some grammars, and guides of it."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.eos = checkpoint.generation.eos_token_ids
        self.stores = {jumps: load_grammars(checkpoint, jump_ahead=jumps) for jumps in (False, True)}
        self.answers: queue.SimpleQueue[GrammarReady | GrammarFailed] = queue.SimpleQueue()
        for store in self.stores.values():
            for number, text in ((1, JSON_TEXT), (2, SIGN)):
                assert self.prepare(number, text, store=store) == GrammarReady(grammar=number)

    def prepare(self, number: int, text: str, *forget: int, store: GrammarStore) -> GrammarReady | GrammarFailed:
        store.prepare(PrepareGrammar(grammar=number, text=text, forget=forget), self.answers.put)
        return self.answers.get()

    def guide(
        self,
        grammar: int,
        *answer: int,
        jumps: bool = True,
        thinking: Thinking | None = None,
        budget: int | None = None,
        sampling: Sampling | None = None,
    ) -> Guide:
        record = SequenceRecord(
            sequence=1,
            tokens=PROMPT + answer,
            prompt_tokens=len(PROMPT),
            sampling=sampling or Sampling(),
            stop_token_ids=self.eos,
            grammar=grammar,
            thinking=thinking,
            reasoning_budget=budget,
        )
        guide = self.stores[jumps].guide(record)
        assert guide is not None
        return guide

    def text(self, tokens: list[int]) -> str:
        tokenizer = self.stores[True]._tokenizer
        assert tokenizer is not None
        return tokenizer.decode_str([token for token in tokens if token not in self.eos])

    def ids(self, text: str) -> tuple[int, ...]:
        tokenizer = self.stores[True]._tokenizer
        assert tokenizer is not None
        return tuple(tokenizer.tokenize_str(text))


def allowed(guide: Guide) -> list[int] | None:
    """The tokens that may come; None: any."""
    if not guide.ready:
        guide.fill()
    if not guide.masked:
        return None
    return np.flatnonzero(np.unpackbits(guide.mask.view(np.uint8), bitorder="little")).tolist()


def drawn(guide: Guide, rng: random.Random, eos: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Rows of an answer: a token that may come, and those that follow it. Prefers the end where it is allowed."""
    for _ in range(200):
        choice = allowed(guide)
        assert choice, "no token may come"
        ends = [token for token in choice if token in eos]
        token = rng.choice(ends or choice)
        row = (token, *guide.take(token))
        assert not guide.failed
        yield row
        if row[-1] in eos:
            return
    raise AssertionError("no end")
