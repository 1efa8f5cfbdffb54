"""The bytes of a stream: compared with a golden file, and the spliced chunks with the encoded ones."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.protocol.errors import ApiError
from triolet.protocol.events import (
    ChoiceFinished,
    Finished,
    Started,
    StreamEvent,
    Token,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from triolet.protocol.openai_responses import ChatChunk, ChatChunkChoice, CompletionChunk, CompletionChunkChoice, Delta
from triolet.web.openai.answer import WholeAnswer
from triolet.web.openai.chunks import Chunks
from triolet.web.openai.dialect import CHAT, COMPLETIONS, Dialect, Reply

GOLDEN = Path(__file__).parent / "golden"

ODD = 'a "quote", a \\, a\nline, ü, 😀, \u2028, \x7f and "content":""'
LOGPROBS = (
    TokenLogprob(
        token_id=5,
        logprob=-0.5,
        text=b" b",
        text_offset=1,
        top=(TopLogprob(5, -0.5, b" b"), TopLogprob(6, float("-inf"), b"\xf0\x9f")),
    ),
)
EVENTS: list[StreamEvent] = [
    Started(id="r", model="tiny", prompt_tokens=7),
    Token(id="r", index=0, text="a", tokens=1),
    Token(id="r", index=1, text=ODD, tokens=1),
    Token(id="r", index=0, text="", tokens=1),  # held back
    Token(id="r", index=0, text=" b", tokens=1, logprobs=LOGPROBS),
    ChoiceFinished(id="r", index=1, reason="stop", stop_reason="END"),
    Finished(id="r", reason="deadline", usage=Usage(prompt_tokens=7, completion_tokens=5, cached_tokens=4)),
]


DIALECTS: dict[str, Dialect[Any]] = {"chat": CHAT, "completion": COMPLETIONS}


def reply(name: str, **options: Any) -> Reply:  # Any: of the fields of Reply
    dialect = DIALECTS[name]
    return Reply(dialect, dialect.id_prefix + "1", 1_700_000_000, 'the "model"', 2)._replace(**options)


def golden(name: str, data: bytes) -> None:
    assert data.decode() == (GOLDEN / name).read_text("utf-8")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_stream_is_the_golden_one(dialect: str) -> None:
    golden(f"{dialect}_stream.txt", Chunks(reply(dialect)).encode(EVENTS))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_stream_with_usage_is_the_golden_one(dialect: str) -> None:
    golden(f"{dialect}_stream_usage.txt", Chunks(reply(dialect, include_usage=True)).encode(EVENTS))


def test_usage_in_every_chunk_counts_up() -> None:
    chunks = Chunks(reply("chat", include_usage=True, continuous_usage=True))
    events = chunks.encode(EVENTS).decode().split("\n\n")
    counts = [json.loads(event.removeprefix("data: "))["usage"] for event in events if event.startswith("data: {")]
    assert [(usage["prompt_tokens"], usage["completion_tokens"]) for usage in counts] == [
        (7, 0), (7, 0), (7, 1), (7, 2), (7, 3), (7, 4), (7, 4), (7, 5), (7, 5),
    ]  # fmt: skip


def test_a_stop_token_counts_in_its_choices_last_chunk() -> None:
    chunks = Chunks(reply("completion", continuous_usage=True))
    chunks.encode([Started(id="r", model="tiny", prompt_tokens=7)])
    chunks.encode([Token(id="r", index=0, text="a", tokens=1)])
    end = chunks.encode([ChoiceFinished(id="r", index=0, reason="stop", stop_tokens=1)])
    usage = json.loads(end.removeprefix(b"data: "))["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (7, 2, 9)


@pytest.mark.parametrize("character", ["\x85", "\u2028", "\u2029", "\x0b", "\x1e"])
def test_no_text_splits_an_event(character: str) -> None:
    token = Token(id="r", index=0, text=f"a{character}b", tokens=1)
    line = Chunks(reply("chat")).encode([token]).decode()
    assert len(line.splitlines()) == 2  # the event, and the empty line that ends it
    choices = msgspec.json.decode(line.removeprefix("data: "), type=ChatChunk).choices
    assert choices[0].text.content == token.text


def test_a_stream_that_breaks_ends_without_done() -> None:
    failed = Chunks.failed(ApiError("engine_error", "the step failed"))
    assert failed == (
        b'data: {"error":{"message":"the step failed","type":"server_error","param":null,"code":"engine_error"}}\n\n'
    )


@pytest.mark.parametrize("dialect", DIALECTS)
@given(text=st.text(min_size=1) | st.just(ODD), index=st.integers(0, 1), include_usage=st.booleans())
def test_spliced_chunks_equal_encoded_ones(dialect: str, text: str, index: int, include_usage: bool) -> None:
    usage = None if include_usage else msgspec.UNSET
    made = reply(dialect, include_usage=include_usage)
    choice = made.dialect.chunk_choice(index=index, text=made.dialect.delta(text))
    encoded = msgspec.json.encode(made.chunk((choice,), usage)).decode()
    for character in "\x85\u2028\u2029":  # escaped in a stream, where they must not end a line
        encoded = encoded.replace(character, f"\\u{ord(character):04x}")
    chunks = Chunks(made)
    assert chunks.text(index, text, 1).decode() == f"data: {encoded}\n\n"
    assert chunks.text(index, text, 1).decode() == f"data: {encoded}\n\n"  # from the prepared bytes


def test_chunks_have_the_fields_of_their_dialect() -> None:
    chat = ChatChunk(
        id="chatcmpl-1",
        created=1_700_000_000,
        model='the "model"',
        choices=(ChatChunkChoice(index=0, text=Delta(content="a")),),
    )
    assert Chunks(reply("chat")).text(0, "a", 1) == b"data: " + msgspec.json.encode(chat) + b"\n\n"
    completion = CompletionChunk(
        id="cmpl-1",
        created=1_700_000_000,
        model='the "model"',
        choices=(CompletionChunkChoice(index=0, text="a"),),
    )
    assert Chunks(reply("completion")).text(0, "a", 1) == b"data: " + msgspec.json.encode(completion) + b"\n\n"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_whole_answer_is_the_golden_one(dialect: str) -> None:
    answer = WholeAnswer(reply(dialect), logprobs=True)
    answer.extend(EVENTS)
    finished = EVENTS[-1]
    assert isinstance(finished, Finished)
    golden(f"{dialect}.json", msgspec.json.format(msgspec.json.encode(answer.body(finished)), indent=2) + b"\n")
