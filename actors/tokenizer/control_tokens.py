"""What a client writes stays text: `<|im_end|>` in a message does not become the token that ends a turn.

A chat template joins the client's strings and the model's control tokens to one text, in which the tokenizer could not
tell them apart. So before the template renders, each control token in the client's strings is broken by a mark, digits
that nobody can guess. After rendering, the sections with marks lose them and are tokenised without looking for control
tokens. A conversation that has none of them in its strings is tokenised exactly as if this module did not exist.

Control tokens are the tokenizer's special tokens, and others such as `<tool_call>` that the template writes itself. In
turns of the assistant only special tokens are broken: it writes the others, and templates look for them there.

Two kinds are not seen: a token that only the tokenizer's normaliser makes out of the text, and one that the template
joins from two strings of the client.
"""

import re
import secrets
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, Final, cast

from tokenizers import Tokenizer

_MARK_DIGITS: Final = 24  # digits pass through upper, title and tojson as they are
_BRACKETED: Final = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")
# Tokenising a piece without the control tokens holds the GIL, about 10 ms for this many characters. A piece ends before
# white space if possible, where tokens end anyway.
_PIECE: Final = re.compile(r"(?s).{1,32768}(?=[\s▁]|\Z)|.{1,32768}")


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Finds what the tokenizer finds: the leftmost token, and of these the longest."""
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


class ControlTokens:
    """A tokenizer's control tokens, and how text around them is tokenised."""

    def __init__(self, tokenizer: Tokenizer, template: str) -> None:
        """`template`: the source of the chat template."""
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder().values()
        # A mark would hold a token of digits again, without end.
        special = [t.content for t in added if t.special and len(t.content) > 1 and not t.content.isdecimal()]
        texts = [token.content for token in added if len(token.content) > 1]
        written = [text for text in texts if text in template and _BRACKETED.fullmatch(text)]
        self.special = _any_of(special)
        self.control = _any_of({*special, *written})
        self._ids: dict[int | None, bytes] = {
            tokenizer.token_to_id(text): text.encode() for text in (*special, *written)
        }
        # These the tokenizer finds in a text that is normalised already, so they do not cut it.
        self._inner = {t.content for t in added if t.normalized and not t.special} - {*written}
        self._outer = [text for text in texts if text not in self._inner]

    def encode(self, text: str, mark: str, most: int) -> list[int]:
        """The ids of a rendered text with marks, without the tokenizer's usual prefix.

        Stops when there are more than `most`: a text of control tokens takes eight times as long as another.
        """
        ids: list[int] = []
        done = 0
        for start, end in self._sections(text):
            if mark in text[start:end]:
                ids += self._encode_usually(text[done:start])
                normalizer, plain = self._tokenizer.normalizer, text[start:end].replace(mark, "")
                for piece in _PIECE.findall(plain if normalizer is None else normalizer.normalize_str(plain)):
                    ids += self._encode_plainly(piece)
                    if len(ids) > most:
                        return ids
                done = end
        return ids + self._encode_usually(text[done:])

    def _sections(self, text: str) -> Iterator[tuple[int, int]]:
        """Where the tokenizer finds no added token: the parts that it splits and merges."""
        start = 0
        for found in self._every.finditer(text):
            yield start, found.start()
            start = found.end()
        yield start, len(text)

    @cached_property
    def _every(self) -> re.Pattern[str]:
        # Thousands in some tokenizers, and seldom needed. A mark may hold a token of digits by chance.
        return _any_of(text for text in self._outer if not text.isdecimal())

    @cached_property
    def _found_within(self) -> re.Pattern[str]:
        return re.compile(f"({_any_of(self._inner).pattern})")

    def _encode_usually(self, text: str) -> list[int]:
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids if text else []

    def _encode_plainly(self, text: str) -> list[int]:
        """What the tokenizer does with a normalised section: split, merge."""
        ids: list[int] = []
        for place, part in enumerate(self._found_within.split(text)):
            if place % 2:
                found = self._tokenizer.token_to_id(part)
                ids += [] if found is None else [found]
            elif part:
                ids += self._merged(part)
        return ids

    def _merged(self, text: str) -> list[int]:
        """Some vocabularies hold control tokens among all others; a text that equals one is spelt by its characters."""
        model, splitter = self._tokenizer.model, self._tokenizer.pre_tokenizer
        pieces = [text] if splitter is None else [piece for piece, _ in splitter.pre_tokenize_str(text)]
        ids: list[int] = []
        for piece in pieces:
            for token in model.tokenize(piece):
                control, (begin, end) = self._ids.get(token.id), token.offsets  # of bytes
                if control is None or piece.encode()[begin:end] != control:
                    ids.append(token.id)
                else:
                    ids += [part.id for character in token.value for part in model.tokenize(character)]
        return ids


class Marks:
    """Breaks the control tokens of one request. `mark` is empty as long as there were none."""

    def __init__(self, tokens: ControlTokens) -> None:
        self._tokens = tokens
        self.mark = ""

    def broken(self, value: object, *, by_model: bool = False) -> Any:  # Any: of the same type as `value`
        """The same JSON value with all control tokens in its strings broken."""
        if isinstance(value, str):
            pattern = self._tokens.special if by_model else self._tokens.control
            while (text := pattern.sub(self._break, value)) != value:  # a broken token may lay another one bare
                value = text
            return value
        if isinstance(value, dict):
            items = cast("dict[object, object]", value).items()
            return {self.broken(key, by_model=by_model): self.broken(item, by_model=by_model) for key, item in items}
        if isinstance(value, (list, tuple)):
            return [self.broken(item, by_model=by_model) for item in cast("list[object]", value)]
        return value

    def _break(self, token: re.Match[str]) -> str:
        if not self.mark:
            self.mark = str(secrets.randbelow(9 * 10 ** (_MARK_DIGITS - 1)) + 10 ** (_MARK_DIGITS - 1))
        return token[0][0] + self.mark + token[0][1:]
