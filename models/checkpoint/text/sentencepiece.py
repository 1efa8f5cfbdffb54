"""SentencePiece vocabularies, from a `tokenizer.model` or a GGUF file, as a tokenizer that gives the same ids.

What the library does with a text, and what does it here:
 1. Normalise: a map of characters (`Precompiled`); remove extra spaces; put one before the text; write them as `▁`.
 2. BPE: find user-defined pieces, the longest from the left (added tokens, which are looked for in the normalised
    text), then merge the neighbours whose text has the best score. Unigram: take the most likely pieces, of which
    user-defined ones get a bonus.
 3. Spell what the vocabulary lacks in bytes, or as one unknown piece.
Control pieces are never found in a text by the library. Here they are special tokens, for chat templates; a text
between two of them is treated as the library treats a whole one. A text that equals a piece of another kind must not
become it: in BPE nothing merges to it; in unigram the text is cut behind its first character, so it has other pieces
than the library finds there.
Source: https://github.com/google/sentencepiece, src/{normalizer,bpe_model,unigram_model}.cc.
"""

import re
from collections import Counter
from collections.abc import Iterable
from enum import IntEnum
from math import isfinite
from typing import Final, Literal
from unicodedata import normalize

from msgspec import Struct
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from ...errors import CheckpointError
from .added import add_tokens
from .merges import Merge, bpe_model, check_pieces, merges_of

SPACE: Final = "\N{LOWER ONE EIGHTH BLOCK}"
_COMPOSED: Final = ("e\u0301", "a\u030a", "o\u0308", "n\u0303", "u\u0300")  # by every map that composes at all
_ESCAPE: Final = normalizers.Replace(" ", SPACE)


class PieceKind(IntEnum):
    """Of a piece; as numbered in the protocol buffer and in GGUF's `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class PieceTable(Struct, kw_only=True):
    """A vocabulary; the three lists have an entry for each id."""

    texts: list[str]
    scores: list[float]
    kinds: list[int]
    algorithm: Literal["bpe", "unigram"]
    merges: list[Merge] | None = None  # for BPE, where the file has them: best first
    charsmap: bytes = b""
    adds_prefix: bool = True
    removes_extra_spaces: bool = True
    byte_fallback: bool = False
    file: str

    def of_kind(self, *kinds: PieceKind) -> dict[int, str]:
        return {id: self.texts[id] for id, kind in enumerate(self.kinds) if kind in kinds}


def tokenizer_of_pieces(pieces: PieceTable, *, prefixes_all: bool = True) -> Tokenizer:
    """`prefixes_all`: a space goes before the text behind every special token, too, not only before the first.

    The first is what the library does to each text, and llama.cpp; the second what transformers calls `legacy: false`.
    Raises CheckpointError.
    """
    _check(pieces)
    bpe = pieces.algorithm == "bpe"
    found = pieces.of_kind(PieceKind.USER_DEFINED)
    bare = _normalizers(pieces)
    # The normaliser leaves user-defined pieces alone; one that it would change has to be found before it.
    as_is = normalizers.Sequence([*bare, _ESCAPE])
    kept = {id: text for id, text in found.items() if as_is.normalize_str(text) == text}
    tokenizer = Tokenizer(_bpe(pieces) if bpe else _unigram(pieces, kept))
    prefix = [_prefix(kept.values() if bpe else ())] if pieces.adds_prefix and prefixes_all else []
    tokenizer.normalizer = normalizers.Sequence([*bare, *prefix, _ESCAPE])
    splits: list[pre_tokenizers.PreTokenizer] = []
    if pieces.adds_prefix and not prefixes_all:
        splits.append(pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False))
    if not bpe and (hidden := _hidden(pieces)):
        splits.append(pre_tokenizers.Split(Regex(hidden), "isolated"))
    if splits:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, *([decoders.Strip(" ", 1, 0)] if pieces.adds_prefix else [])])
    control = pieces.of_kind(PieceKind.CONTROL, PieceKind.UNKNOWN)
    added = {id: AddedToken(text, special=True, normalized=False) for id, text in control.items()}
    for id, text in found.items():
        if bpe or id not in kept:
            added[id] = AddedToken(text, special=False, normalized=id in kept)
    add_tokens(tokenizer, added, pieces.file)
    return tokenizer


def _check(pieces: PieceTable) -> None:
    texts, file = pieces.texts, pieces.file
    if not len(texts) == len(pieces.scores) == len(pieces.kinds):
        sizes = (len(texts), len(pieces.scores), len(pieces.kinds))
        raise CheckpointError(file, sizes, "tokens, scores and types; expected as many of each")
    if not texts:
        raise CheckpointError(file, 0, "tokens: there is no vocabulary")
    check_pieces(texts, file)
    if "" in texts:
        raise CheckpointError(file, texts.index(""), "the token of this id has no text")
    if len(set(texts)) != len(texts):
        twice = next(text for text, count in Counter(texts).items() if count > 1)
        raise CheckpointError(file, twice, "two tokens have this text")
    if not all(map(isfinite, pieces.scores)):
        raise CheckpointError(file, "scores", "a token's score is no finite number")


def _bpe(pieces: PieceTable) -> models.BPE:
    vocabulary = {text: id for id, text in enumerate(pieces.texts)}
    merges = pieces.merges
    if merges is None:
        scores, usable = pieces.scores, pieces.of_kind(PieceKind.NORMAL, PieceKind.USER_DEFINED)
        best_first = sorted(usable, key=lambda id: -scores[id])
        merges = merges_of((usable[id] for id in best_first), set(usable.values()), pieces.file)
    unknown = next(iter(pieces.of_kind(PieceKind.UNKNOWN).values()), None)
    options = {"unk_token": unknown, "fuse_unk": True, "byte_fallback": pieces.byte_fallback}
    return bpe_model(vocabulary, merges, pieces.file, **options)


def _unigram(pieces: PieceTable, user_defined: Iterable[int]) -> models.Unigram:
    unknown = next(iter(pieces.of_kind(PieceKind.UNKNOWN)), None)
    if unknown is None:
        raise CheckpointError(pieces.file, "unknown", "a unigram vocabulary needs a piece for unknown characters")
    scores = list(pieces.scores)
    best = max(0.0, *(scores[id] for id in pieces.of_kind(PieceKind.NORMAL)), 0.0)
    for id in user_defined:
        scores[id] = len(pieces.texts[id].encode()) * best - 0.1  # unigram_model.cc: max_score_ begins above 0
    vocabulary = list(zip(pieces.texts, scores, strict=True))
    return models.Unigram(vocabulary, unknown, byte_fallback=pieces.byte_fallback)


def _hidden(pieces: PieceTable) -> str:
    """Matches the place behind the first character of every text that no text may become by its characters."""
    texts = pieces.of_kind(PieceKind.CONTROL, PieceKind.UNKNOWN, PieceKind.UNUSED, PieceKind.BYTE).values()
    by_first: dict[str, list[str]] = {}
    for text in texts:
        if len(text) > 1:
            by_first.setdefault(text[0], []).append(re.escape(text[1:]))
    return "|".join(f"(?<={re.escape(first)})(?={'|'.join(rest)})" for first, rest in by_first.items())


def _normalizers(pieces: PieceTable) -> list[normalizers.Normalizer]:
    found: list[normalizers.Normalizer] = []
    if pieces.charsmap:
        _check_charsmap(pieces.charsmap, pieces.file)
        mapped = normalizers.Precompiled(pieces.charsmap)
        if all(mapped.normalize_str(pair) == normalize("NFC", pair) for pair in _COMPOSED):
            # It looks up short clusters as a whole and the characters of long ones, and so misses some compositions.
            found.append(normalizers.NFC())
        found.append(mapped)
    if pieces.removes_extra_spaces:
        found += [normalizers.Replace(Regex(rf"\A +|[ {SPACE}]+\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    return found


def _prefix(but: Iterable[str]) -> normalizers.Normalizer:
    """A space before each text except these, the added tokens that the library of tokenizers normalises, too.

    So a text that is one user-defined piece and nothing else gets no space either: the only one that differs.
    """
    texts = "|".join(map(re.escape, but))
    return normalizers.Replace(Regex(rf"\A(?!(?:{texts})\z)" if texts else r"\A"), SPACE)


def _check_charsmap(charsmap: bytes, file: str) -> None:
    """A map of characters: the size of a trie in bytes, the trie (a double array), and the texts it leads to.

    The library follows its numbers without looking; so all that can be followed are compared with the sizes here.
    Layout of a trie's unit: https://github.com/s-yata/darts-clone, include/darts.h.
    """
    import numpy as np  # of a server's front process nothing else needs its 11 MB

    size = int.from_bytes(charsmap[:4], "little")
    trie = charsmap[4 : 4 + size]  # shorter, if the map is cut off
    units = np.frombuffer(trie, np.uint32) if len(trie) % 4 == 0 else np.empty(0, np.uint32)
    texts = np.frombuffer(charsmap[4 + size :], np.uint8)
    is_value = units >> 31 == 1
    inner = units[~is_value]
    places = np.flatnonzero(~is_value).astype(np.uint32) ^ (inner >> 10) << ((inner & 1 << 9) >> 6)
    values = units[is_value] & 0x7FFFFFFF
    sound = (
        0 < 4 * len(units) == size <= len(charsmap) - 4
        and len(texts)
        and texts[-1] == 0
        and np.all(places | 0xFF < len(units))
        and np.all(values < len(texts))
    )
    has_value = inner >> 8 & 1 == 1  # where that place leads to, as the library takes for granted
    if not sound or not np.all(is_value[places[has_value]]) or np.any(texts[values] & 0xC0 == 0x80):
        raise CheckpointError(file, "precompiled_charsmap", "is damaged: it points to places outside of itself")
    try:
        charsmap[4 + size :].decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(file, "precompiled_charsmap", f"is not UTF-8 ({error.reason})") from None
