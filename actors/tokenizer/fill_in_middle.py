"""Prompts with a gap: the model writes what belongs between a text and a suffix. Pure.

Models for code learn this with three control tokens, in this order: PREFIX text SUFFIX suffix MIDDLE. What follows is
the answer. Which tokens these are is a matter of the tokenizer; families share them.
"""

from typing import Final, NamedTuple

from tokenizers import Tokenizer

from ...protocol.errors import ApiError


class GapTokens(NamedTuple):
    prefix: str
    suffix: str
    middle: str


FAMILIES: Final = (
    GapTokens("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    GapTokens("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    GapTokens("▁<PRE>", "▁<SUF>", "▁<MID>"),  # CodeLlama
    GapTokens("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder
)


def gap_ids(tokenizer: Tokenizer) -> tuple[int, int, int] | None:
    """The ids of a tokenizer's three tokens; None if it has none."""
    for family in FAMILIES:
        prefix, suffix, middle = map(tokenizer.token_to_id, family)
        if prefix is not None and suffix is not None and middle is not None:
            return prefix, suffix, middle
    return None


def fill_in_prompt(tokenizer: Tokenizer, text: str, suffix: str, *, prepends_space: bool) -> list[int]:
    """The ids of a prompt with a gap, without a beginning of text. Raises ApiError (400) if the model knows none."""
    found = gap_ids(tokenizer)
    if found is None:
        message = "suffix: this model's tokenizer has no fill-in-the-middle tokens; leave suffix out."
        raise ApiError("unsupported_parameter", message, param="suffix")
    before, between, behind = found
    parts = [_ids_of(tokenizer, part, prepends_space=prepends_space) for part in (text, suffix)]
    return [before, *parts[0], between, *parts[1], behind]


def _ids_of(tokenizer: Tokenizer, text: str, *, prepends_space: bool) -> list[int]:
    if prepends_space:  # SentencePiece begins every text with a space, which is not in these
        return [token.id for token in tokenizer.model.tokenize(text.replace(" ", "▁"))] if text else []
    return tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
