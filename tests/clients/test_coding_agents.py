"""The calls of Claude Code and Codex, replayed: what they sent when they ran against a server.

Both are too large for continuous integration. docs/clients.md tells how they were run, and with what result.
"""

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from ..conftest import Server


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    body: dict[str, Any]  # Any: JSON values


class Recording(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    recorded: str
    headers: dict[str, dict[str, str]]
    calls: dict[str, Call]


SENT = msgspec.json.decode(Path(__file__).with_name("coding_agents.json").read_bytes(), type=Recording)


@pytest.fixture(scope="module")
def client(server: Server) -> Generator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def send(client: httpx.Client, name: str) -> httpx.Response:
    call = SENT.calls[name]
    return client.post(call.path, json=call.body, headers=SENT.headers[name.partition("_")[0]])


def events(said: httpx.Response) -> list[dict[str, Any]]:
    assert said.status_code == 200, said.text
    return [json.loads(line.removeprefix("data: ")) for line in said.text.splitlines() if line.startswith("data: ")]


@pytest.mark.parametrize("name", ["claude_question", "claude_tool_result"])
def test_claude_code_is_answered(client: httpx.Client, name: str) -> None:
    """Its betas, blocks with `cache_control`, `context_management`, effort and turns of the system are taken."""
    *_, ends, last = events(send(client, name))
    assert (ends["type"], last["type"]) == ("message_delta", "message_stop")
    assert ends["delta"]["stop_reason"] in ("end_turn", "tool_use")


def test_claude_code_counts_tokens_and_looks_whether_the_server_is_there(client: httpx.Client) -> None:
    assert send(client, "claude_count").json()["input_tokens"] > 0
    assert client.head("/", headers=SENT.headers["claude"]).status_code == 200


def test_codex_is_answered(client: httpx.Client) -> None:
    """Items with ids, and `client_metadata` of its own."""
    *_, last = events(send(client, "codex_tool_result"))
    assert (last["type"], last["response"]["status"]) == ("response.completed", "completed")


def test_the_tools_that_codex_has_to_do_without_are_named(client: httpx.Client) -> None:
    """A group of functions and a search at OpenAI: without a word about them, its user would count on them."""
    refused = send(client, "codex_question")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools[1].type")
