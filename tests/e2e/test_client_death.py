"""A client killed with SIGKILL leaves nothing behind, wherever its request was."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from .conftest import Serve, Server

CLIENT = Path(__file__).with_name("doomed_client.py")
LONG_ANSWER = {"messages": [{"role": "user", "content": "Count from 1 to 20."}], "ignore_eos": True, "max_tokens": 1500}
LONG_PROMPT = {"prompt": list(range(10, 1010)), "ignore_eos": True, "max_tokens": 500}

Doom = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def server(serve: Serve) -> Server:
    return serve("--max-running", "1", "--max-step-tokens", "64")


@pytest.fixture
def doom(server: Server) -> Iterator[Doom]:
    """Starts clients whose end is SIGKILL."""
    clients: list[subprocess.Popen[str]] = []

    def start(request: dict[str, object], *credit: str) -> "subprocess.Popen[str]":
        command = [sys.executable, str(CLIENT), server.url, json.dumps({"model": "triolet-demo"} | request), *credit]
        clients.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return clients[-1]

    yield start
    for client in clients:
        client.kill()
        client.communicate()


def await_frame(client: "subprocess.Popen[str]", kind: str) -> None:
    assert client.stdout is not None
    for line in client.stdout:
        assert line.strip() not in ("failed", "finished"), line
        if line.strip() == kind:
            return
    pytest.fail(f"the client ended before it got a {kind} frame")


def test_while_queued(server: Server, doom: Doom) -> None:
    running = doom(LONG_ANSWER, "4")  # parked after 4 tokens, so it has not ended before the second one is killed
    await_frame(running, "token")
    server.wait_until(lambda: server.gauge("triolet_requests_parked") == 1, "one is parked")
    server.worker().send_signal(signal.SIGSTOP)  # whoever comes now stays in front of its first step
    try:
        first, queued = doom(LONG_ANSWER), doom(LONG_ANSWER)
        server.wait_until(lambda: server.gauge("triolet_requests_waiting") == 1, "one is waiting")
        queued.kill()
        first.kill()
        server.wait_until(lambda: server.ledger()["requests"] == 1, "the killed clients' requests are gone")
    finally:
        server.worker().send_signal(signal.SIGCONT)
    running.kill()
    server.wait_balanced()


def test_while_in_prefill(server: Server, doom: Doom) -> None:
    # After a whole answer no step is in flight. One of the test before would keep the prompt from its first step.
    OpenAI(base_url=f"{server.url}/v1", api_key="none").completions.create(
        model="triolet-demo", prompt="Hi", max_tokens=1
    )
    server.worker().send_signal(signal.SIGSTOP)  # its first chunks are on their way and no token can come
    try:
        client = doom(LONG_PROMPT)
        server.wait_until(lambda: server.owned_blocks() > 0, "the prompt has blocks")
        assert server.ledger()["requests"] == 1
        client.kill()
        server.wait_balanced()
    finally:
        server.worker().send_signal(signal.SIGCONT)


def test_while_in_decode(server: Server, doom: Doom) -> None:
    client = doom(LONG_ANSWER)
    await_frame(client, "token")
    client.kill()
    server.wait_balanced()


def test_while_parked(server: Server, doom: Doom) -> None:
    client = doom(LONG_ANSWER, "8")
    server.wait_until(lambda: server.gauge("triolet_requests_parked") == 1, "it is parked")
    assert server.owned_blocks() > 0  # its KV is kept
    client.kill()
    server.wait_balanced()
