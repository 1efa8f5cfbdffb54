"""The calls of Open WebUI, replayed: what it sent when it ran against a server, and its reading of the answers.

`make clients` runs the program itself (`programs/ask_open_webui.py`); it takes 770 MB, so continuous integration does
without.
"""

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from ..conftest import Server


class Recording(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`headers` are those of a set-up that also forwards the user (ENABLE_FORWARD_USER_INFO_HEADERS)."""

    recorded: str
    headers: dict[str, str]
    bodies: dict[str, dict[str, Any]]  # Any: JSON values


SENT = msgspec.json.decode(Path(__file__).with_name("open_webui.json").read_bytes(), type=Recording)


@pytest.fixture(scope="module")
def client(server: Server) -> Generator[httpx.Client]:
    with httpx.Client(base_url=f"{server.url}/v1", headers=SENT.headers, timeout=60) as client:
        yield client


def send(client: httpx.Client, name: str) -> httpx.Response:
    return client.post("/chat/completions", json=SENT.bodies[name])


class Read(msgspec.Struct):
    """What Open WebUI keeps of a stream; whatever its reading trips over is lost without a word, so raises here."""

    pieces: list[str] = []
    usage: dict[str, Any] = {}  # Any: JSON values
    finish_reason: str = ""
    done: bool = False


def read(said: httpx.Response) -> Read:
    assert said.headers["content-type"].startswith("text/event-stream")
    found = Read()
    for line in said.text.splitlines():
        if not line:
            continue
        assert line.startswith("data:")
        assert not found.done
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            found.done = True
            continue
        chunk = json.loads(data)
        assert not {"event", "selected_model_id", "error"} & chunk.keys()  # they mean something else to it
        assert isinstance(chunk.get("type", ""), str)
        found.usage |= (chunk.get("usage", {}) or {}) | chunk.get("timings", {})
        if choices := chunk.get("choices", []):
            found.finish_reason = choices[0].get("finish_reason") or found.finish_reason
            found.pieces += [text] if (text := choices[0]["delta"].get("content")) else []
    return found


def test_a_connection_is_verified_and_lists_its_models(client: httpx.Client) -> None:
    answer = client.get("/models")
    assert answer.status_code == 200
    assert [model["id"] for model in answer.json()["data"]] == ["triolet-demo"]


def test_a_message_is_streamed(client: httpx.Client) -> None:
    found = read(send(client, "message"))
    assert found.done
    assert found.finish_reason == "stop"
    assert len(found.pieces) > 1


def test_usage_is_shown_where_the_model_has_that_capability(client: httpx.Client) -> None:
    found = read(send(client, "message_with_usage"))
    assert found.usage["total_tokens"] == found.usage["prompt_tokens"] + found.usage["completion_tokens"]
    assert "".join(found.pieces)


def test_continue_response_goes_on_in_the_same_message(client: httpx.Client) -> None:
    """With the provider llama.cpp in the connection; without, a new message is begun."""
    assert "".join(read(send(client, "continue_response")).pieces) == " = 7."


def test_its_advanced_parameters_are_taken(client: httpx.Client) -> None:
    assert read(send(client, "advanced_parameters")).done


def test_its_own_tools_may_be_offered(client: httpx.Client) -> None:
    """As installed it sends 36 of them with every message."""
    assert read(send(client, "builtin_tools")).done


@pytest.mark.parametrize("task", ["title", "tags"])
def test_a_task_is_answered_as_a_whole(client: httpx.Client, task: str) -> None:
    answer = send(client, task).raise_for_status().json()
    assert answer["choices"][0]["message"]["content"]
    assert "error" not in answer


@pytest.mark.parametrize(
    ("name", "param", "says"),
    [
        ("image", "messages[0].content[1].type", "only text content is supported"),
        ("repeat_penalty", "repeat_penalty", "repetition_penalty"),
    ],
)
def test_what_is_refused_is_an_error_that_its_page_shows(
    client: httpx.Client, name: str, param: str, says: str
) -> None:
    """Its page shows `error.message` below the question."""
    answer = send(client, name)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert says in error["message"]


def test_a_wrong_address_names_the_right_one(client: httpx.Client, server: Server) -> None:
    """A connection without `/v1`, or with a slash at its end."""
    for wrong in (f"{server.url}/models", f"{server.url}/v1//models"):
        answer = client.get(wrong)
        assert answer.status_code == 404
        assert "/v1/models" in answer.json()["error"]["message"]
