"""The accuracy client: it asks over HTTP, judges exactly, keeps the order, and fails when a family is weak."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from triolet.loadtest.accuracy import (
    AccuracyRun,
    arguments,
    ask_all,
    by_family,
    server_at,
    share,
    table,
    wire_messages,
)
from triolet.loadtest.client.client import HttpClient
from triolet.loadtest.client.dial import read_url
from triolet.loadtest.client.ending import Fault
from triolet.loadtest.heldout import HELD_OUT, Instance, read_instances
from triolet.protocol.requests import ChatMessage

from .client.made import Servers, read_head


class Server:
    """A small chat server: it answers by a function of the last message and counts the requests inside at once."""

    def __init__(self, answer: Callable[[str], dict[str, object]], status: int = 200) -> None:
        self.answer, self.status, self.inside, self.most = answer, status, 0, 0
        self.bodies: list[dict[str, Any]] = []

    async def serve(self, _number: int, stream: trio.abc.Stream) -> None:
        while asked := await read_head(stream):
            head, _, text = asked.partition(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split()[0])
            while len(text) < length:
                text += await stream.receive_some()
            body = json.loads(text)
            self.bodies.append(body)
            self.inside += 1
            self.most = max(self.most, self.inside)
            await trio.lowlevel.checkpoint()
            self.inside -= 1
            answer = json.dumps({"choices": [{"message": self.answer(body["messages"][-1]["content"])}]}).encode()
            await stream.send_all(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (self.status, len(answer), answer))


def instance(family: str, question: str, expected: str, check: str = "exact") -> Instance:
    message = {"role": "user", "content": question}
    row = {"family": family, "wording": "trained", "messages": [message], "check": check, "expected": expected}
    return msgspec.convert(row, Instance)


async def asked(server: Server, instances: list[Instance], concurrency: int = 3) -> AccuracyRun:
    async with trio.open_nursery() as nursery:
        client = HttpClient(read_url("http://server"), Servers(nursery, server.serve).connect)
        outcomes = await ask_all(client, None, "m", instances, concurrency, lambda: None)
        await client.close()
    return AccuracyRun("http://server", "m", tuple(outcomes))


async def test_outcomes_keep_the_order_and_requests_are_bounded_and_greedy() -> None:
    server = Server(lambda question: {"content": question.upper()})
    instances = [instance("shout", f"q{i}", f"Q{i}" if i % 2 else "no") for i in range(20)]
    run = await asked(server, instances)
    assert [outcome.right for outcome in run.outcomes] == [bool(i % 2) for i in range(20)]
    assert [outcome.answer for outcome in run.outcomes] == [f"Q{i}" for i in range(20)]
    assert server.most <= 3
    assert {body["temperature"] for body in server.bodies} == {0}
    assert share(run.outcomes) == 0.5


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ({"content": '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'}, True),
        ({"content": '<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>'}, True),
        ({"content": None, "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1}'}}]}, True),
        ({"content": None, "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 2}'}}]}, False),
        ({"content": None, "tool_calls": [{"function": {"name": "g", "arguments": '{"a": 1}'}}]}, False),
        ({"content": '<tool_call>{"name": "f", "arguments": {"a": 1}}'}, False),
        ({"content": "<tool_call>{</tool_call>"}, False),
        ({"content": ""}, False),
    ],
)
async def test_a_tool_call_is_judged_by_its_json(answer: dict[str, object], right: bool) -> None:
    expected = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    run = await asked(Server(lambda _: answer), [instance("tool call", "q", expected)])
    assert run.outcomes[0].right is right


def test_a_call_in_the_history_is_sent_as_the_api_wants_it() -> None:
    messages = [
        ChatMessage(role="user", content="weather?"),
        ChatMessage(role="assistant", content='<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'),
        ChatMessage(role="tool", content='{"b": 2}'),
    ]
    user, call, result = wire_messages(messages)
    assert user == {"role": "user", "content": "weather?"}
    function = {"name": "f", "arguments": '{"a": 1}'}
    assert call["tool_calls"] == [{"id": "call_1", "type": "function", "function": function}]
    assert result == {"role": "tool", "content": '{"b": 2}', "tool_call_id": "call_1"}


def test_text_is_compared_exactly_and_patterns_in_full() -> None:
    exact, pattern = instance("f", "q", "1 + 1 = 2."), instance("story", "q", "Once .*\\.", "regex")
    assert exact.accepts("1 + 1 = 2.")
    assert not exact.accepts("1 + 1 = 2")
    assert pattern.accepts("Once upon a time.")
    assert not pattern.accepts("Once upon a time. And")
    with pytest.raises(ValueError, match="check must be"):
        instance("f", "q", "x", "fuzzy").accepts("x")


async def test_an_error_answer_ends_the_run_with_its_text() -> None:
    server = Server(lambda _: {"content": "x"}, status=503)
    with pytest.RaisesGroup(pytest.RaisesGroup(pytest.RaisesExc(Fault, match="503"))):
        await asked(server, [instance("f", "q", "x")], concurrency=1)


def test_the_held_out_file_reads_and_the_limit_is_per_family() -> None:
    instances = read_instances(HELD_OUT, 3)
    families = by_family_of(read_instances(HELD_OUT, None))
    assert len(instances) == 3 * len(families)
    assert min(families.values()) >= 40


def by_family_of(instances: list[Instance]) -> dict[str, int]:
    counted: dict[str, int] = {}
    for item in instances:
        counted[item.family] = counted.get(item.family, 0) + 1
    return counted


async def test_a_run_is_stored_compared_and_tabled(tmp_path: Path) -> None:
    instances = [instance("a", "x", "X"), instance("b", "y", "wrong"), instance("a", "z", "Z")]
    run = await asked(Server(lambda question: {"content": question.upper()}), instances)
    stored = msgspec.json.decode(msgspec.json.encode(run), type=AccuracyRun)
    assert stored == run
    assert {family: share(group) for family, group in by_family(run.outcomes).items()} == {"a": 1.0, "b": 0.0}
    assert [column.header for column in table(run, stored).columns][-1] == "earlier run"
    assert len(table(run, None).rows) == 3  # two families and the sum


def test_the_options_have_the_defaults_that_the_help_names() -> None:
    options = arguments().parse_args([])
    assert (options.url, options.concurrency, options.minimum, options.data) == (
        "http://127.0.0.1:8000",
        16,
        0.8,
        HELD_OUT,
    )


@pytest.mark.parametrize("root", ["http://h:8000", "http://h/prefix", "http://h/prefix/", "http://h/prefix/v1"])
def test_the_url_is_that_of_the_server_below_which_v1_is(root: str) -> None:
    assert server_at(root).path == ("/v1" if root.endswith("8000") else "/prefix/v1")


def test_what_is_no_url_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        arguments().parse_args(["--url", "127.0.0.1:8000"])
    assert ended.value.code == 2
    assert "'127.0.0.1:8000' is not an address like http://127.0.0.1:8000" in capsys.readouterr().err
