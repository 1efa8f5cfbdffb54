"""The bytes of a stream: compared with a golden file, and the spliced chunks with the encoded ones."""

import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import LengthFinishReasonError, OpenAI
from openai.types.chat import ChatCompletion

from triolet.protocol.errors import ApiError
from triolet.protocol.events import (
    CallStart,
    ChoiceFinished,
    Finished,
    PromptTokens,
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


READ: list[StreamEvent] = [  # an answer with thoughts and calls
    Started(id="r", model="tiny", prompt_tokens=7),
    Token(id="r", index=0, text="So", tokens=1, kind="reasoning"),
    Token(id="r", index=0, text="", tokens=1, kind="reasoning"),
    Token(id="r", index=0, text=" be it.", tokens=2, kind="reasoning", logprobs=LOGPROBS),
    Token(id="r", index=0, text="I look.", tokens=1),
    Token(id="r", index=0, text="", tokens=9, kind="tool", starts=CallStart(call=0, id="call_1", name="weather")),
    Token(id="r", index=0, text='{"city": ', tokens=0, kind="tool"),
    Token(id="r", index=0, text='"Rome"}', tokens=0, kind="tool"),
    Token(id="r", index=1, text="{}", tokens=9, kind="tool", starts=CallStart(call=0, id="call_2", name="time")),
    Token(
        id="r", index=1, text="{}", tokens=9, kind="tool", call=1, starts=CallStart(call=1, id="call_3", name="time")
    ),
    ChoiceFinished(id="r", index=0, reason="tool_calls", stop_tokens=1),
    ChoiceFinished(id="r", index=1, reason="tool_calls", stop_tokens=1),
    Finished(id="r", reason="tool_calls", usage=Usage(prompt_tokens=7, completion_tokens=34, reasoning_tokens=4)),
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


TOKENS: list[StreamEvent] = [
    Started(id="r", model="tiny", prompt_tokens=2),
    PromptTokens(id="r", index=0, token_ids=(5, 6), logprobs=(TokenLogprob(token_id=5, logprob=None), *LOGPROBS)),
    Token(id="r", index=0, text="a", tokens=1, token_ids=(7,)),
    Token(id="r", index=0, text="", tokens=0, token_ids=(2,)),  # the stop token
    ChoiceFinished(id="r", index=0, reason="stop", stop_tokens=1),
    Finished(id="r", reason="stop", usage=Usage(prompt_tokens=2, completion_tokens=2)),
]
SCORES = [
    None,
    {
        "5": {"logprob": -0.5, "rank": 0, "decoded_token": " b"},
        "6": {"logprob": -9999.0, "rank": 2, "decoded_token": "\ufffd"},
    },
]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_token_ids_are_where_vllm_has_them(dialect: str) -> None:
    made = reply(dialect, choices=1, token_ids=True, prompt_logprobs=True)
    answer = WholeAnswer(made, logprobs=False)
    answer.extend(TOKENS)
    finished = TOKENS[-1]
    assert isinstance(finished, Finished)
    body = json.loads(msgspec.json.encode(answer.body(finished)))
    holder = body if dialect == "chat" else body["choices"][0]
    assert (holder["prompt_token_ids"], holder["prompt_logprobs"]) == ([5, 6], SCORES)
    assert body["choices"][0]["token_ids"] == [7, 2]
    streamed = Chunks(made._replace(prompt_logprobs=False)).encode(TOKENS).decode().split("\n\n")
    pieces = [json.loads(each.removeprefix("data: ")) for each in streamed if each.startswith("data: {")]
    holders = pieces if dialect == "chat" else [piece["choices"][0] for piece in pieces]
    assert [each["prompt_token_ids"] for each in holders if "prompt_token_ids" in each] == [[5, 6]]
    ids = [piece["choices"][0].get("token_ids") for piece in pieces]
    assert [each for each in ids if each is not None] == [[7], [2]]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_best_of_several_are_the_answer(dialect: str) -> None:
    """By the mean log probability of what was generated, the stop token included and an echo not."""
    answer = WholeAnswer(reply(dialect, choices=6, best=2, of=3), logprobs=False)

    def token(index: int, text: str, *logprobs: float, tokens: int = 1, stops: bool = False) -> Token:
        scores = tuple(TokenLogprob(token_id=5, logprob=value, stops=stops) for value in logprobs)
        return Token(id="r", index=index, text=text, tokens=tokens, logprobs=scores)

    answer.extend(
        [
            token(0, "echo", -9.0, tokens=0), token(0, " a", -1.0), token(0, "", -0.2, tokens=0, stops=True),
            token(1, "echo", -9.0, tokens=0), token(1, " b", -0.7),
            token(2, "echo", -9.0, tokens=0), token(2, " c", -0.1, -0.9, -0.2, tokens=3),
            token(3, "d", -1.0), token(4, "e", -3.0), token(5, "f", -2.0),
        ]
    )  # fmt: skip
    usage = Usage(prompt_tokens=7, completion_tokens=9)
    body = json.loads(msgspec.json.encode(answer.body(Finished(id="r", reason="length", usage=usage))))
    texts = [choice["text"] if dialect == "completion" else choice["message"]["content"] for choice in body["choices"]]
    assert texts == ["echo c", "echo a", "d", "f"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert [choice["logprobs"] for choice in body["choices"]] == [None] * 4
    assert body["usage"]["completion_tokens"] == 9


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
    failed = Chunks(reply("chat")).failed(ApiError("engine_error", "the step failed"))
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


def test_thoughts_and_calls_are_those_of_the_golden_stream() -> None:
    golden("chat_read_stream.txt", Chunks(reply("chat", include_usage=True)).encode(READ))


def test_thoughts_and_calls_are_those_of_the_golden_answer() -> None:
    answer = WholeAnswer(reply("chat"), logprobs=False)
    answer.extend(READ)
    finished = READ[-1]
    assert isinstance(finished, Finished)
    golden("chat_read.json", msgspec.json.format(msgspec.json.encode(answer.body(finished)), indent=2) + b"\n")


def openai_reads(name: str) -> Any:  # Any: OpenAI's class
    """What the streaming helper of the official client puts together from a golden stream."""

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=(GOLDEN / name).read_bytes(), headers={"content-type": "text/event-stream"})

    http: Any = httpx.Client(transport=httpx.MockTransport(answer))  # Any: it may come with an httpx of its own
    with (
        OpenAI(base_url="http://test/v1", api_key="none", http_client=http) as client,
        client.chat.completions.stream(model="tiny", messages=[{"role": "user", "content": "Hi"}]) as stream,
    ):
        try:
            return stream.get_final_completion()
        except LengthFinishReasonError as error:  # so it says that an answer was cut
            return error.completion


def read_by_openai(completion: Any) -> list[object]:
    """What is compared of an answer. The client adds up fields that it does not know, too: the thoughts."""
    said: list[object] = [completion.usage.model_dump() if completion.usage else None]
    for choice in completion.choices:
        message = choice.message
        calls = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()]
        others: dict[str, Any] = message.model_extra or {}
        said.append((choice.index, message.content or "", others.get("reasoning_content"), calls, choice.finish_reason))
    return said


@pytest.mark.parametrize(("stream", "whole"), [("chat_stream_usage", "chat"), ("chat_read_stream", "chat_read")])
def test_openais_client_makes_the_golden_answer_of_the_golden_stream(stream: str, whole: str) -> None:
    expected = ChatCompletion.model_validate_json((GOLDEN / f"{whole}.json").read_bytes())
    assert read_by_openai(openai_reads(f"{stream}.txt")) == read_by_openai(expected)


def test_tokens_that_show_nothing_count_in_the_running_usage() -> None:
    chunks = Chunks(reply("chat", continuous_usage=True))
    data = chunks.encode([Token(id="r", index=0, text="", tokens=3, kind="reasoning")])
    assert json.loads(data.removeprefix(b"data: "))["usage"]["completion_tokens"] == 3
