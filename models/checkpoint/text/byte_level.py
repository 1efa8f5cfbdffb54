"""Byte-level BPE: each byte of a text is one printable character of the vocabulary, and neighbours are merged.

The text is cut first, by expressions that differ between families (splits.py); nothing is merged across a cut.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Final

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers

from ...errors import CheckpointError
from .merges import Merge, bpe_model, check_pieces

MAX_PATTERN: Final = 1 << 14  # characters; the longest known has 1,100


@cache
def byte_of_character() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 bytes are themselves; the others are mapped from U+0100 up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    moved = (byte for byte in range(256) if byte not in set(printable))
    return table | {chr(0x100 + place): byte for place, byte in enumerate(moved)}


@cache
def _character_of_byte() -> dict[int, str]:
    return {byte: character for character, byte in byte_of_character().items()}


def spelt(token: bytes) -> str:
    """A token's bytes as such a vocabulary writes them."""
    return token.decode("latin-1").translate(_character_of_byte())


def byte_level_tokenizer(
    vocabulary: dict[str, int],
    merges: Sequence[Merge],
    patterns: Iterable[str],
    *,
    whole: bool,
    nfc: bool = False,
    file: str,
) -> Tokenizer:
    """`patterns` cut the text, one after the other. `whole`: a part that is a token is taken as it is, not merged.

    Raises CheckpointError for a vocabulary that is none: a merge of unknown tokens, a pattern that does not compile.
    """
    check_pieces(vocabulary, file)
    if not vocabulary:
        raise CheckpointError(file, 0, "tokens: there is no vocabulary")
    tokenizer = Tokenizer(bpe_model(vocabulary, merges, file, ignore_merges=whole))
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    cuts = [_split(pattern, file) for pattern in patterns]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _split(pattern: str, file: str) -> pre_tokenizers.Split:
    if len(pattern) > MAX_PATTERN:
        raise CheckpointError(file, pattern, f"an expression of more than {MAX_PATTERN} characters")
    try:
        return pre_tokenizers.Split(Regex(pattern), "isolated")
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(file, pattern, f"is no expression that cuts texts ({str(error)[:200]})") from None
