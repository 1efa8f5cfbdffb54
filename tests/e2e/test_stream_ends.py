"""Streams that are disturbed. The worker is killed once: each goes on to the text it would have had. Of every dialect,
read by its own client: the client leaves, the deadline comes, no worker is left. Then each has its one end.

The model is the bundled one without a stop token: no stream ends by itself.
"""

import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from shutil import copytree
from threading import Barrier, Event, Thread
from time import sleep

import psutil
import pytest

from .conftest import PATIENCE, POLL, Serve, Server
from .dialects import MODEL, READERS, Headers, Heard

CHECKPOINT = Path(__file__).parents[2] / "models" / "demo" / "checkpoint"

STREAMS = 16
TOKENS = 160
KILL_AFTER = 400  # events of all streams together: each is in the middle of its answer


@pytest.fixture(scope="module")
def server(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Server:
    folder = tmp_path_factory.mktemp("endless") / MODEL
    copytree(CHECKPOINT, folder)
    for name in ("config.json", "generation_config.json"):
        values = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(values | {"eos_token_id": []}))
    return serve(str(folder), "--quantize", "int8")


def _body(number: int) -> dict[str, object]:
    return {
        "model": "triolet-demo",
        "messages": [{"role": "user", "content": f"Tell me a short story about number {number}."}],
        "seed": number,
        "temperature": 1.2,
        "ignore_eos": True,
        "max_tokens": TOKENS,
        "stream": True,
    }


def stream_all(server: Server, kill_after: int | None = None) -> list[str]:
    """The texts of all streams; the worker dies once `kill_after` events have come."""
    texts = [""] * STREAMS
    ended = [False] * STREAMS
    seen = [0]
    enough = Event()
    together = Barrier(STREAMS)

    def one(number: int) -> None:
        connection = HTTPConnection(server.url.removeprefix("http://"), timeout=PATIENCE)
        together.wait()
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(_body(number)), headers)
        for line in connection.getresponse():
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                ended[number] = True
                continue
            event = json.loads(line[6:])
            assert "error" not in event, event
            texts[number] += event["choices"][0]["delta"].get("content") or ""
            seen[0] += 1  # under the interpreter's lock; one more or less does not matter
            if kill_after is not None and seen[0] >= kill_after:
                enough.set()
        connection.close()

    threads = [Thread(target=one, args=(number,)) for number in range(STREAMS)]
    for thread in threads:
        thread.start()
    if kill_after is not None:
        assert enough.wait(PATIENCE)
        server.worker().kill()
    for thread in threads:
        thread.join()
    assert all(ended)
    return texts


def test_streams_go_on_to_the_same_text(server: Server) -> None:
    undisturbed = stream_all(server)
    first_worker = server.worker().pid
    assert stream_all(server, kill_after=KILL_AFTER) == undisturbed
    assert server.worker().pid != first_worker
    assert len(set(undisturbed)) == STREAMS  # twins would hide a mix-up
    server.wait_balanced()


class Left(Exception):
    """The client wants no more."""


def read_all(
    server: Server, headers: Headers, heard: Heard, disturb: Callable[[dict[str, Future[str]]], None] | None = None
) -> dict[str, str]:
    """How the stream of each dialect ends; "early": before its first text. `disturb` is called once all have text."""
    begun = {name: Event() for name in READERS}

    def one(name: str) -> str:
        def hear() -> None:
            begun[name].set()
            heard()

        try:
            end = READERS[name](server.url, headers, hear)
        except Left:
            return "left"
        return end if begun[name].is_set() else "early"

    with ThreadPoolExecutor(len(READERS)) as threads:
        reading = {name: threads.submit(one, name) for name in READERS}
        if disturb is not None:
            assert all(event.wait(PATIENCE) for event in begun.values())
            disturb(reading)
        return {name: end.result(PATIENCE) for name, end in reading.items()}


def test_a_client_that_leaves_leaves_nothing_behind(server: Server) -> None:
    def leave() -> None:
        raise Left

    assert set(read_all(server, {}, leave).values()) == {"left"}
    server.wait_balanced()


AT_THE_DEADLINE = {
    "chat": "length deadline",
    "completions": "length deadline",
    "responses": "response.incomplete",
    "responses, socket": "response.incomplete",
    "anthropic": "max_tokens",
    "ollama": "length",
    "stream": "deadline",
}


def test_at_the_deadline_a_stream_ends_as_if_its_length_were_reached(server: Server) -> None:
    for seconds in (1, 5, 25):  # a machine with other work may need longer for the first text
        ends = read_all(server, {"X-Request-Timeout": str(seconds)}, lambda: None)
        if "early" not in ends.values():
            break
    assert ends == AT_THE_DEADLINE
    server.wait_balanced()


WITHOUT_A_WORKER = {
    "chat": "engine_unavailable",
    "completions": "engine_unavailable",
    "responses": "response.failed",
    "responses, socket": "response.failed",
    "anthropic": "engine_unavailable",
    "ollama": "The engine is not available",
    "stream": "engine_unavailable",
}


def test_without_a_worker_a_stream_ends_with_its_dialects_error(server: Server) -> None:
    """The last test here: this server is of no more use."""

    def kill_all(reading: dict[str, Future[str]]) -> None:
        while not all(end.done() for end in reading.values()):
            with suppress(psutil.NoSuchProcess):
                for child in server.front.children():
                    child.kill()
            sleep(POLL)

    assert read_all(server, {}, lambda: None, kill_all) == WITHOUT_A_WORKER
    server.wait_balanced()
