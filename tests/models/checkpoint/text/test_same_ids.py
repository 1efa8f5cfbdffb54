"""Every source gives 300 texts the ids that its own library gives them; a vocabulary that is a little wrong does not.

The ids are in files/; make_files.py wrote them with sentencepiece, tiktoken, mistral-common and llama.cpp.
"""

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from triolet.actors.tokenizer.control_tokens import ControlTokens, Marks
from triolet.models.checkpoint.text import splits, tiktoken
from triolet.models.checkpoint.text.sentencepiece import PieceKind, PieceTable, tokenizer_of_pieces
from triolet.models.checkpoint.text.sentencepiece_file import read_sentencepiece
from triolet.models.checkpoint.text.tekken import tekken_tokenizer
from triolet.models.checkpoint.text.text_files import read_text_files

from .vocabularies import CUTS, byte_level_metadata, expected, ranks, read, sentencepiece_metadata, tekken, write

EXPECTED = expected()
TEXTS: list[str] = EXPECTED["texts"]


@pytest.fixture(autouse=True)
def small_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiktoken.FAMILIES, len(ranks()), tiktoken.Family(splits.CL100K, ("<|open|>", "<|close|>")))


def pieces_of(name: str) -> PieceTable:
    return read_sentencepiece(read(name), name).pieces


def as_text(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a client's text, in which nothing is a control token."""
    control = ControlTokens(tokenizer, "")
    marks = Marks(control)
    broken: str = marks.broken(text)
    if not marks.mark:
        return tokenizer.encode(text, add_special_tokens=False).ids
    return control.encode(broken, marks.mark, 10_000)


def differing(tokenizer: Tokenizer, source: str) -> list[str]:
    return [text for text, ids in zip(TEXTS, EXPECTED["ids"][source], strict=True) if as_text(tokenizer, text) != ids]


def gguf(folder: Path, metadata: dict[str, Any]) -> Tokenizer:
    return read_text_files(write(folder / "model.gguf", metadata)).tokenizer


SOURCES: dict[str, Callable[[], Tokenizer]] = {
    "bpe": lambda: tokenizer_of_pieces(pieces_of("bpe.model")),
    "unigram": lambda: tokenizer_of_pieces(pieces_of("unigram.model")),
    "tiktoken": lambda: tiktoken.tiktoken_tokenizer(read("ranks.tiktoken"), "ranks.tiktoken", {}),
    "tekken": lambda: tekken_tokenizer(json.dumps(tekken()).encode()),
}
# Texts with a word that is a control token of the vocabulary: unigram cuts it in two; and a text that is one
# user-defined piece and nothing else has no space before it (sentencepiece.py says why).
ALLOWED: dict[str, Callable[[str], bool]] = {
    "bpe": lambda text: text in ("<|user|>", "<|open|>"),
    "unigram": lambda text: any(word in text for word in ("<ctl>", "<s>", "</s>", "<unk>")),
}  # fmt: skip


@pytest.mark.parametrize("source", SOURCES)
def test_the_ids_are_those_of_the_library(source: str) -> None:
    def none(_text: str) -> bool:
        return False

    allowed = ALLOWED.get(source, none)
    assert [text for text in differing(SOURCES[source](), source) if not allowed(text)] == []


@pytest.mark.parametrize("cut", CUTS)
def test_the_ids_of_a_gguf_file_are_those_of_llama_cpp(tmp_path: Path, cut: str) -> None:
    assert differing(gguf(tmp_path, byte_level_metadata(cut)), cut) == []


def test_the_ids_of_sentencepiece_in_a_gguf_file_are_those_of_llama_cpp(tmp_path: Path) -> None:
    """llama.cpp puts a space behind user-defined pieces, too, and lets pieces merge to a control token; the library of
    sentencepiece does neither."""
    tokenizer = gguf(tmp_path, sentencepiece_metadata())
    wrong = differing(tokenizer, "llama")
    assert all(any(word in text for word in ("<|user|>", "<|open|>", "<ctl>", "<s>", "</s>")) for text in wrong)
    assert [text for text in differing(tokenizer, "bpe") if not ALLOWED["bpe"](text)] == []


def test_composed_text_is_what_qwen_is_given() -> None:
    assert any(unicodedata.normalize("NFC", text) != text for text in TEXTS)


def test_a_planted_error_is_found(tmp_path: Path) -> None:
    pieces = pieces_of("bpe.model")
    best = max(pieces.of_kind(PieceKind.NORMAL), key=lambda id: pieces.scores[id])
    pieces.scores[best] = -1000.0
    assert differing(tokenizer_of_pieces(pieces), "bpe")
    pieces = pieces_of("bpe.model")
    pieces.adds_prefix = False
    assert differing(tokenizer_of_pieces(pieces), "bpe")
    pieces = pieces_of("unigram.model")
    pieces.charsmap = b""
    assert differing(tokenizer_of_pieces(pieces), "unigram")
    assert differing(gguf(tmp_path, byte_level_metadata("gpt-2")), "llama-bpe")
    assert differing(gguf(tmp_path, byte_level_metadata("llama-bpe")), "smollm")
    turned = byte_level_metadata("gpt-2")
    turned["tokenizer.ggml.merges"].reverse()
    assert differing(gguf(tmp_path, turned), "gpt-2")
