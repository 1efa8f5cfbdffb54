"""What a model says, as the items and events of the Responses API: compared with a golden file, and cut at will."""

import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import OpenAI

from triolet.protocol.errors import ApiError
from triolet.protocol.events import (
    CallStart,
    Failed,
    Finished,
    FinishReason,
    Started,
    StreamEvent,
    Token,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from triolet.protocol.response_answers import ReasoningEcho, ResponseObject, TextEcho
from triolet.web.responses.answer import GrowingResponse
from triolet.web.responses.events import ResponseEvents
from triolet.web.responses.whole import WholeResponse

GOLDEN = Path(__file__).parent / "golden"
ODD = 'a "quote", a \\, a\nline, ü, 😀, \u2028, \x7f and "delta":""'
USAGE = Usage(prompt_tokens=7, completion_tokens=5, cached_tokens=4, reasoning_tokens=2)
LOGPROBS = (
    TokenLogprob(token_id=5, logprob=-0.5, text=b" b", top=(TopLogprob(5, -0.5, b" b"),)),
    TokenLogprob(token_id=2, logprob=-0.1, text=b"</s>", stops=True),
)
STOP = CallStart(call=1, id="call_2", name="stop")
STARTED = Started(id="r", model="tiny", prompt_tokens=7)
TERMINAL = ("response.completed", "response.incomplete", "response.failed")
EVENTS: list[StreamEvent] = [
    STARTED,
    Token(id="r", index=0, text="Hm", tokens=1, kind="reasoning"),
    Token(id="r", index=0, text=".", tokens=1, kind="reasoning"),
    Token(id="r", index=0, text="a", tokens=1),
    Token(id="r", index=0, text="", tokens=1),  # held back
    Token(id="r", index=0, text=ODD, tokens=1),
    Token(id="r", index=0, text=" b", tokens=1, logprobs=LOGPROBS),
    Token(id="r", index=0, text="", tokens=3, kind="tool", starts=CallStart(call=0, id="call_1", name="look")),
    Token(id="r", index=0, text='{"at":', tokens=1, kind="tool"),
    Token(id="r", index=0, text="1}", tokens=1, kind="tool"),
    Token(
        id="r", index=0, text="{}", tokens=4, kind="tool", call=1, starts=CallStart(call=1, id="call_2", name="stop")
    ),
    Finished(id="r", reason="tool_calls", usage=USAGE),
]


def growing() -> GrowingResponse:
    response = ResponseObject(
        id="resp_r",
        created_at=1_700_000_000,
        status="in_progress",
        instructions=None,
        max_output_tokens=None,
        model='the "model"',
        parallel_tool_calls=True,
        previous_response_id=None,
        prompt_cache_key=None,
        reasoning=ReasoningEcho(),
        safety_identifier=None,
        store=False,
        temperature=0.6,
        text=TextEcho(format=msgspec.Raw(b'{"type":"text"}')),
        tool_choice="auto",
        tools=[],
        top_logprobs=0,
        top_p=1.0,
        user=None,
        metadata={},
    )
    return GrowingResponse(response, "r")


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1_700_000_009.5)


def read(data: bytes) -> list[dict[str, Any]]:  # Any: JSON
    """The events of a stream; each has its name, and they are numbered."""
    events: list[dict[str, Any]] = []
    for number, event in enumerate(data.decode().removesuffix("\n\n").split("\n\n")):
        name, line = event.splitlines()
        events.append(json.loads(line.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
        assert events[-1]["sequence_number"] == number
    return events


def test_a_stream_is_the_golden_one() -> None:
    assert ResponseEvents(growing()).encode(EVENTS).decode() == (GOLDEN / "stream.txt").read_text("utf-8")


def test_a_whole_response_has_the_items_of_its_stream() -> None:
    whole = WholeResponse(growing())
    whole.extend(EVENTS)
    assert isinstance(EVENTS[-1], Finished)
    body = json.loads(msgspec.json.encode(whole.body(EVENTS[-1])))
    *events, last = read(ResponseEvents(growing()).encode(EVENTS))
    assert body == last["response"]
    assert body["output"] == [event["item"] for event in events if event["type"] == "response.output_item.done"]


def joined(output: list[dict[str, Any]]) -> list[tuple[str, str]]:  # Any: JSON
    return [
        (item["type"], item["arguments"] if "arguments" in item else "".join(part["text"] for part in item["content"]))
        for item in output
    ]


@given(st.lists(st.tuples(st.sampled_from(["text", "reasoning", "tool"]), st.text()), max_size=12), st.booleans())
def test_deltas_make_up_the_items(said: list[tuple[Any, str]], fast: bool) -> None:  # Any: a token's kind
    """However the text is cut, and on either way: an item's deltas are its text, and all comes with the end."""
    pieces = ResponseEvents(growing())
    data, calls = pieces.encode([STARTED]), 0
    for kind, text in said:
        if kind == "text" and fast:
            data += pieces.text(0, text, 1)
            continue
        starts = CallStart(call=calls, id=f"call_{calls}", name="f") if kind == "tool" else None
        calls += starts is not None
        data += pieces.encode([Token(id="r", index=0, text=text, tokens=1, kind=kind, starts=starts)])
    data += pieces.encode([Finished(id="r", reason="stop", usage=USAGE)])
    events = read(data)
    found = [""] * len(events[-1]["response"]["output"])
    for event in events:
        if event["type"].endswith(".delta"):
            found[event["output_index"]] += event["delta"]
    assert found == [text for _, text in joined(events[-1]["response"]["output"])]
    assert "".join(found) == "".join(text for _, text in said)


@given(text=st.text(min_size=1) | st.just(ODD))
def test_spliced_deltas_equal_encoded_ones(text: str) -> None:
    token = Token(id="r", index=0, text=text, tokens=1)
    spliced, encoded = ResponseEvents(growing()), ResponseEvents(growing())
    for pieces in (spliced, encoded):
        pieces.encode([STARTED, Token(id="r", index=0, text="a", tokens=1)])
    for _ in range(12):  # the numbers get longer
        assert spliced.text(0, text, 1) == encoded.encode([token])


@pytest.mark.parametrize(
    ("reason", "terminal", "status"),
    [
        ("stop", "response.completed", "completed"),
        ("length", "response.incomplete", "incomplete"),
        ("deadline", "response.incomplete", "incomplete"),
        ("cancelled", "response.incomplete", "cancelled"),
    ],
)
def test_the_end(reason: FinishReason, terminal: str, status: str) -> None:
    finished = Finished(id="r", reason=reason, usage=USAGE)
    events = read(ResponseEvents(growing()).encode([STARTED, Token(id="r", index=0, text="a", tokens=1), finished]))
    assert [event["type"] for event in events if event["type"] in TERMINAL] == [terminal] == [events[-1]["type"]]
    response = events[-1]["response"]
    assert (response["status"], response["triolet_finish_reason"]) == (status, reason)
    assert response["incomplete_details"] == ({"reason": "max_output_tokens"} if status == "incomplete" else None)
    assert response["output"][0]["status"] == ("completed" if status == "completed" else "incomplete")
    assert response["completed_at"] == (1_700_000_009 if status == "completed" else None)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("engine_error", "server_error"),
        ("context_length_exceeded", "invalid_prompt"),
        ("server_overloaded", "rate_limit_exceeded"),
    ],
)
def test_a_failure_has_its_beginning_and_one_end(code: str, told: str) -> None:
    pieces = ResponseEvents(growing())
    events = read(pieces.encode([Failed(id="r", code=code, message="it broke")]))
    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.failed"]
    assert events[-1]["response"]["error"] == {"code": told, "message": "it broke"}
    assert events[-1]["response"]["status"] == "failed"


def test_what_was_said_before_a_failure_stays() -> None:
    pieces = ResponseEvents(growing())
    data = pieces.encode([STARTED, Token(id="r", index=0, text="a", tokens=1)])
    events = read(data + pieces.failed(ApiError("engine_error", "it broke")))
    assert [event["type"] for event in events if event["type"] in TERMINAL] == ["response.failed"]
    assert joined(events[-1]["response"]["output"]) == [("message", "a")]
    assert events[-1]["response"]["output"][0]["status"] == "incomplete"


def test_a_failure_names_the_fields_of_this_api() -> None:
    error = ApiError("invalid_value", "max_tokens is too large.", param="max_tokens")
    events = read(ResponseEvents(growing()).failed(error))
    assert events[-1]["response"]["error"]["message"] == "max_output_tokens is too large."


def openai_reads(data: bytes) -> list[Any]:  # Any: OpenAI's classes for events
    """What the official client makes of a stream."""

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=data, headers={"content-type": "text/event-stream"})

    http: Any = httpx.Client(transport=httpx.MockTransport(answer))  # Any: it may come with an httpx of its own
    with (
        OpenAI(base_url="http://test/v1", api_key="none", http_client=http) as client,
        client.responses.stream(model="tiny", input="Hi") as stream,
    ):
        return [*stream]


def test_openais_client_reads_the_golden_stream() -> None:
    *events, last = openai_reads((GOLDEN / "stream.txt").read_bytes())
    assert last.type == "response.completed"
    assert [item.type for item in last.response.output] == ["reasoning", "message", "function_call", "function_call"]
    assert last.response.output_text == f"a{ODD} b"
    snapshots = [event.snapshot for event in events if event.type == "response.output_text.delta"]
    assert snapshots == ["a", f"a{ODD}", f"a{ODD} b"]  # its own sum of the deltas
    assert last.response.usage.output_tokens_details.reasoning_tokens == 2


ENDS: list[tuple[StreamEvent, str]] = [
    (Finished(id="r", reason="deadline", usage=USAGE), "response.incomplete"),
    (Finished(id="r", reason="cancelled", usage=USAGE), "response.incomplete"),
    (Failed(id="r", code="engine_error", message="the worker died"), "response.failed"),
]


@pytest.mark.parametrize(("end", "terminal"), ENDS)
def test_openais_client_reads_every_end(end: StreamEvent, terminal: str) -> None:
    token = Token(id="r", index=0, text="a", tokens=1)
    events = openai_reads(ResponseEvents(growing()).encode([STARTED, token, end]))
    assert [event.type for event in events if event.type in TERMINAL] == [terminal] == [events[-1].type]
    assert events[-1].response.output_text == "a"
