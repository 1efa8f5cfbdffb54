"""Mistral's `tekken.json`: ranks of byte sequences, the expression that cuts texts, and the special tokens.

Special tokens have the first ids; a token's id is its rank behind them. Only as many ranks are used as fit the size of
the vocabulary, which the file says. Layout: mistral_common/tokens/tokenizers/tekken.py of PyPI's mistral-common 1.13.
"""

from base64 import b64decode
from typing import Final

from msgspec import Struct, ValidationError, convert
from tokenizers import AddedToken, Tokenizer

from ...errors import CheckpointError
from ..files import parse_object
from .added import MAX_TOKENS, add_tokens, surround
from .byte_level import byte_level_tokenizer, spelt
from .merges import merges_of

FILE: Final = "tekken.json"
MAX_BYTES: Final = 64 << 20  # the largest known has 20 MB
# Of files up to version 7 that do not list them.
SPECIAL_TOKENS: Final = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)


class _Config(Struct):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int


class _Token(Struct):
    rank: int
    token_bytes: str  # base64


class _Special(Struct):
    rank: int
    token_str: str


class _File(Struct):
    config: _Config
    vocab: list[_Token]
    special_tokens: list[_Special] | None = None


def tekken_tokenizer(data: bytes) -> Tokenizer:
    """Raises CheckpointError."""
    try:
        file = convert(parse_object(data, FILE), _File)
        specials, total = file.config.default_num_special_tokens, file.config.default_vocab_size
        if not 0 < specials < total <= min(specials + len(file.vocab), MAX_TOKENS):
            sizes = {"default_vocab_size": total, "default_num_special_tokens": specials, "vocab": len(file.vocab)}
            raise CheckpointError(FILE, sizes, "the sizes contradict each other")
        ranks = [b64decode(token.token_bytes, validate=True) for token in file.vocab[: total - specials]]
    except ValidationError as error:
        raise CheckpointError("file", FILE, str(error)) from None
    except ValueError as error:
        raise CheckpointError("file", FILE, f"a token is not base64 ({error})") from None
    if any(token.rank != place for place, token in enumerate(file.vocab[: len(ranks)])):
        raise CheckpointError("file", FILE, "the ranks are not in order")
    listed = dict(enumerate(SPECIAL_TOKENS))
    if file.special_tokens is not None:
        listed = {token.rank: token.token_str for token in file.special_tokens}
    names = {id: listed.get(id, f"<SPECIAL_{id}>") for id in range(specials)}
    pieces = [spelt(token) for token in ranks]
    vocabulary = {name: id for id, name in names.items()} | {
        piece: specials + rank for rank, piece in enumerate(pieces)
    }
    if len(vocabulary) != total:
        raise CheckpointError("file", FILE, "two tokens are the same")
    merges = merges_of(pieces, set(pieces), FILE)
    tokenizer = byte_level_tokenizer(vocabulary, merges, [file.config.pattern], whole=True, file=FILE)
    add_tokens(tokenizer, {id: AddedToken(name, special=True, normalized=False) for id, name in names.items()}, FILE)
    surround(tokenizer, "<s>" if "<s>" in vocabulary else None, None, FILE)
    return tokenizer
