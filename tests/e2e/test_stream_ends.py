"""The worker is killed with SIGKILL under 16 streams: each goes on to the text it would have had."""

import json
from http.client import HTTPConnection
from threading import Barrier, Event, Thread

import pytest

from .conftest import PATIENCE, Serve, Server

STREAMS = 16
TOKENS = 160
KILL_AFTER = 400  # events of all streams together: each is in the middle of its answer


@pytest.fixture(scope="module")
def server(serve: Serve) -> Server:
    return serve("--quantize", "int8")


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
