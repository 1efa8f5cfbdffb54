"""What every source of a tokenizer ends with: tokens that are found before all others, and what surrounds every text.

The library numbers added tokens itself. Here a file says which id each has, so afterwards they are compared.
"""

from collections.abc import Mapping
from typing import Final

from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing

from ...errors import CheckpointError

MAX_TOKENS: Final = 1 << 19  # of a vocabulary; the largest known have 260,000
MAX_GAPS: Final = 1 << 14  # ids without a token, 1 kB each; vocabularies are filled up by some hundreds


def add_tokens(tokenizer: Tokenizer, tokens: Mapping[int, AddedToken], file: str) -> None:
    """Add tokens under these ids; ids between them that no token has get a name that no text will hold by chance.

    Raises CheckpointError for an id that cannot be given: because of the model's own tokens, or of a text used twice.
    """
    if not tokens:
        return
    if min(tokens) < 0 or max(tokens) >= MAX_TOKENS:
        raise CheckpointError(file, f"token ids {min(tokens)} to {max(tokens)}", f"expected ids from 0 to {MAX_TOKENS}")
    gaps = [id for id in range(tokenizer.get_vocab_size(), max(tokens)) if id not in tokens]
    if len(gaps) > MAX_GAPS:
        raise CheckpointError(file, max(tokens), f"is the id of a token, but {len(gaps)} before it are of none")
    filled = {id: AddedToken(f"<|unused_{id}|>", special=True, normalized=False) for id in gaps}
    ordered = sorted((filled | dict(tokens)).items())
    normalizer = tokenizer.normalizer
    for id, token in ordered:
        if normalizer is not None and token.normalized and not normalizer.normalize_str(token.content):
            # The library would find it everywhere, even within a character.
            raise CheckpointError(file, {token.content: id}, "is nothing once it is normalised, as an added token is")
    tokenizer.add_tokens([token for _, token in ordered])  # pyright: ignore[reportUnknownMemberType] - a bare list
    for id, token in ordered:
        if (found := tokenizer.token_to_id(token.content)) != id:
            raise CheckpointError(file, {token.content: id}, f"the token cannot have this id: its text has {found}")


def surround(tokenizer: Tokenizer, before: str | None, behind: str | None, file: str) -> None:
    """Put a token before, and one behind, each text that is encoded with special tokens."""
    around: list[dict[str, object]] = []
    for alias, text in (("before", before), ("behind", behind)):
        if text is None:
            continue
        if (id := tokenizer.token_to_id(text)) is None:
            raise CheckpointError(file, text, f"is to stand {alias} every text, but the vocabulary has no such token")
        around.append({"id": alias, "ids": [id], "tokens": [text]})
    if not around:
        return
    single = ["before"] * (before is not None) + ["$A"] + ["behind"] * (behind is not None)
    pair = [*single, *("$B" if name == "$A" else name for name in single)]
    tokenizer.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=around)
