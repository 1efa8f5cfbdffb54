"""A small real tokenizer, and the gateway wired to channels that a test reads itself."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import trio
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from triolet.actors.gateway import Gateway
from triolet.actors.text_tokenizer import TextTokenizer, load_text_tokenizer
from triolet.protocol.messages import ToScheduler, ToTokenizer
from triolet.protocol.requests import Generate, TextPrompt
from triolet.protocol.sampling import Sampling
from triolet.protocol.settings import LimitSettings
from triolet.protocol.steps import MemoryPlan, Ready

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


class Wired(NamedTuple):
    """A gateway and the channels behind it."""

    gateway: Gateway
    tokenizer: trio.MemoryReceiveChannel[ToTokenizer]
    scheduler: trio.MemoryReceiveChannel[ToScheduler]
    to_scheduler: trio.MemorySendChannel[ToScheduler]

    def scheduler_messages(self) -> list[ToScheduler]:
        messages: list[ToScheduler] = []
        while True:
            try:
                messages.append(self.scheduler.receive_nowait())
            except trio.WouldBlock:
                return messages


def wire(limits: LimitSettings | None = None) -> Wired:
    limits = limits or LimitSettings()
    to_tokenizer, tokenizer = trio.open_memory_channel[ToTokenizer](limits.max_requests)
    to_scheduler, scheduler = trio.open_memory_channel[ToScheduler](1000)
    gateway = Gateway(limits, tokenizer=to_tokenizer, scheduler=to_scheduler)
    return Wired(gateway, tokenizer, scheduler, to_scheduler)


@pytest.fixture
def wired() -> Callable[..., Wired]:
    return wire


def generate(id: str = "r1", **changes: object) -> Generate:
    fields: dict[str, object] = {"prompts": (TextPrompt(text="the fox"),), "sampling": Sampling(), "max_tokens": 16}
    return Generate(id=id, model="tiny", **(fields | changes))  # type: ignore[arg-type]  # fields of any type


@pytest.fixture(name="generate")
def generate_fixture() -> Callable[..., Generate]:
    return generate


def make_ready(**changes: object) -> Ready:
    fields: dict[str, object] = {
        "model": "tiny",
        "architecture": "LlamaForCausalLM",
        "parameters": 1000,
        "device": "cpu",
        "dtype": "float32",
        "quantize": "none",
        "context_length": 256,
        "vocab_size": 400,
        "eos_token_ids": (1,),
        "max_step_tokens": 64,
        "max_running": 8,
        "memory": MemoryPlan(
            weights_bytes=1,
            workspace_bytes=1,
            kv_bytes=1,
            num_blocks=16,
            block_size=64,
            sequences_at_full_length=4.0,
        ),
        "sampling_defaults": {},
        "versions": {},
        "pid": 1,
    }
    return Ready(**(fields | changes))  # type: ignore[arg-type]  # fields of any type


@pytest.fixture(name="make_ready")
def make_ready_fixture() -> Callable[..., Ready]:
    return make_ready
