"""The small vocabularies of these tests: the committed files, and GGUF files written from them."""

import gzip
import json
from base64 import b64decode
from pathlib import Path
from typing import Any

from triolet.models.checkpoint.text.byte_level import spelt
from triolet.models.checkpoint.text.merges import merges_of
from triolet.models.checkpoint.text.sentencepiece_file import read_sentencepiece
from triolet.models.checkpoint.text.splits import TEKKEN

from ..gguf.written import Typed, write_gguf

FOLDER = Path(__file__).parent / "files"
CONTROL = ["<|open|>", "<s>", "</s>", "<|close|>"]  # behind the ranks
# Ways to cut texts that llama.cpp has as the models have them.
CUTS = ("llama-bpe", "gpt-2", "smollm", "deepseek-v3", "qwen2")


def read(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


def expected() -> dict[str, Any]:
    """`texts`, and the ids that each library gives them. make_files.py writes it."""
    found: dict[str, Any] = json.loads(gzip.decompress(read("expected.json.gz")))
    return found


def ranks() -> list[bytes]:
    return [b64decode(line.split()[0]) for line in read("ranks.tiktoken").splitlines()]


def byte_level_metadata(pre: str) -> dict[str, Any]:
    pieces = [spelt(token) for token in ranks()]
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*pieces, *CONTROL],
        "tokenizer.ggml.token_type": Typed("i32", [1] * len(pieces) + [3] * len(CONTROL)),
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges_of(pieces, set(pieces), "ranks")],
        "tokenizer.ggml.bos_token_id": len(pieces),
        "tokenizer.ggml.eos_token_id": len(pieces) + 2,
    }


def sentencepiece_metadata() -> dict[str, Any]:
    pieces = read_sentencepiece(read("bpe.model"), "bpe.model").pieces
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces.texts,
        "tokenizer.ggml.scores": Typed("f32", pieces.scores),
        "tokenizer.ggml.token_type": Typed("i32", pieces.kinds),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def write(path: Path, metadata: dict[str, Any]) -> Path:
    write_gguf(path, metadata, {})
    return path


def tekken() -> dict[str, Any]:
    """As the file that Mistral's models have, with five special tokens."""
    lines = read("ranks.tiktoken").decode().splitlines()
    vocab = [{"rank": rank, "token_bytes": line.split()[0], "token_str": None} for rank, line in enumerate(lines)]
    sizes = {"num_vocab_tokens": len(vocab), "default_vocab_size": len(vocab) + 3, "default_num_special_tokens": 5}
    named = enumerate(("<unk>", "<s>", "</s>"))
    listed = [{"rank": rank, "token_str": text, "is_control": True} for rank, text in named]
    return {"config": {"pattern": TEKKEN, "version": "v11", **sizes}, "vocab": vocab, "special_tokens": listed}
