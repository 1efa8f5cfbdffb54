"""A message and its stream: compared with golden files, and read by the parser of Anthropic's own client."""

import json
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import msgspec
import pytest
from anthropic.types import Message

from triolet.protocol.errors import ApiError
from triolet.protocol.events import (
    CallStart,
    ChoiceFinished,
    Failed,
    Finished,
    FinishReason,
    Started,
    StreamEvent,
    Token,
    Usage,
)
from triolet.protocol.requests import Generate
from triolet.protocol.sampling import Sampling
from triolet.web.anthropic.message import WholeMessage
from triolet.web.anthropic.message_events import MessageEvents

GOLDEN = Path(__file__).parent / "golden"
ODD = 'a "quote", ü, \u2028 and "text":""'
REQUEST = Generate(id="r", name="req-1", model="tiny", prompts=(), sampling=Sampling(), max_tokens=8)
USAGE = Usage(prompt_tokens=9, completion_tokens=8, cached_tokens=4, reasoning_tokens=2)
STARTED = Started(id="r", model="tiny", prompt_tokens=9)


def text(text: str) -> Token:
    return Token(id="r", index=0, text=text, tokens=1)


def piece(call: int, text: str, name: str = "") -> Token:
    starts = CallStart(call=call, id=f"call_{call}", name=name) if name else None
    return Token(id="r", index=0, text=text, tokens=1, kind="tool", call=call, starts=starts)


def end(reason: FinishReason, stop_reason: str | int | None = None) -> tuple[StreamEvent, ...]:
    return (
        ChoiceFinished(id="r", index=0, reason=reason, stop_reason=stop_reason, stop_tokens=1),
        Finished(id="r", reason=reason, usage=USAGE),
    )


ALL_PARTS: tuple[StreamEvent, ...] = (
    STARTED,
    Token(id="r", index=0, text="Hm", tokens=1, kind="reasoning"),
    Token(id="r", index=0, text=", so.", tokens=1, kind="reasoning"),
    text("I look "),
    text(""),  # held back
    text(ODD),
    piece(0, "", "weather"),
    piece(0, '{"city": '),
    piece(0, '"Rome"}'),
    piece(1, "{}", "clock"),
    *end("tool_calls"),
)


def streamed(events: tuple[StreamEvent, ...]) -> bytes:
    return MessageEvents(REQUEST).encode(events)


def whole(events: tuple[StreamEvent, ...]) -> bytes:
    answer = WholeMessage(REQUEST)
    answer.extend(events)
    last = events[-1]
    assert isinstance(last, Finished)
    return msgspec.json.encode(answer.body(last))


def as_client(answer: bytes, media_type: str) -> anthropic.Anthropic:
    """A client whose server answers this."""

    def respond(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=answer, headers={"content-type": media_type})

    http = httpx2.Client(transport=httpx2.MockTransport(respond))
    return anthropic.Anthropic(api_key="none", base_url="http://triolet", max_retries=0, http_client=http)


QUESTION: dict[str, Any] = {  # Any: of several types
    "model": "tiny",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "Hi"}],
}


def read_stream(data: bytes) -> Message:
    with as_client(data, "text/event-stream").messages.stream(**QUESTION) as stream:
        return Message.model_validate(stream.get_final_message().to_dict())


def read_whole(data: bytes) -> Message:
    return Message.model_validate(as_client(data, "application/json").messages.create(**QUESTION))


def test_a_stream_is_the_golden_one() -> None:
    assert streamed(ALL_PARTS).decode() == (GOLDEN / "stream.txt").read_text("utf-8")


def test_a_whole_message_is_the_golden_one() -> None:
    given = json.dumps(json.loads(whole(ALL_PARTS)), indent=2, ensure_ascii=False) + "\n"
    assert given == (GOLDEN / "message.json").read_text("utf-8")


@pytest.mark.parametrize(
    "events",
    [
        ALL_PARTS,
        (STARTED, text("Hello"), *end("stop")),
        (STARTED, text("Hello"), *end("stop", "END")),
        (STARTED, text("Hello"), *end("stop", 5)),  # a stop token
        (STARTED, text("Hello"), *end("length")),
        (STARTED, *end("stop")),  # nothing was said
        (STARTED, text("Hel"), Finished(id="r", reason="cancelled", usage=USAGE)),
        (Finished(id="r", reason="deadline", usage=USAGE),),  # before it began
    ],
)
def test_the_client_reads_the_same_message_streamed_and_whole(events: tuple[StreamEvent, ...]) -> None:
    data = streamed(events)
    assert read_stream(data) == read_whole(whole(events))
    assert data.count(b"event: message_stop\n") == 1
    assert data.endswith(b'data: {"type":"message_stop"}\n\n')


@pytest.mark.parametrize(
    ("reason", "stop_reason", "expected"),
    [
        ("stop", None, ("end_turn", None)),
        ("stop", "END", ("stop_sequence", "END")),
        ("stop", 5, ("end_turn", None)),
        ("length", None, ("max_tokens", None)),
        ("tool_calls", None, ("tool_use", None)),
        ("deadline", None, ("max_tokens", None)),
    ],
)
def test_why_a_message_ended(
    reason: FinishReason, stop_reason: str | int | None, expected: tuple[str, str | None]
) -> None:
    message = read_whole(whole((STARTED, text("a"), *end(reason, stop_reason))))
    assert (message.stop_reason, message.stop_sequence) == expected


def test_an_answer_that_reaches_the_end_of_the_context_says_so() -> None:
    answer = WholeMessage(msgspec.structs.replace(REQUEST, max_tokens=9))
    last = Finished(id="r", reason="length", usage=USAGE)
    assert answer.body(last).stop_reason == "model_context_window_exceeded"


def test_usage_counts_cached_tokens_apart() -> None:
    usage = read_stream(streamed(ALL_PARTS)).usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (5, 4, 8)
    assert usage.output_tokens_details is not None
    assert usage.output_tokens_details.thinking_tokens == 2


def test_a_call_that_was_cut_is_text() -> None:
    events = (STARTED, piece(0, '{"city": "Ro', "weather"), *end("length"))
    (block,) = read_whole(whole(events)).content
    assert block.type == "text"
    assert block.text == '{"name": "weather", "arguments": {"city": "Ro'


@pytest.mark.parametrize("begun", [(), (STARTED,), (STARTED, text("Hel"))])
def test_a_failed_stream_ends_with_one_error_that_the_client_raises(begun: tuple[StreamEvent, ...]) -> None:
    data = streamed((*begun, Failed(id="r", code="engine_error", message="the step failed")))
    assert data.count(b"event: error\n") == 1
    assert b"message_stop" not in data
    with pytest.raises(anthropic.APIStatusError, match="the step failed") as raised:
        read_stream(data)
    assert raised.value.body == {
        "type": "error",
        "error": {
            "type": "api_error",
            "message": "the step failed",
            "details": {"error_code": "engine_error", "param": None},
        },
        "request_id": "req-1",
    }


def test_a_bug_ends_a_stream_like_a_failure() -> None:
    failed = MessageEvents(REQUEST).failed(ApiError("internal_error", "a mistake"))
    assert failed == streamed((Failed(id="r", code="internal_error", message="a mistake"),))


def test_pings_are_skipped() -> None:
    events = MessageEvents(REQUEST)
    data = events.keep_alive + events.encode((STARTED, text("Hello"))) + events.keep_alive + events.encode(end("stop"))
    assert read_stream(data) == read_stream(streamed((STARTED, text("Hello"), *end("stop"))))


def test_text_past_the_handler_has_the_same_bytes() -> None:
    """The spliced bytes are those of the Struct, whatever was open before."""
    events = MessageEvents(REQUEST)
    data = events.encode(ALL_PARTS[:3]) + events.text(0, "I look ", 1) + events.text(0, "", 1) + events.text(0, ODD, 1)
    assert data + events.encode(ALL_PARTS[6:]) == streamed(ALL_PARTS)
    (line,) = [line for line in data.splitlines() if b"quote" in line]
    assert json.loads(line.removeprefix(b"data: "))["delta"] == {"type": "text_delta", "text": ODD}
