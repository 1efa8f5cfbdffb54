"""A small real tokenizer, and the makers of wiring.py as fixtures."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from triolet.actors.tokenizer.text_tokenizer import TextTokenizer, load_text_tokenizer
from triolet.protocol.requests import Generate
from triolet.protocol.steps import Ready

from .wiring import Wired, generate, make_ready, wire

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role ' + message.role) }}"
    "{% endif %}"
    "<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
CORPUS = [
    "the quick brown fox jumps over the lazy dog ",
    "naïve café 漢字 漢字かな 🙂🙃 ",
    "one two three four stop END ",
] * 20


def train_byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|start|>", "<|end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_byte_level().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    (folder / "tokenizer_config.json").write_text('{"eos_token": {"content": "<|end|>"}, "bos_token": null}')
    return folder


@pytest.fixture(scope="session")
def text_tokenizer(tokenizer_folder: Path) -> TextTokenizer:
    return load_text_tokenizer(str(tokenizer_folder))


@pytest.fixture
def wired() -> Callable[..., Wired]:
    return wire


@pytest.fixture(name="generate")
def generate_fixture() -> Callable[..., Generate]:
    return generate


@pytest.fixture(name="make_ready")
def make_ready_fixture() -> Callable[..., Ready]:
    return make_ready
