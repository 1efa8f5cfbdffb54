"""The bytes of every token id, read from a tokenizer without decoding.

Two kinds of vocabulary write bytes as text. Byte-level BPE (GPT-2, Llama 3, Qwen) has one printable character per byte;
SentencePiece (Llama 2, Mistral) writes a space as `▁` and a lone byte as `<0x0A>`. Other vocabularies have no byte form
(`spells_bytes` is false); the single token's text is used instead.
"""

import json
import re
from contextlib import suppress
from typing import Any, Final

from tokenizers import Tokenizer

from ...models.checkpoint.text.byte_level import byte_of_character

_BYTE_PIECE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_METASPACE: Final = "\N{LOWER ONE EIGHTH BLOCK}"


class _WholeTexts(dict[int, str | None]):
    """Filled on demand, so that the usual look-up of a token costs one indexing."""

    def __init__(self, vocabulary: "Vocabulary") -> None:
        self._vocabulary = vocabulary

    def __missing__(self, id: int) -> str | None:
        text: str | None = None
        if id not in self._vocabulary.special:
            with suppress(UnicodeDecodeError):
                text = self._vocabulary.piece_bytes(id).decode()
        self[id] = text
        return text


class Vocabulary:
    """Token id -> bytes, and the tokens that the tokenizer treats specially."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # The library tells a decoder's parts in its serialisation alone: untyped JSON.
        decoder: Any = json.loads(tokenizer.decoder.__getstate__()) if tokenizer.decoder else {}
        parts = {part.get("type"): part for part in (decoder, *decoder.get("decoders", ()))}
        self._byte_level = parts.keys() == {"ByteLevel"}
        self._metaspace = "ByteFallback" in parts or "Metaspace" in parts
        self.spells_bytes: bool = self._byte_level or self._metaspace
        # SentencePiece puts a space before every text, and removes it again when it decodes a whole text.
        prepends = parts.get("Metaspace", {}).get("prepend_scheme", "never") != "never"
        self.strips_first_space: bool = "Strip" in parts or prepends
        self._bytes: dict[int, bytes] = {}
        # The text of a token whose bytes are whole characters; None for parts of characters and for special tokens.
        self.whole_texts: Final = _WholeTexts(self)
        added = tokenizer.get_added_tokens_decoder()
        self.added: dict[int, str] = {id: token.content for id, token in added.items()}
        self.special: frozenset[int] = frozenset(id for id, token in added.items() if token.special)
        pieces = tokenizer.get_vocab(with_added_tokens=True)
        self.size: int = 1 + max(pieces.values(), default=-1)
        # One character of a byte-level piece is one byte; of any other piece at most four.
        width = 1 if self._byte_level else 4
        longest_added = max((len(content.encode()) for content in self.added.values()), default=1)
        self.max_token_bytes: int = max(longest_added, width * max(map(len, pieces), default=1))

    def piece_bytes(self, id: int) -> bytes:
        """The bytes that the token adds to the text; empty for an unknown id."""
        found = self._bytes.get(id)
        if found is None:
            found = self._bytes[id] = self._read(id)
        return found

    def _read(self, id: int) -> bytes:
        piece = self._tokenizer.id_to_token(id)
        if piece is None:
            return b""
        if self._byte_level:
            table = byte_of_character()
            if all(character in table for character in piece):
                return bytes(table[character] for character in piece)
            return piece.encode()
        if id in self.added:
            return piece.encode()
        if self._metaspace:
            lone = _BYTE_PIECE.fullmatch(piece)
            return bytes([int(lone[1], 16)]) if lone else piece.replace(_METASPACE, " ").encode()
        return self._tokenizer.decode([id], skip_special_tokens=False).encode()
