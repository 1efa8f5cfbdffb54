"""An answer and its stream: compared with golden files, and read by Ollama's own client."""

import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import ollama
import pytest

from triolet.protocol.errors import ApiError
from triolet.protocol.events import (
    CallStart,
    ChoiceFinished,
    Failed,
    Finished,
    FinishReason,
    Started,
    StreamEvent,
    Timing,
    Token,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from triolet.web.ollama.answer import OllamaReply, WholeOllamaAnswer
from triolet.web.ollama.lines import OllamaLines

GOLDEN = Path(__file__).parent / "golden"
ODD = 'a "quote", ü, \u2028 and "content":""'
CHAT = OllamaReply(chat=True, model="tiny:latest", created_at="2026-11-23T00:00:00Z")
GENERATE = CHAT._replace(chat=False)
STARTED = Started(id="r", model="tiny", prompt_tokens=9)
USAGE = Usage(prompt_tokens=9, completion_tokens=8, cached_tokens=4)
TIMING = Timing(queued=0.25, ttft=0.5, total=2.0)
SCORES = (TokenLogprob(token_id=5, logprob=-0.5, text=b" b", top=(TopLogprob(5, -0.5, b" b"),)),)


def said(text: str, *, kind: Any = "text", logprobs: tuple[TokenLogprob, ...] = ()) -> Token:
    return Token(id="r", index=0, text=text, tokens=1, kind=kind, logprobs=logprobs)


def piece(call: int, text: str, name: str = "") -> Token:
    starts = CallStart(call=call, id=f"call_{call}", name=name) if name else None
    return Token(id="r", index=0, text=text, tokens=1, kind="tool", call=call, starts=starts)


def end(reason: FinishReason) -> tuple[StreamEvent, ...]:
    return (
        ChoiceFinished(id="r", index=0, reason=reason, stop_tokens=1),
        Finished(id="r", reason=reason, usage=USAGE, timing=TIMING),
    )


TEXT: tuple[StreamEvent, ...] = (
    STARTED,
    said("Hm, so.", kind="reasoning"),
    said("I look "),
    said(""),  # held back
    said(ODD),
    said(" b", logprobs=SCORES),
    *end("length"),
)
CALLS: tuple[StreamEvent, ...] = (
    STARTED,
    said("I look"),
    piece(0, "", "weather"),
    piece(0, '{"city": '),
    piece(0, '"Rome"}'),
    piece(1, "{}", "clock"),
    *end("tool_calls"),
)

CUT: tuple[StreamEvent, ...] = (STARTED, piece(0, '{"city": "Ro', "weather"), *end("length"))


def streamed(events: tuple[StreamEvent, ...], reply: OllamaReply = CHAT) -> bytes:
    return OllamaLines(reply).encode(events)


def whole(events: tuple[StreamEvent, ...], reply: OllamaReply = CHAT) -> bytes:
    answer = WholeOllamaAnswer(reply)
    answer.extend(events)
    last = events[-1]
    assert isinstance(last, Finished)
    return msgspec.json.encode(answer.body(last))


def client(answer: bytes) -> Any:  # Any: ollama leaves the types of its client's methods open
    """A client whose server answers this."""
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=answer))
    return ollama.Client(host="http://triolet", transport=transport)


def read_stream(data: bytes) -> list[ollama.ChatResponse]:
    return list(client(data).chat("tiny", [], stream=True))


@pytest.mark.parametrize(
    ("name", "events", "reply"), [("chat", TEXT, CHAT), ("calls", CALLS, CHAT), ("generate", TEXT, GENERATE)]
)
def test_a_stream_and_a_whole_answer_are_the_golden_ones(
    name: str, events: tuple[StreamEvent, ...], reply: OllamaReply
) -> None:
    assert streamed(events, reply).decode() == (GOLDEN / f"{name}.ndjson").read_text("utf-8")
    given = json.dumps(json.loads(whole(events, reply)), indent=2, ensure_ascii=False) + "\n"
    assert given == (GOLDEN / f"{name}.json").read_text("utf-8")


@pytest.mark.parametrize("events", [TEXT, CALLS, CUT, (STARTED, *end("stop")), end("cancelled")[1:]])
def test_the_client_reads_the_same_answer_streamed_and_whole(events: tuple[StreamEvent, ...]) -> None:
    answer = client(whole(events)).chat("tiny", [])
    pieces = read_stream(streamed(events))
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert "".join(piece.message.content or "" for piece in pieces) == answer.message.content
    assert "".join(piece.message.thinking or "" for piece in pieces) == (answer.message.thinking or "")
    calls = [call for piece in pieces for call in piece.message.tool_calls or ()]
    assert calls == list(answer.message.tool_calls or ())
    assert [score for piece in pieces for score in piece.logprobs or ()] == list(answer.logprobs or ())
    last = pieces[-1]
    assert (last.done_reason, last.eval_count, last.total_duration) == (
        answer.done_reason,
        answer.eval_count,
        answer.total_duration,
    )


def test_a_generation_is_read_too() -> None:
    pieces = list(client(streamed(TEXT, GENERATE)).generate("tiny", "Hi", stream=True))
    assert "".join(piece.response or "" for piece in pieces) == f"I look {ODD} b"
    assert "".join(piece.thinking or "" for piece in pieces) == "Hm, so."
    assert (pieces[-1].done_reason, pieces[-1].prompt_eval_count) == ("length", 9)


def test_durations_are_nanoseconds_and_add_up_to_the_time_after_the_queue() -> None:
    answer = client(whole(TEXT)).chat("tiny", [])
    assert answer.total_duration == 2_000_000_000
    assert (answer.prompt_eval_duration, answer.eval_duration) == (250_000_000, 1_500_000_000)
    unread = client(whole((Finished(id="r", reason="cancelled", usage=USAGE),)))
    answer = unread.chat("tiny", [])
    assert (answer.total_duration, answer.prompt_eval_duration, answer.eval_duration) == (0, 0, 0)


def test_a_call_that_was_cut_is_text() -> None:
    message = client(whole(CUT)).chat("tiny", []).message
    assert (message.tool_calls, message.content) == (None, '{"name": "weather", "arguments": {"city": "Ro')


@pytest.mark.parametrize("begun", [(), (STARTED,), (STARTED, said("Hel"))])
def test_a_failed_stream_ends_with_one_error_that_the_client_raises(begun: tuple[StreamEvent, ...]) -> None:
    data = streamed((*begun, Failed(id="r", code="engine_error", message="the step failed")))
    assert data.splitlines()[-1] == b'{"error":"the step failed"}'
    assert b'"done":true' not in data
    with pytest.raises(ollama.ResponseError, match="the step failed"):
        read_stream(data)


def test_a_bug_ends_a_stream_like_a_failure() -> None:
    failed = OllamaLines(CHAT).failed(ApiError("internal_error", "a mistake"))
    assert failed == streamed((Failed(id="r", code="internal_error", message="a mistake"),))


@pytest.mark.parametrize("reply", [CHAT, GENERATE])
def test_what_is_sent_meanwhile_adds_nothing(reply: OllamaReply) -> None:
    lines = OllamaLines(reply)
    data = lines.keep_alive + lines.encode(TEXT[:3]) + lines.keep_alive + lines.encode(TEXT[3:])
    pieces = [json.loads(line) for line in data.decode().splitlines()]
    assert len(data.decode().splitlines()) == data.count(b"\n")
    texts = [piece["message"]["content"] if reply.chat else piece["response"] for piece in pieces]
    assert "".join(texts) == f"I look {ODD} b"


def test_text_past_the_handler_has_the_same_bytes() -> None:
    lines = OllamaLines(CHAT)
    data = lines.encode(TEXT[:2]) + lines.text(0, "I look ", 1) + lines.text(0, "", 1) + lines.text(0, ODD, 1)
    assert data + lines.encode(TEXT[5:]) == streamed(TEXT)
