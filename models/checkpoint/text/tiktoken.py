"""tiktoken's files: a line for each token, its bytes in base64 and its rank. Nothing else; the rest is data here.

Which expression cuts the text and which special tokens follow depends on the family. It is known by the number of
ranks, and special tokens also by the checkpoint's tokenizer_config.json, which goes first.
Layout: https://github.com/openai/tiktoken, tiktoken/load.py.
"""

from base64 import b64decode
from collections.abc import Mapping
from typing import Final, NamedTuple

from tokenizers import AddedToken, Tokenizer

from ...errors import CheckpointError, UnsupportedModel
from .added import MAX_TOKENS, add_tokens
from .byte_level import byte_level_tokenizer, spelt
from .merges import merges_of
from .splits import CL100K, GPT2, KIMI, O200K, QWEN2

MAX_BYTES: Final = 32 << 20  # the largest known has 4 MB


class Family(NamedTuple):
    """`specials` come behind the ranks, in this order."""

    pattern: str
    specials: tuple[str, ...] = ()
    nfc: bool = False


_LLAMA3: Final = (
    *("<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>"),
    *("<|reserved_special_token_2|>", "<|reserved_special_token_3|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|reserved_special_token_4|>", "<|eot_id|>", *(f"<|reserved_special_token_{n}|>" for n in range(5, 251))),
)
_QWEN: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{n}|>" for n in range(205)))
FAMILIES: Final[dict[int, Family]] = {
    50_256: Family(GPT2, ("<|endoftext|>",)),  # r50k_base
    100_256: Family(CL100K),  # cl100k_base
    128_000: Family(CL100K, _LLAMA3),
    151_643: Family(QWEN2, _QWEN, nfc=True),
    163_584: Family(KIMI),  # Kimi K2
    199_998: Family(O200K),  # o200k_base
}


def looks_like_tiktoken(data: bytes) -> bool:
    """Whether the first line is one of such a file; a `tokenizer.model` may be one."""
    first, space, rank = data[:4096].partition(b"\n")[0].partition(b" ")
    return bool(space) and rank.strip().isdigit() and len(first) % 4 == 0


def tiktoken_tokenizer(data: bytes, file: str, listed: Mapping[int, AddedToken]) -> Tokenizer:
    """`listed`: the special tokens that the checkpoint lists. Raises CheckpointError, UnsupportedModel."""
    ranks = _ranks(data, file)
    family = FAMILIES.get(len(ranks))
    if family is None:
        known = ", ".join(map(str, FAMILIES))
        remedy = f"vocabularies of {known} ranks are known; save the tokenizer as tokenizer.json with transformers"
        raise UnsupportedModel(f"{file}: number of ranks", len(ranks), remedy)
    pieces = [spelt(token) for token in ranks]
    vocabulary = {piece: rank for rank, piece in enumerate(pieces)}
    merges = merges_of(pieces, vocabulary.keys(), file)
    tokenizer = byte_level_tokenizer(vocabulary, merges, [family.pattern], whole=True, nfc=family.nfc, file=file)
    known_tokens = {
        len(ranks) + place: AddedToken(text, special=True, normalized=False)
        for place, text in enumerate(family.specials)
    }
    add_tokens(tokenizer, known_tokens | dict(listed), file)
    return tokenizer


def _ranks(data: bytes, file: str) -> list[bytes]:
    found: list[bytes] = []
    for number, line in enumerate(data.splitlines()):
        token, _, rank = line.partition(b" ")
        try:
            found.append(b64decode(token, validate=True))
            in_order = int(rank) == number
        except ValueError as error:
            raise CheckpointError(file, line[:100], f"line {number + 1} is no token and rank ({error})") from None
        if not in_order:
            raise CheckpointError(file, line[:100], f"line {number + 1}: expected rank {number}")
        if number >= MAX_TOKENS:
            raise CheckpointError(file, number, f"lines; at most {MAX_TOKENS} are read")
    if len(set(found)) != len(found):
        raise CheckpointError(file, len(found), "tokens, and two are the same")
    return found
