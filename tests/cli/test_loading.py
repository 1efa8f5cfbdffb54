"""`triolet serve` answers before its model is loaded, and says when it is."""

import json
import os
import signal
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from ..held_server import held_server

EXIT_SECONDS = 60  # only a hang takes so long
ASKED: dict[str, object] = {"prompt": "One", "max_tokens": 2}


def status_of(url: str, body: dict[str, object] | None = None) -> tuple[int, str]:
    """Status and error code."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with urlopen(Request(url, data, {"Content-Type": "application/json"}), timeout=EXIT_SECONDS) as response:
            return response.status, ""
    except HTTPError as error:
        return error.code, json.load(error)["error"]["code"]


@pytest.mark.parametrize("processes", [1, 2])
def test_the_server_answers_from_the_first_second(processes: int) -> None:
    with held_server("--web-processes", str(processes)) as server:
        assert status_of(f"{server.url}/health/live") == (200, "")
        assert status_of(f"{server.url}/health/ready") == (503, "model_loading")
        assert status_of(f"{server.url}/v1/completions", ASKED) == (503, "model_loading")
        assert status_of(f"{server.url}/metrics") == (200, "")
        assert server.let_load() == f"Triolet is ready at {server.url}\n"
        assert status_of(f"{server.url}/health/ready") == (200, "")
        assert status_of(f"{server.url}/v1/completions", ASKED) == (200, "")
        server.process.terminate()
        assert server.process.wait(EXIT_SECONDS) == 0


def test_a_checkpoint_that_cannot_be_loaded_ends_the_listening_server() -> None:
    with held_server("--max-model-len", "100000") as server:
        assert status_of(f"{server.url}/health/ready") == (503, "model_loading")
        os.kill(server.worker, signal.SIGCONT)
        _, report = server.process.communicate(timeout=EXIT_SECONDS)
    assert server.process.returncode == 2, report
    assert "100000" in report
    assert "Traceback" not in report


def test_a_signal_ends_a_server_that_loads() -> None:
    with held_server() as server:
        server.process.terminate()
        server.process.communicate(timeout=EXIT_SECONDS)
    assert server.process.returncode == 0
