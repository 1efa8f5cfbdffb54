"""The tokenizer actor and what it refuses."""

import gc
import logging
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing
from tokenizers import Regex, Tokenizer
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing

from triolet.actors.errors import EngineLoadError
from triolet.actors.tokenizer.text_tokenizer import TextTokenizer, load_text_tokenizer
from triolet.actors.tokenizer.tokenizer import MAX_WAITING, TokenizerLane, run_tokenizer
from triolet.protocol.errors import ApiError
from triolet.protocol.events import Failed
from triolet.protocol.messages import ToAdmission
from triolet.protocol.requests import ChatMessage, ChatPrompt, Generate, Prompt, TextPrompt, TokenPrompt
from triolet.protocol.steps import Ready

from ..wiring import Wired


def encode(tokenizer: TextTokenizer, prompt: Prompt, context_length: int = 100) -> tuple[int, ...]:
    return tokenizer.encode(prompt, context_length=context_length, vocab_size=400)


def test_chat_is_the_template_then_the_tokenizer(text_tokenizer: TextTokenizer) -> None:
    ids = encode(text_tokenizer, ChatPrompt(messages=(ChatMessage(role="user", content="the fox"),)))
    text = text_tokenizer.decode(ids, vocab_size=400)
    assert text == "<|start|>user\nthe fox<|end|>\n<|start|>assistant\n"
    assert ids[0] == text_tokenizer.tokenizer.token_to_id("<|start|>")


@pytest.mark.parametrize(
    ("prompt", "code", "param"),
    [
        (TokenPrompt(token_ids=(3, 400)), "invalid_token_id", "prompt"),
        (TokenPrompt(token_ids=(-1,)), "invalid_token_id", "prompt"),
        (TextPrompt(text="x" * 100_000), "context_length_exceeded", "prompt"),
        (TextPrompt(text="\ud800"), "invalid_value", "prompt"),
        (ChatPrompt(messages=(ChatMessage(role="wizard", content="x"),)), "invalid_messages", "messages"),
        (ChatPrompt(messages=(ChatMessage(role="user", content="x" * 10**5),)), "context_length_exceeded", "messages"),
    ],
)
def test_refusals(text_tokenizer: TextTokenizer, prompt: Prompt, code: str, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        encode(text_tokenizer, prompt)
    assert (caught.value.code, caught.value.param) == (code, param)


def test_a_model_without_a_template_refuses_chat(text_tokenizer: TextTokenizer) -> None:
    plain = TextTokenizer(text_tokenizer.tokenizer, None)
    with pytest.raises(ApiError, match="no chat template; use /v1/completions"):
        encode(plain, ChatPrompt(messages=(ChatMessage(role="user", content="x"),)))


def test_a_folder_without_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(EngineLoadError, match=r"has no tokenizer; one of tokenizer\.json"):
        load_text_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(EngineLoadError, match="cannot be read"):
        load_text_tokenizer(str(tmp_path))


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_files_may_not_link_out_of_the_checkpoint(tokenizer_folder: Path, tmp_path: Path, name: str) -> None:
    secret = tmp_path / "secret"
    folder = tmp_path / "model"
    shutil.copytree(tokenizer_folder, folder)
    (folder / name).rename(secret)
    (folder / name).symlink_to(secret)
    with pytest.raises(EngineLoadError, match=f"{name}.* links to a place outside"):
        load_text_tokenizer(str(folder))


def test_the_links_of_hugging_faces_cache_are_followed(tokenizer_folder: Path, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "snapshots" / "revision", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    shutil.copytree(tokenizer_folder, blobs)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    assert load_text_tokenizer(str(snapshot)).templates is not None


async def test_the_actor_answers_everyone_and_skips_the_cancelled(
    wired: Callable[..., Wired],
    generate: Callable[..., Generate],
    make_ready: Callable[..., Ready],
    text_tokenizer: TextTokenizer,
) -> None:
    house = wired()
    bad = generate("bad", prompts=(TokenPrompt(token_ids=(999,)),))
    outboxes = {request.id: house.gateway.submit(request) for request in (generate("good"), bad, generate("gone"))}
    house.gateway.cancel("gone")
    send, receive = trio.open_memory_channel[ToAdmission](3)
    async with trio.open_nursery() as nursery:
        lane = TokenizerLane(text_tokenizer, make_ready())
        nursery.start_soon(lambda: run_tokenizer(house.tokenizer, send, send.clone(), lane=lane, gateway=house.gateway))
        tokenized = await receive.receive()
        assert tokenized.request.id == "good"
        assert tokenized.prompts == (tuple(text_tokenizer.tokenizer.encode("the fox").ids),)
        (failed,) = await outboxes["bad"].drain()
        assert isinstance(failed, Failed)
        assert failed.code == "invalid_token_id"
        assert await lane.detokenize(tokenized.prompts[0]) == "the fox"
        with pytest.raises(ApiError):
            await lane.detokenize((400,))
        nursery.cancel_scope.cancel()
    with pytest.raises(trio.EndOfChannel):
        receive.receive_nowait()


class Tripping(TextTokenizer):
    """The real one, which fails on one text as the library might."""

    def __init__(self, real: TextTokenizer, error: BaseException) -> None:
        super().__init__(real.tokenizer, real.templates)
        self.error = error

    def encode(self, prompt: Prompt, *, context_length: int, vocab_size: int) -> tuple[int, ...]:
        if isinstance(prompt, TextPrompt) and prompt.text == "trip":
            raise self.error
        return super().encode(prompt, context_length=context_length, vocab_size=vocab_size)


class Panic(BaseException):
    """As a panic of the library comes: no Exception."""


@pytest.mark.parametrize("error", [RuntimeError("no such merge"), Panic("index out of bounds")])
async def test_a_text_on_which_the_library_fails_ends_its_own_request_alone(
    wired: Callable[..., Wired],
    generate: Callable[..., Generate],
    make_ready: Callable[..., Ready],
    text_tokenizer: TextTokenizer,
    caplog: pytest.LogCaptureFixture,
    error: BaseException,
) -> None:
    caplog.set_level(logging.ERROR, "triolet.tokenizer")
    house = wired()
    outbox = house.gateway.submit(generate("bad", prompts=(TextPrompt(text="trip"),)))
    house.gateway.submit(generate("good"))
    send, receive = trio.open_memory_channel[ToAdmission](3)
    async with trio.open_nursery() as nursery:
        lane = TokenizerLane(Tripping(text_tokenizer, error), make_ready())
        nursery.start_soon(lambda: run_tokenizer(house.tokenizer, send, send.clone(), lane=lane, gateway=house.gateway))
        assert (await receive.receive()).request.id == "good"
        (failed,) = await outbox.drain()
        assert isinstance(failed, Failed)
        assert failed.code == "internal_error"
        (record,) = caplog.records
        assert "bad" in record.getMessage()
        assert record.exc_info
        with pytest.raises(ApiError) as caught:
            await lane.tokenize(TextPrompt(text="trip"))
        assert (caught.value.code, caught.value.status) == ("internal_error", 500)
        assert await lane.tokenize(TextPrompt(text="the fox"))
        nursery.cancel_scope.cancel()


async def test_a_pattern_that_backtracks_without_end_fails_its_text_alone(
    make_ready: Callable[..., Ready], text_tokenizer: TextTokenizer
) -> None:
    """The library gives a match up after ten million tries, 0.2 s; docs/security.md relies on it."""
    hostile = Tokenizer.from_str(text_tokenizer.tokenizer.to_str())
    hostile.pre_tokenizer = Split(Regex(r"(a+)+$"), "isolated")
    lane = TokenizerLane(TextTokenizer(hostile, None), make_ready())
    with pytest.raises(ApiError) as caught:
        await lane.tokenize(TextPrompt(text="a" * 60 + "b"))
    assert caught.value.code == "internal_error"
    assert await lane.tokenize(TextPrompt(text="the fox"))


class Watched(TextTokenizer):
    """The real one, which notes in which thread it works."""

    def __init__(self, real: TextTokenizer) -> None:
        super().__init__(real.tokenizer, real.templates)
        self.own_thread: list[bool] = []

    def encode(self, prompt: Prompt, *, context_length: int, vocab_size: int) -> tuple[int, ...]:
        self.own_thread.append(threading.current_thread() is not threading.main_thread())
        return super().encode(prompt, context_length=context_length, vocab_size=vocab_size)


@pytest.mark.parametrize(
    ("prompts", "own_thread"),
    [
        ([TextPrompt(text="the fox")], False),
        ([TokenPrompt(token_ids=(5,) * 1000)], False),
        ([ChatPrompt(messages=(ChatMessage(role="user", content="the fox"),))], False),
        ([TextPrompt(text="a" * 200)], True),
        ([ChatPrompt(messages=(ChatMessage(role="user", content="a" * 200),))], True),
        ([ChatPrompt(messages=(ChatMessage(role="user", content="a", name="a" * 200),))], True),
        ([ChatPrompt(messages=(ChatMessage(role="assistant", reasoning_content="a" * 200),))], True),
        ([ChatPrompt(messages=(ChatMessage(role="user", content="a"),), documents=({"text": "a"},))], True),
        ([TextPrompt(text="the fox"), TextPrompt(text="a" * 200)], True),
    ],
)
async def test_only_what_is_shorter_than_a_hop_does_without_the_thread(
    generate: Callable[..., Generate],
    make_ready: Callable[..., Ready],
    text_tokenizer: TextTokenizer,
    prompts: list[Prompt],
    own_thread: bool,
) -> None:
    watched = Watched(text_tokenizer)
    requests = [generate(str(number), prompts=(prompt,)) for number, prompt in enumerate(prompts)]
    await TokenizerLane(watched, make_ready()).prepare(requests)
    assert watched.own_thread == [own_thread] * len(prompts)


class Held(TextTokenizer):
    """The real one, which decodes once it is let."""

    def __init__(self, real: TextTokenizer) -> None:
        super().__init__(real.tokenizer, real.templates)
        self.go = threading.Event()

    def decode(self, ids: tuple[int, ...], *, vocab_size: int) -> str:
        self.go.wait()
        return super().decode(ids, vocab_size=vocab_size)


async def test_direct_calls_wait_in_a_bounded_line_and_requests_pass_it(
    generate: Callable[..., Generate], make_ready: Callable[..., Ready], text_tokenizer: TextTokenizer
) -> None:
    held = Held(text_tokenizer)
    lane = TokenizerLane(held, make_ready())
    order: list[str] = []

    async def decode() -> None:
        await lane.detokenize((5,))
        order.append("direct")

    async def prepare() -> None:
        await lane.prepare([generate(prompts=(TextPrompt(text="a" * 200),))])  # too long to do without the thread
        order.append("request")

    try:
        async with trio.open_nursery() as nursery:
            for _ in range(1 + MAX_WAITING):
                nursery.start_soon(decode)
            await trio.testing.wait_all_tasks_blocked()
            for call in (lane.tokenize(TextPrompt(text="a")), lane.detokenize((5,))):
                with pytest.raises(ApiError) as caught:
                    await call
                assert (caught.value.code, caught.value.retry_after) == ("server_overloaded", 1)
            nursery.start_soon(prepare)
            await trio.testing.wait_all_tasks_blocked()
            held.go.set()
    finally:
        held.go.set()
    assert order.index("request") <= 2
    assert order.count("direct") == 1 + MAX_WAITING
    assert await lane.tokenize(TextPrompt(text="a"))  # the line is empty again


async def test_a_flood_of_one_key_lets_another_go_between(
    wired: Callable[..., Wired],
    generate: Callable[..., Generate],
    make_ready: Callable[..., Ready],
    text_tokenizer: TextTokenizer,
) -> None:
    house = wired()
    for tenant, count in (("a", 40), ("b", 1)):
        for number in range(count):
            prompt = TextPrompt(text="the quick brown fox " * 10)
            house.gateway.submit(generate(f"{tenant}{number}", prompts=(prompt,), tenant=tenant))
    send, receive = trio.open_memory_channel[ToAdmission](100)
    async with trio.open_nursery() as nursery:
        lane = TokenizerLane(text_tokenizer, make_ready())
        nursery.start_soon(lambda: run_tokenizer(house.tokenizer, send, send.clone(), lane=lane, gateway=house.gateway))
        order = [(await receive.receive()).request.id for _ in range(41)]
        nursery.cancel_scope.cancel()
    assert order == ["a0", "b0", *(f"a{number}" for number in range(1, 40))]


class Text(str):
    """Text that a weak reference can watch."""

    __slots__ = ("__weakref__",)


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("text", ["x" * 100_000, "\ud800"])
async def test_the_text_of_a_refused_request_is_freed_without_a_garbage_collection(
    wired: Callable[..., Wired],
    generate: Callable[..., Generate],
    make_ready: Callable[..., Ready],
    text_tokenizer: TextTokenizer,
    text: str,
) -> None:
    house = wired()
    watched = Text(text)
    freed = weakref.ref(watched)
    outbox = house.gateway.submit(generate("bad", prompts=(TextPrompt(text=watched),)))
    del watched
    send, _receive = trio.open_memory_channel[ToAdmission](3)
    async with trio.open_nursery() as nursery:
        lane = TokenizerLane(text_tokenizer, make_ready())
        nursery.start_soon(lambda: run_tokenizer(house.tokenizer, send, send.clone(), lane=lane, gateway=house.gateway))
        (failed,) = await outbox.drain()
        assert isinstance(failed, Failed)
        house.gateway.submit(generate("bad too", prompts=(TextPrompt(text="\ud800"),)))
        await trio.testing.wait_all_tasks_blocked()  # until the actor's own variables hold the next request
        assert freed() is None
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_long_prompt_is_cut_and_keeps_what_the_tokenizer_adds(text_tokenizer: TextTokenizer, side: str) -> None:
    dressed = Tokenizer.from_str(text_tokenizer.tokenizer.to_str())
    special = [(text, dressed.token_to_id(text)) for text in ("<|start|>", "<|end|>")]
    dressed.post_processor = TemplateProcessing(single="<|start|> $A <|end|>", special_tokens=special)
    tokenizer = TextTokenizer(dressed, None)
    prompt = TextPrompt(text="the fox jumps over the lazy dog")
    start, *body, end = encode(tokenizer, prompt)
    for most in range(1, len(body) + 3):
        ids = tokenizer.truncate(prompt, (start, *body, end), most, side)
        assert len(ids) == most
        if most >= 3:
            kept = body[: most - 2] if side == "right" else body[len(body) - (most - 2) :]
            assert ids == (start, *kept, end)
    tokens = TokenPrompt(token_ids=tuple(range(9)))
    cut = tokenizer.truncate(tokens, tokens.token_ids, 4, side)
    assert cut == ((0, 1, 2, 3) if side == "right" else (5, 6, 7, 8))
    assert tokenizer.truncate(tokens, tokens.token_ids, 9, side) == tokens.token_ids
