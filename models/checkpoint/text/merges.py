"""Merges of a vocabulary that has none written down, but ranks: which two neighbours may become one token, and when.

SentencePiece and tiktoken merge any two neighbours whose texts together are a token, those of the best rank first. The
tokenizers library wants a list of pairs; it takes the first of the list first. So every way to cut a token in two
tokens becomes a pair. Two cuts of one token hardly ever compete: what is merged inside a span does not depend on its
surroundings until it is merged as a whole.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from tokenizers import models

from ...errors import CheckpointError

MAX_PIECE: Final = 1024  # characters of one token; the longest known are 512 spaces
MAX_CHARACTERS: Final = 8 << 20  # of all tokens, each a place to cut at; the largest known vocabularies have 3 million

Merge = tuple[str, str]


def check_pieces(pieces: Iterable[str], file: str) -> None:
    """Raises CheckpointError for texts that would take too long: far beyond all known vocabularies."""
    lengths = list(map(len, pieces))
    if (longest := max(lengths, default=0)) > MAX_PIECE:
        raise CheckpointError(file, longest, f"characters of one token; at most {MAX_PIECE} are read")
    if (total := sum(lengths)) > MAX_CHARACTERS:
        raise CheckpointError(file, total, f"characters in all tokens; at most {MAX_CHARACTERS} are read")


def merges_of(pieces: Iterable[str], known: AbstractSet[str], file: str) -> list[Merge]:
    """All pairs of known texts that make one of `pieces`; these come best rank first. Of one, longest left first."""
    check_pieces(known, file)
    found: list[Merge] = []
    for piece in pieces:
        for cut in range(len(piece) - 1, 0, -1):
            left = piece[:cut]
            if left in known and (right := piece[cut:]) in known:
                found.append((left, right))
    return found


def bpe_model(
    vocabulary: dict[str, int],
    merges: Sequence[Merge],
    file: str,
    **options: Any,  # Any: of the library's model
) -> models.BPE:
    """Raises CheckpointError for merges of texts that the vocabulary lacks."""
    try:
        return models.BPE(vocabulary, list(merges), **options)
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(file, "merges", f"do not fit the vocabulary ({str(error)[:200]})") from None
