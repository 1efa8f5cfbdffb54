"""Prompts with a gap: the families' tokens in their order, and tokenizers without them."""

import pytest
from tokenizers import AddedToken, Tokenizer

from triolet.actors.tokenizer.fill_in_middle import FAMILIES, GapTokens
from triolet.actors.tokenizer.text_tokenizer import TextTokenizer
from triolet.protocol.errors import ApiError
from triolet.protocol.requests import TextPrompt

GAP = TextPrompt(text="the fox", suffix=" over the dog")


def encode(tokenizer: TextTokenizer, prompt: TextPrompt) -> list[str | None]:
    ids = tokenizer.encode(prompt, context_length=100, vocab_size=1000)
    return [tokenizer.tokenizer.id_to_token(id) for id in ids]


@pytest.mark.parametrize("family", FAMILIES)
def test_prefix_then_suffix_then_what_is_to_be_filled_in(text_tokenizer: TextTokenizer, family: GapTokens) -> None:
    known = Tokenizer.from_str(text_tokenizer.tokenizer.to_str())
    known.add_special_tokens([AddedToken(text, special=True) for text in family])  # pyright: ignore[reportUnknownMemberType]  # an untyped list
    text, suffix = (known.encode(part, add_special_tokens=False).tokens for part in (GAP.text, GAP.suffix))
    found = encode(TextTokenizer(known, None), GAP)
    assert found[-len(text) - len(suffix) - 3 :] == [family.prefix, *text, family.suffix, *suffix, family.middle]


def test_a_tokenizer_without_such_tokens_refuses_a_suffix(text_tokenizer: TextTokenizer) -> None:
    with pytest.raises(ApiError, match="suffix: this model's tokenizer has no fill-in-the-middle tokens") as caught:
        encode(text_tokenizer, GAP)
    assert caught.value.param == "suffix"
    assert encode(text_tokenizer, TextPrompt(text="the fox", suffix="")) == encode(
        text_tokenizer, TextPrompt(text="the fox")
    )
