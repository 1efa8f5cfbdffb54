"""Damaged and hostile files end in a CheckpointError that names them, soon and in little memory."""

import json
import random
import struct
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from triolet.models.checkpoint.grammar import open_grammar_tokenizer
from triolet.models.checkpoint.text import sentencepiece_file, tiktoken
from triolet.models.checkpoint.text.folder import read_tokenizer
from triolet.models.checkpoint.text.gguf import GgufText
from triolet.models.checkpoint.text.sentencepiece import tokenizer_of_pieces
from triolet.models.checkpoint.text.sentencepiece_file import read_sentencepiece
from triolet.models.checkpoint.text.tekken import tekken_tokenizer
from triolet.models.checkpoint.text.text_files import read_text_files
from triolet.models.errors import CheckpointError, is_failure

from .vocabularies import byte_level_metadata, ranks, read, sentencepiece_metadata, tekken


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found, value = found + bytes([value & 0x7F | 0x80]), value >> 7
    return found + bytes([value])


def piece(text: bytes, score: float = 0.0, kind: int = 1) -> bytes:
    return field(1, field(1, text) + b"\x15" + struct.pack("<f", score) + b"\x18" + varint(kind))


UNKNOWN = piece(b"<unk>", 0.0, 2)
UNIGRAM = UNKNOWN + piece(b"a", -1.0)


def charsmap(*units: int, texts: bytes = b"x\0") -> bytes:
    trie = struct.pack(f"<{len(units)}I", *units)
    return UNIGRAM + field(3, field(2, struct.pack("<I", len(trie)) + trie + texts))


SENTENCEPIECE = {
    "nothing": b"",
    "a length of 2 GB": b"\x0a\xff\xff\xff\xff\x07abc",
    "a number without end": b"\x08" + b"\xff" * 20,
    "a group": b"\x0b\x0c",
    "no UTF-8": piece(b"\xff\xfe") + UNKNOWN,
    "a type that is none": piece(b"a", 0.0, 99),
    "a negative type": piece(b"a", 0.0, 2**64 - 1),
    "a score that is none": piece(b"a", float("nan")) + UNKNOWN,
    "a text twice": UNKNOWN + piece(b"a") + piece(b"a"),
    "no text": UNKNOWN + piece(b""),
    "an endless text": UNKNOWN + piece(b"a" * 2_000_000),
    "no unknown piece": piece(b"a"),
    "an algorithm that is none": UNIGRAM + field(2, b"\x18\x09"),
    "words": UNIGRAM + field(2, b"\x18\x03"),
    "spaces behind words": UNIGRAM + field(2, b"\xc0\x01\x01"),
    "a message that is a number": b"\x10\x05",
    "a map of nothing": UNIGRAM + field(3, field(2, b"\0")),
    "a map that points out of itself": charsmap(*[1 << 10] * 255, 0xFFFFFC00 & 0x7FFFFFFF),
    "a map to texts that are not there": charsmap(*[0] * 255, 1 << 31 | 5000),
    "a map into a character": charsmap(*[0] * 255, 1 << 31 | 1, texts="é\0".encode()),
    "a map whose value is none": charsmap(1 << 8, *[5000] * 255),
    "a map without an end": charsmap(*[0] * 256, texts=b"x"),
}


@pytest.mark.parametrize("data", SENTENCEPIECE.values(), ids=SENTENCEPIECE)
def test_sentencepiece(data: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"^tokenizer\.model"):
        tokenizer_of_pieces(read_sentencepiece(data, "tokenizer.model").pieces)


def test_a_sound_map_of_characters_is_taken() -> None:
    """So that the damaged ones above fail for their damage."""
    data = charsmap(*[0] * 256)
    assert tokenizer_of_pieces(read_sentencepiece(data, "tokenizer.model").pieces).encode("a").tokens == ["▁", "a"]


def test_pieces_without_number_are_refused_before_all_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentencepiece_file, "MAX_TOKENS", 1000)
    with pytest.raises(CheckpointError, match="= 1001: pieces; at most"):
        read_sentencepiece(field(1, b"\x0a\x01a") * 1001 + b"\xff", "tokenizer.model")


TEKKEN: dict[str, Callable[[dict[str, Any]], object]] = {
    "more tokens than there are": lambda file: file["config"].update(default_vocab_size=10**9),
    "a negative size": lambda file: file["config"].update(default_num_special_tokens=-1),
    "no base64": lambda file: file["vocab"][300].update(token_bytes="%%%"),
    "ranks out of order": lambda file: file["vocab"][300].update(rank=7),
    "a negative rank": lambda file: file["vocab"][300].update(rank=-1),
    "a token twice": lambda file: file["vocab"][301].update(token_bytes=file["vocab"][300]["token_bytes"]),
    "an expression that is none": lambda file: file["config"].update(pattern="("),
    "an endless expression": lambda file: file["config"].update(pattern="a" * 10**6),
    "a list for a text": lambda file: file["config"].update(pattern=[]),
    "no vocabulary": lambda file: file.pop("vocab"),
    "a special token twice": lambda file: file["special_tokens"][1].update(token_str="<unk>"),
    "an endless token": lambda file: file["vocab"][300].update(token_bytes=b64encode(b"a" * 10**6).decode()),
}


@pytest.mark.parametrize("damage", TEKKEN.values(), ids=TEKKEN)
def test_tekken(damage: Callable[[dict[str, Any]], object]) -> None:
    file = tekken()
    damage(file)
    with pytest.raises(CheckpointError):
        tekken_tokenizer(json.dumps(file).encode())


@pytest.mark.parametrize(
    "data",
    [b"", b"YQ== 0\nYQ== 1\n", b"YQ== 1\n", b"YQ== -1\n", b"YQ==\n", b"%% 0\n", b"YQ== 0\n" + b"A" * 10**6 + b" 1"],
)
def test_ranks(data: bytes) -> None:
    with pytest.raises(CheckpointError):
        tiktoken.tiktoken_tokenizer(data, "x.tiktoken", {})


def plain(metadata: dict[str, Any]) -> dict[str, Any]:
    """The values as a file's reader gives them."""
    return {key: getattr(value, "value", value) for key, value in metadata.items()}


GGUF: dict[str, dict[str, Any]] = {
    "no tokens": {"tokenizer.ggml.tokens": []},
    "tokens that are numbers": {"tokenizer.ggml.tokens": [1, 2]},
    "a token twice": {"tokenizer.ggml.tokens": ["a"] * 604},
    "too few types": {"tokenizer.ggml.token_type": [1, 2, 3]},
    "a merge of one": {"tokenizer.ggml.merges": ["ab"]},
    "a merge of unknown tokens": {"tokenizer.ggml.merges": ["zz\0 yy\0"]},
    "a merge to nothing": {"tokenizer.ggml.merges": ["Ġ " + "x" * 500]},
    "merges that are a number": {"tokenizer.ggml.merges": 7},
    "a negative id": {"tokenizer.ggml.bos_token_id": -7},
    "an id beyond the tokens": {"tokenizer.ggml.eos_token_id": 10**6},
    "an id that is a text": {"tokenizer.ggml.eos_token_id": "</s>"},
    "an endless token": {"tokenizer.ggml.tokens": ["a" * 10**6, *map(str, range(603))]},
}


@pytest.mark.parametrize("damage", GGUF.values(), ids=GGUF)
def test_metadata(damage: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"^tokenizer\.ggml\."):
        GgufText(plain(byte_level_metadata("gpt-2")) | damage).tokenizer()


@pytest.mark.parametrize(
    "damage",
    [
        {"tokenizer.ggml.scores": [0.5]},
        {"tokenizer.ggml.scores": [float("inf")] * 560},
        {"tokenizer.ggml.model": "t5", "tokenizer.ggml.precompiled_charsmap": [-1] * 40},
        {"tokenizer.ggml.model": "gemma4"},
    ],
)
def test_metadata_of_sentencepiece(damage: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError):
        GgufText(plain(sentencepiece_metadata()) | damage).tokenizer()


def test_merges_in_a_circle_end() -> None:
    """Each makes a token of two others, and of these one is made of the first: nothing is followed at load."""
    metadata = plain(byte_level_metadata("gpt-2"))
    metadata["tokenizer.ggml.tokens"] = ["a", "aa", "aaa", "aaaa"]
    metadata["tokenizer.ggml.merges"] = ["aaa a", "a aaa", "aa aa", "aa a", "a aa", "a a"] * 1000
    metadata |= {
        "tokenizer.ggml.token_type": [1] * 4,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
    }
    assert GgufText(metadata).tokenizer().encode("a" * 8, add_special_tokens=False).tokens


@pytest.mark.parametrize("name", ["bpe.model", "unigram.model", "ranks.tiktoken"])
def test_mutations_load_or_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a few changed bytes make of a file, it loads and encodes, or is refused; nothing else."""
    monkeypatch.setitem(tiktoken.FAMILIES, len(ranks()), tiktoken.Family("a"))
    draw, sound, refused = random.Random(14), read(name), 0
    for _ in range(60):
        data = bytearray(sound)
        for _ in range(draw.randrange(1, 4)):
            data[draw.randrange(min(len(data), 10**9))] = draw.randrange(256)
        if draw.random() < 0.2:
            del data[draw.randrange(len(data)) :]
        (tmp_path / "tokenizer.model").write_bytes(data)
        try:
            read_text_files(tmp_path).tokenizer.encode("a text, größer\n  <unk>")
        except CheckpointError:
            refused += 1
    assert 0 < refused < 60


def test_a_file_at_which_the_library_panics_is_refused(tmp_path: Path) -> None:
    """A merge whose result the vocabulary lacks. A panic is no Exception."""
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [["a", "b"]]}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json.*cannot be read"):
        read_tokenizer(tmp_path, {})
    with pytest.raises(CheckpointError, match="cannot be used with grammars"):
        open_grammar_tokenizer(str(tmp_path), 2, (1,))


def test_a_user_s_interruption_is_no_failure_of_a_library() -> None:
    assert is_failure(ValueError())
    assert not is_failure(KeyboardInterrupt())
