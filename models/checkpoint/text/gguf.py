"""The tokenizer and the chat templates that a GGUF file has among its metadata.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, section Tokenizer. What a file leaves out is as
llama.cpp has it (src/llama-vocab.cpp), but the expressions that cut texts are those of the models' own tokenizers.
"""

from collections.abc import Mapping
from typing import Final, TypeVar

from msgspec import ValidationError, convert
from tokenizers import AddedToken, Tokenizer

from ...errors import CheckpointError, UnsupportedModel
from .added import MAX_TOKENS, add_tokens, surround
from .byte_level import byte_level_tokenizer
from .merges import Merge
from .sentencepiece import PieceKind, PieceTable, tokenizer_of_pieces
from .splits import SPLITS

Value = TypeVar("Value")
_KEY: Final = "tokenizer.ggml."
_TEMPLATE: Final = "tokenizer.chat_template"
_NAMED: Final = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
# Files written from a tokenizer without unknown, beginning or end name none of them.
_SENTENCEPIECE_IDS: Final = {"unk_token": 0, "bos_token": 1, "eos_token": 2}


class GgufText:
    """What the metadata says about texts. Raises CheckpointError; UnsupportedModel for kinds of vocabularies."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata
        self.tokens = self._get("tokens", list[str])
        if not 0 < len(self.tokens) <= MAX_TOKENS:
            raise CheckpointError(f"{_KEY}tokens", len(self.tokens), f"tokens; expected 1 to {MAX_TOKENS}")
        self._kinds = self._get("token_type", list[int], [int(PieceKind.NORMAL)] * len(self.tokens))
        if len(self._kinds) != len(self.tokens):
            sizes = f"types of {len(self.tokens)} tokens"
            raise CheckpointError(f"{_KEY}token_type", len(self._kinds), sizes)
        self._model = self._get("model", str)

    def _get(self, key: str, kind: type[Value], default: Value | None = None) -> Value:
        return _read(self._metadata, _KEY + key, kind, default)

    def tokenizer(self) -> Tokenizer:
        match self._model:
            case "gpt2":
                tokenizer, adds_bos = self._byte_level()
            case "llama" | "t5" | "gemma4":
                tokenizer, adds_bos = self._sentencepiece(), self._model != "t5"
            case _:
                remedy = "vocabularies gpt2, llama, gemma4 and t5 are read; use the safetensors checkpoint"
                raise UnsupportedModel(f"{_KEY}model", self._model, remedy)
        named = self.special_tokens()
        bos, eos = named.get("bos_token"), named.get("eos_token")
        before = bos if self._get("add_bos_token", bool, adds_bos) else None
        behind = eos if self._get("add_eos_token", bool, self._model == "t5") else None
        surround(tokenizer, before, behind, f"{_KEY}tokens")
        return tokenizer

    def special_tokens(self) -> dict[str, str]:
        """As chat templates name them: `bos_token`, `eos_token`, …"""
        defaults = _SENTENCEPIECE_IDS if self._model == "llama" else {}
        found: dict[str, str] = {}
        for name, key in _NAMED.items():
            id = self._get(key, int, defaults.get(name, -1))
            if not -1 <= id < len(self.tokens):
                raise CheckpointError(_KEY + key, id, f"is the id of no token: there are {len(self.tokens)}")
            if id >= 0:
                found[name] = self.tokens[id]
        return found

    def templates(self) -> dict[str, str]:
        """Sources of chat templates by name; the one without a name is "default"."""
        named = {key.removeprefix(_TEMPLATE + "."): key for key in self._metadata if key.startswith(_TEMPLATE + ".")}
        keys = {"default": _TEMPLATE} if _TEMPLATE in self._metadata else {}
        return {name: _read(self._metadata, key, str) for name, key in (named | keys).items()}

    def _byte_level(self) -> tuple[Tokenizer, bool]:
        name = self._get("pre", str, "")
        split = SPLITS.get(name)
        if split is None:
            remedy = f"how its texts are cut is known for {', '.join(sorted(SPLITS))}; use the safetensors checkpoint"
            raise UnsupportedModel(f"{_KEY}pre", name, remedy)
        vocabulary = {text: id for id, text in enumerate(self.tokens)}
        if len(vocabulary) != len(self.tokens):
            raise CheckpointError(f"{_KEY}tokens", len(self.tokens), "tokens, and two are the same")
        tokenizer = byte_level_tokenizer(
            vocabulary, self._merges(), split.patterns, whole=split.whole, nfc=split.nfc, file=f"{_KEY}tokens"
        )
        kinds = {PieceKind.CONTROL: True, PieceKind.UNKNOWN: True, PieceKind.USER_DEFINED: False}
        added = {
            id: AddedToken(self.tokens[id], special=kinds[PieceKind(kind)], normalized=False)
            for id, kind in enumerate(self._kinds)
            if kind in kinds
        }
        add_tokens(tokenizer, added, f"{_KEY}tokens")
        return tokenizer, split.adds_bos

    def _sentencepiece(self) -> Tokenizer:
        unigram, raw = self._model == "t5", self._model == "gemma4"
        charsmap = self._get("precompiled_charsmap", list[int], [])
        pieces = PieceTable(
            texts=self.tokens,
            scores=[0.0] * len(self.tokens) if raw else self._get("scores", list[float]),
            kinds=self._kinds,
            algorithm="unigram" if unigram else "bpe",
            merges=self._merges() if raw else None,
            charsmap=bytes(value & 0xFF for value in charsmap) if unigram else b"",
            adds_prefix=self._get("add_space_prefix", bool, not raw),
            removes_extra_spaces=self._get("remove_extra_whitespaces", bool, False) and unigram,
            byte_fallback=PieceKind.BYTE in self._kinds,
            file=f"{_KEY}tokens",
        )
        return tokenizer_of_pieces(pieces)

    def _merges(self) -> list[Merge]:
        listed = self._get("merges", list[str])
        cut = [merge.partition(" ") for merge in listed]
        found = [(left, right) for left, _, right in cut if left and right]
        if len(found) != len(listed):
            wrong = next(merge for merge, (left, _, right) in zip(listed, cut, strict=True) if not (left and right))
            raise CheckpointError(f"{_KEY}merges", wrong, "expected two tokens with a space between them")
        return found


def _read(metadata: Mapping[str, object], key: str, kind: type[Value], default: Value | None = None) -> Value:
    value = metadata.get(key, default)
    if value is None:
        raise CheckpointError(key, None, "is missing; convert the model anew")
    try:
        return convert(value, kind)
    except ValidationError as error:
        raise CheckpointError(key, type(value).__name__, str(error)) from None
