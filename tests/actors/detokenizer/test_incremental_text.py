"""Incremental decoding equals decoding everything at once, whatever the tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from triolet.actors.detokenizer.incremental_text import ByteText, WindowText, incremental_text
from triolet.actors.tokenizer.text_tokenizer import TextTokenizer
from triolet.actors.tokenizer.vocabulary import Vocabulary


def token_of(tokenizer: Tokenizer, piece: str) -> int:
    found = tokenizer.token_to_id(piece)
    assert found is not None
    return found


@given(ids=st.lists(st.integers(0, 399), max_size=60), skip=st.booleans())
def test_byte_level_stream_equals_one_decode(text_tokenizer: TextTokenizer, ids: list[int], skip: bool) -> None:
    """Random ids are mostly broken UTF-8: every error must be replaced at the same place."""
    tokenizer, vocabulary = text_tokenizer.tokenizer, text_tokenizer.vocabulary
    stream = incremental_text(tokenizer, vocabulary, (), skip_special=skip)
    assert isinstance(stream, ByteText)
    text = "".join(stream.decode([id]) for id in ids) + stream.finish()
    assert text == tokenizer.decode(ids, skip_special_tokens=skip)


@given(
    ids=st.lists(st.integers(0, 399), max_size=60), sizes=st.lists(st.integers(1, 9), min_size=60), skip=st.booleans()
)
def test_tokens_fed_together_give_what_they_give_one_by_one(
    text_tokenizer: TextTokenizer, ids: list[int], sizes: list[int], skip: bool
) -> None:
    tokenizer, vocabulary = text_tokenizer.tokenizer, text_tokenizer.vocabulary
    streams = [incremental_text(tokenizer, vocabulary, (), skip_special=skip) for _ in range(2)]
    streams += [WindowText(tokenizer, (), skip_special=skip) for _ in range(2)]
    for size in sizes:
        fed, ids = ids[:size], ids[size:]
        for together, single in (streams[:2], streams[2:]):
            assert together.decode(fed) == "".join(single.decode([id]) for id in fed)


def test_a_character_of_several_tokens_appears_when_it_is_complete(text_tokenizer: TextTokenizer) -> None:
    vocabulary = text_tokenizer.vocabulary
    by_bytes = {vocabulary.piece_bytes(id): id for id in range(vocabulary.size)}
    ids = [by_bytes[bytes([byte])] for byte in "é🦊".encode()]
    stream = ByteText(vocabulary)
    assert [stream.decode([id]) for id in ids] == ["", "é", "", "", "", "🦊"]
    assert stream.decode([ids[2]]) == ""
    assert stream.finish() == "\N{REPLACEMENT CHARACTER}"


def test_a_prompt_that_ends_inside_a_character_is_continued(text_tokenizer: TextTokenizer) -> None:
    vocabulary = text_tokenizer.vocabulary
    by_bytes = {vocabulary.piece_bytes(id): id for id in range(vocabulary.size)}
    ids = [by_bytes[bytes([byte])] for byte in "🦊!".encode()]
    stream = ByteText(vocabulary, tuple(ids[:2]))
    assert stream.decode(ids[2:]) == "🦊!"


def sentencepiece_like() -> Tokenizer:
    """The decoder of a Llama 2 tokenizer over a handful of pieces and all bytes."""
    words = ["▁the", "▁fox", "▁", "s", "漢", "▁é", "<s>"]
    pieces = [f"<0x{byte:02X}>" for byte in range(256)] + words
    vocabulary = {piece: id for id, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<s>"))
    tokenizer.add_special_tokens(["<s>"])  # pyright: ignore[reportUnknownMemberType]  # tokenizers leaves it untyped
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


@given(
    parts=st.lists(
        st.one_of(
            st.sampled_from(["▁the", "▁fox", "▁", "s", "漢", "▁é", "<s>"]).map(lambda piece: [piece]),
            st.sampled_from("é漢🦊a\n").map(lambda char: [f"<0x{byte:02X}>" for byte in char.encode()]),
        ),
        max_size=30,
    )
)
def test_sentencepiece_stream_equals_one_decode(parts: list[list[str]]) -> None:
    tokenizer = sentencepiece_like()
    vocabulary = Vocabulary(tokenizer)
    ids = [token_of(tokenizer, piece) for part in parts for piece in part]
    stream = incremental_text(tokenizer, vocabulary, (), skip_special=True)
    assert isinstance(stream, ByteText)
    text = "".join(stream.decode([id]) for id in ids) + stream.finish()
    assert text == tokenizer.decode(ids, skip_special_tokens=True)


def test_sentencepiece_continues_a_prompt_with_its_space() -> None:
    tokenizer = sentencepiece_like()
    the, fox = token_of(tokenizer, "▁the"), token_of(tokenizer, "▁fox")
    stream = ByteText(Vocabulary(tokenizer), (the,))
    assert stream.decode([fox]) == " fox"  # alone, the tokenizer would strip the space


def word_pieces() -> Tokenizer:
    pieces = ["the", "fox", "##es", "##ed", "jump", "[PAD]"]
    tokenizer = Tokenizer(models.WordPiece(vocab={piece: id for id, piece in enumerate(pieces)}, unk_token="[PAD]"))
    tokenizer.add_special_tokens(["[PAD]"])  # pyright: ignore[reportUnknownMemberType]  # tokenizers leaves it untyped
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


@given(ids=st.lists(st.integers(0, 5), max_size=20), split=st.integers(0, 20))
def test_any_other_stream_equals_one_decode(ids: list[int], split: int) -> None:
    tokenizer = word_pieces()
    prompt = tuple(ids[:split])
    stream = incremental_text(tokenizer, Vocabulary(tokenizer), prompt, skip_special=True)
    assert isinstance(stream, WindowText)
    text = "".join(stream.decode([id]) for id in ids[split:]) + stream.finish()
    before = tokenizer.decode(list(prompt), skip_special_tokens=True)
    assert before + text == tokenizer.decode(ids, skip_special_tokens=True)


def test_vocabulary_bytes() -> None:
    vocabulary = Vocabulary(sentencepiece_like())
    tokenizer = sentencepiece_like()
    assert vocabulary.piece_bytes(0x0A) == b"\n"
    assert vocabulary.piece_bytes(token_of(tokenizer, "▁fox")) == b" fox"
    assert vocabulary.piece_bytes(10**6) == b""


@pytest.mark.parametrize("text", ["the fox", "naïve 漢字 🙂", "\x00\x7f ÿ"])
def test_byte_level_vocabulary_spells_the_text(text_tokenizer: TextTokenizer, text: str) -> None:
    ids = text_tokenizer.tokenizer.encode(text).ids
    assert b"".join(map(text_tokenizer.vocabulary.piece_bytes, ids)) == text.encode()
    assert text_tokenizer.vocabulary.max_token_bytes >= max(
        len(text_tokenizer.vocabulary.piece_bytes(id)) for id in range(400)
    )
