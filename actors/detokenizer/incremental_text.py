"""Decodes token ids one at a time, with the same text as decoding all of them at once.

A character may span several tokens, so a decoder holds back bytes that are not a whole character yet; `finish` releases
them as U+FFFD. If a prompt ends inside a character, its last ids are fed first and their text is dropped.

`ByteText` is exact and has a constant cost per token. It fits most vocabularies: those that spell bytes, since UTF-8
marks where a character ends. `WindowText` fits all others by decoding a short window of ids twice.
"""

import codecs
from collections.abc import Sequence
from typing import Final, Protocol

from tokenizers import Tokenizer

from ..tokenizer.vocabulary import Vocabulary

_CONTEXT_TOKENS: Final = 4  # a UTF-8 character has at most four bytes, so at most four tokens can share one
_WINDOW_TOKENS: Final = 8  # of the prompt: enough to decide about a space before the first new token
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


class IncrementalText(Protocol):
    """A decoder of one choice."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text that these tokens complete."""
        ...

    def finish(self) -> str:
        """The held-back text as it is, at the end of the stream."""
        ...


class ByteText:
    """UTF-8 from the bytes that a vocabulary spells. Most tokens are whole characters and need only a look-up."""

    __slots__ = ("_between_characters", "_decoder", "_skipped", "_strip", "_vocabulary", "_whole_texts")

    def __init__(self, vocabulary: Vocabulary, context: tuple[int, ...] = (), *, skip_special: bool = True) -> None:
        self._vocabulary = vocabulary
        self._skipped = vocabulary.special if skip_special else frozenset[int]()
        self._whole_texts = vocabulary.whole_texts
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._between_characters = False  # nothing is held back, and there is no first space to strip
        self._strip = vocabulary.strips_first_space and not context
        self.decode(context[-_CONTEXT_TOKENS:])

    def decode(self, ids: Sequence[int]) -> str:
        if self._between_characters:
            if len(ids) == 1 and (text := self._whole_texts[ids[0]]) is not None:
                return text
            texts = [text for id in ids if (text := self._whole_texts[id]) is not None]
            if len(texts) == len(ids):
                return "".join(texts)
        return "".join(map(self._decode_one, ids))

    def _decode_one(self, id: int) -> str:
        if id in self._skipped:
            return ""
        text = self._decoder.decode(self._vocabulary.piece_bytes(id))
        if self._strip and text:
            self._strip = False
            text = text.removeprefix(" ")
        held_back, _ = self._decoder.getstate()
        self._between_characters = not held_back and not self._strip
        return text

    def finish(self) -> str:
        return self._decoder.decode(b"", True)


class WindowText:
    """Text of any tokenizer: decode(window + token) minus decode(window).

    The window starts where the last but one piece of text ended. So it begins between two characters, and still has the
    token that decides about a space before the next one.
    """

    def __init__(self, tokenizer: Tokenizer, context: tuple[int, ...] = (), *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._window: list[int] = list(context[-_WINDOW_TOKENS:])
        self._boundary = len(self._window)  # the text of all ids before this index was given out
        self._known = _whole(self._whole_window())  # the part of the window's text that was given out

    def _whole_window(self) -> str:
        return self._tokenizer.decode(self._window, skip_special_tokens=self._skip_special)

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(self._decode_one, ids))

    def _decode_one(self, id: int) -> str:
        self._window.append(id)
        text = self._whole_window()
        if _whole(text) != text or len(text) <= len(self._known):
            return ""
        return self._release(text)

    def finish(self) -> str:
        return self._release(self._whole_window())

    def _release(self, text: str) -> str:
        new = text[len(self._known) :]
        del self._window[: self._boundary]
        self._boundary = len(self._window)
        self._known = self._whole_window()
        return new


def _whole(text: str) -> str:
    """Text without one to three trailing replacement characters: they may begin a real character. Four cannot."""
    stripped = text.rstrip(_REPLACEMENT)
    return stripped if len(text) - len(stripped) < 4 else text


def incremental_text(
    tokenizer: Tokenizer, vocabulary: Vocabulary, context: tuple[int, ...], *, skip_special: bool
) -> IncrementalText:
    """The decoder that fits the vocabulary."""
    if vocabulary.spells_bytes:
        return ByteText(vocabulary, context, skip_special=skip_special)
    return WindowText(tokenizer, context, skip_special=skip_special)
