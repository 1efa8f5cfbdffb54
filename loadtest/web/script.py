"""The answers of the worker without a model: varying token ids that the reader of a stream can predict.

Contract: a stream's ids follow from its prompt's ids alone (`key_of`). So a client that knows the prompt knows
every token, and the text by decoding all at once. Only ids that are complete printable text by themselves are
used. Each token then has its own event, and a lost, doubled or swapped token changes the text.
"""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

_STRIDE: Final = 7919  # prime: a stream walks through all ids before it repeats one
_SPREAD: Final = 104_729  # prime: streams with neighbouring keys are far apart


def key_of(prompt: Sequence[int]) -> int:
    """The key of the stream."""
    return sum(prompt)


class Script:
    """The tokens of every stream, by its key."""

    def __init__(self, model: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self.vocab_size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self._lengths: dict[int, int] = {}
        self._ids = self._speakable()

    def _speakable(self) -> tuple[int, ...]:
        special = {id for id, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
        for id in range(self.vocab_size):
            text = "" if id in special else self._tokenizer.decode([id])
            if text.strip() and text.isprintable() and "\ufffd" not in text:
                self._lengths[id] = len(text)
        return tuple(self._lengths)

    def tokens(self, key: int, first: int, count: int) -> tuple[int, ...]:
        """Tokens `first` to `first + count` of a stream."""
        ids, start = self._ids, key * _SPREAD
        if count == 1:
            return (ids[(start + first * _STRIDE) % len(ids)],)
        return tuple([ids[(start + place * _STRIDE) % len(ids)] for place in range(first, first + count)])

    def text(self, key: int, count: int) -> str:
        """The text a client must have after this many tokens: decoded at once, not piece by piece as a server does."""
        return self._tokenizer.decode(self.tokens(key, 0, count), skip_special_tokens=False)

    def text_lengths(self, key: int, count: int) -> list[int]:
        """Length of the text after each token, to find which tokens a text of a given length contains."""
        return list(accumulate(self._lengths[id] for id in self.tokens(key, 0, count)))
