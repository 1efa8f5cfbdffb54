"""What stands around the vocabularies, flags, added tokens and templates; and what is behind them works with each."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher
from tokenizers import Tokenizer

from triolet.actors.detokenizer.incremental_text import incremental_text
from triolet.actors.tokenizer.text_tokenizer import TextTokenizer, load_text_tokenizer
from triolet.actors.tokenizer.vocabulary import Vocabulary
from triolet.models.checkpoint.grammar import open_grammar_tokenizer
from triolet.models.checkpoint.text import splits, tiktoken
from triolet.models.checkpoint.text.gguf import GgufText
from triolet.models.checkpoint.text.text_files import read_text_files, tokenizer_json
from triolet.models.errors import CheckpointError, UnsupportedModel
from triolet.protocol.requests import ChatMessage, ChatPrompt, TextPrompt

from .vocabularies import CONTROL, byte_level_metadata, ranks, read, sentencepiece_metadata, tekken, write

TEMPLATE = "{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}"
SAID = "Größe: 12 😀\n\t 我能 </s><|open|>x"


def sentencepiece(folder: Path, **config: object) -> Path:
    (folder / "tokenizer.model").write_bytes(read("bpe.model"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE} | config))
    return folder


def unigram(folder: Path) -> Path:
    (sentencepiece(folder) / "tokenizer.model").write_bytes(read("unigram.model"))
    return folder


def with_tekken(folder: Path) -> Path:
    (folder / "tekken.json").write_text(json.dumps(tekken()))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def with_ranks(folder: Path) -> Path:
    (folder / "small.tiktoken").write_bytes(read("ranks.tiktoken"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def in_gguf(metadata: dict[str, Any]) -> Callable[[Path], Path]:
    return lambda folder: write(folder / "m.gguf", metadata | {"tokenizer.chat_template": TEMPLATE})


SOURCES: dict[str, Callable[[Path], Path]] = {
    "tokenizer.model": sentencepiece,
    "unigram": unigram,
    "tekken.json": with_tekken,
    "tiktoken": with_ranks,
    "gpt2 in GGUF": in_gguf(byte_level_metadata("llama-bpe")),
    "llama in GGUF": in_gguf(sentencepiece_metadata()),
}


@pytest.fixture(autouse=True)
def small_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiktoken.FAMILIES, len(ranks()), tiktoken.Family(splits.CL100K, tuple(CONTROL)))


@pytest.fixture(params=SOURCES)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return SOURCES[request.param](tmp_path)


def ids_of(tokenizer: TextTokenizer, text: str) -> tuple[int, ...]:
    return tokenizer.encode(
        TextPrompt(text=text, add_special_tokens=False), context_length=10_000, vocab_size=tokenizer.vocabulary.size
    )


def test_a_stream_spells_what_was_tokenised(model: Path) -> None:
    loaded = load_text_tokenizer(str(model))
    # SentencePiece puts a space behind a control token.
    text = SAID.partition("</s>")[0] if loaded.vocabulary.strips_first_space else SAID
    stream = incremental_text(loaded.tokenizer, loaded.vocabulary, (), skip_special=False)
    ids = ids_of(loaded, text)
    spelt = "".join(stream.decode([id]) for id in ids) + stream.finish()
    assert spelt == loaded.tokenizer.decode(list(ids), skip_special_tokens=False)
    if loaded.tokenizer.token_to_id("<unk>") not in ids:
        assert spelt == text


def test_every_token_has_the_bytes_that_the_library_decodes(model: Path) -> None:
    tokenizer = load_text_tokenizer(str(model)).tokenizer
    vocabulary = Vocabulary(tokenizer)
    assert vocabulary.spells_bytes
    first = tokenizer.encode("a", add_special_tokens=False).ids[0]  # so that no first space is stripped
    for id in range(vocabulary.size):
        whole = tokenizer.decode([first, id], skip_special_tokens=False)
        expected = whole.removeprefix(tokenizer.decode([first], skip_special_tokens=False))
        assert vocabulary.piece_bytes(id).decode(errors="replace") == expected, tokenizer.id_to_token(id)


def test_what_a_client_writes_is_no_control_token(model: Path) -> None:
    loaded = load_text_tokenizer(str(model))
    words = [text for text in (*CONTROL, "<ctl>", "<unk>") if loaded.tokenizer.token_to_id(text) is not None]
    said = "".join(f"{word} a{word}" for word in words)

    def ids(text: str) -> tuple[int, ...]:
        prompt = ChatPrompt(messages=(ChatMessage(role="user", content=text),))
        return loaded.encode(prompt, context_length=10_000, vocab_size=loaded.vocabulary.size)

    control = loaded.vocabulary.special - {loaded.tokenizer.token_to_id("<unk>")}
    assert sum(id in control for id in ids(said)) == sum(id in control for id in ids("x")) == 2
    assert any(id in control for id in ids_of(loaded, said))  # a raw prompt may hold them


def test_a_text_that_is_a_token_of_the_vocabulary_does_not_become_a_control_token() -> None:
    """Some vocabularies take a whole part of a text for a token before anything is merged."""
    metadata = byte_level_metadata("llama-bpe")
    metadata["tokenizer.ggml.tokens"][-1] = "forty"  # one part of the text, for every expression
    plain = metadata | {"tokenizer.ggml.token_type": metadata["tokenizer.ggml.token_type"].value}
    loaded = TextTokenizer(GgufText(plain).tokenizer(), None)
    control = loaded._control
    assert [token.id for token in loaded.tokenizer.model.tokenize("forty")] == [loaded.vocabulary.size - 1]
    ids = control.encode("f12345orty", "12345", 100)
    assert loaded.vocabulary.size - 1 not in ids
    assert loaded.tokenizer.decode(ids) == "forty"


def test_grammars_know_the_tokens(model: Path) -> None:
    tokenizer = read_text_files(model).tokenizer
    end = tokenizer.token_to_id("</s>")
    assert end is not None
    view = open_grammar_tokenizer(str(model), tokenizer.get_vocab_size(), (end,))
    matcher = LLMatcher(view, json.dumps({"grammars": [{"lark_grammar": 'start: " a" "b"'}]}))
    ids = [token.id for token in tokenizer.model.tokenize("▁ab" if "▁" in tokenizer.get_vocab() else "Ġab")]
    assert matcher.consume_tokens(ids), matcher.get_error()
    assert matcher.is_accepting()


def test_the_same_tokenizer_as_json(model: Path) -> None:
    once, again = read_text_files(model).tokenizer, Tokenizer.from_str(tokenizer_json(model))
    assert again.encode(SAID).ids == once.encode(SAID).ids


def test_what_stands_around_a_text(tmp_path: Path) -> None:
    def around(**config: object) -> tuple[str, str]:
        tokens = read_text_files(sentencepiece(tmp_path, **config)).tokenizer.encode("a").tokens
        return tokens[0], tokens[-1]

    assert around() == ("<s>", "▁a")
    assert around(add_bos_token=False) == ("▁a", "▁a")
    assert around(add_eos_token=True, eos_token="<ctl>") == ("<s>", "<ctl>")
    with pytest.raises(CheckpointError, match="the vocabulary has no such token"):
        around(add_eos_token=True, eos_token="<nowhere>")


def test_added_tokens_have_the_ids_of_the_files(tmp_path: Path) -> None:
    described = {"561": {"content": "<|tool|>", "special": False, "rstrip": True}, "560": {"content": "<|im_end|>"}}
    folder = sentencepiece(tmp_path, added_tokens_decoder=described)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|last|>": 563}))
    tokenizer = read_text_files(folder).tokenizer
    assert tokenizer.encode("<|tool|>  <|im_end|><|last|>", add_special_tokens=False).ids == [561, 560, 563]
    assert tokenizer.id_to_token(562) == "<|unused_562|>"
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|tool|>": 7}))
    with pytest.raises(CheckpointError, match="cannot have this id"):
        read_text_files(folder)


def test_only_the_first_text_gets_a_space_if_the_folder_says_so(tmp_path: Path) -> None:
    def tokens(**config: object) -> list[str]:
        tokenizer = read_text_files(sentencepiece(tmp_path, **config)).tokenizer
        return tokenizer.encode("a</s>a", add_special_tokens=False).tokens

    assert tokens() == ["▁a", "</s>", "▁a"]
    assert tokens(legacy=False) == ["▁a", "</s>", "a"]
    assert tokens(add_prefix_space=False) == ["a", "</s>", "a"]


def test_templates_and_special_tokens_of_a_gguf_file(tmp_path: Path) -> None:
    named = {"tokenizer.chat_template": "one", "tokenizer.chat_template.rag": "two"}
    files = read_text_files(write(tmp_path / "m.gguf", byte_level_metadata("llama-bpe") | named))
    assert files.templates == {"default": "one", "rag": "two"}
    assert files.special_tokens == {"bos_token": "<|open|>", "eos_token": "</s>"}
    assert files.tokenizer.encode("a").tokens == ["<|open|>", "a"]
    without = byte_level_metadata("llama-bpe") | {"tokenizer.ggml.add_bos_token": False}
    assert read_text_files(write(tmp_path / "m.gguf", without)).tokenizer.encode("a").tokens == ["a"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "rwkv"}, r"tokenizer\.ggml\.model = 'rwkv'"),
        ({"tokenizer.ggml.pre": "of-tomorrow"}, r"tokenizer\.ggml\.pre = 'of-tomorrow': .* is known for .*llama-bpe"),
    ],
)
def test_an_unknown_kind_of_vocabulary_is_refused_by_name(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read_text_files(write(tmp_path / "m.gguf", byte_level_metadata("gpt-2") | change))


def test_vocabularies_whose_ids_are_moved_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"XLMRobertaTokenizer.*save it as tokenizer\.json"):
        read_text_files(sentencepiece(tmp_path, tokenizer_class="XLMRobertaTokenizer"))


def test_ranks_of_an_unknown_family_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(tiktoken.FAMILIES, len(ranks()))
    with pytest.raises(UnsupportedModel, match=r"number of ranks = 600: .* 128000"):
        read_text_files(with_ranks(tmp_path))
