"""A real `triolet serve` on the bundled model, with its worker process, for tests that kill things."""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from urllib.request import urlopen

import psutil
import pytest

from ..conftest import running_server

PATIENCE = 120.0  # seconds until a hang becomes a failure; a cold start compiles the kernels
POLL = 0.02


class Server:
    """The serving process and what it says of itself."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self.front = psutil.Process(pid)

    def ledger(self) -> dict[str, Any]:  # Any: JSON
        with urlopen(f"{self.url}/internal/ledger", timeout=PATIENCE) as answer:
            ledger: dict[str, Any] = json.load(answer)
        blocks = ledger["kv_blocks"]
        assert blocks["free"] + blocks["cached"] + blocks["owned"] == blocks["total"]
        return ledger

    def owned_blocks(self) -> int:
        return int(self.ledger()["kv_blocks"]["owned"])

    def gauge(self, name: str) -> float:
        """A value of /metrics, by its name and labels as they are printed."""
        with urlopen(f"{self.url}/metrics", timeout=PATIENCE) as answer:
            text = answer.read().decode()
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        assert found, f"{name} is not in /metrics:\n{text}"
        return float(found[1])

    def worker(self) -> psutil.Process:
        """The worker process."""
        workers = [
            child for child in self.front.children() if "triolet.actors.executor.worker" in " ".join(child.cmdline())
        ]
        assert len(workers) == 1, workers
        return workers[0]

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert self.front.status() != psutil.STATUS_ZOMBIE, "the server has ended"
            assert time.monotonic() < deadline, f"never came true: {what}; {self.ledger()}"
            time.sleep(POLL)

    def wait_balanced(self) -> None:
        """Until no request is left, and no block owned."""
        self.wait_until(lambda: self.ledger()["requests"] == 0 and self.owned_blocks() == 0, "the ledger is balanced")


Serve = Callable[..., Server]


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Start servers with the given options of `triolet serve`; all end, with exit code 0, after the module's tests."""
    with ExitStack() as stack:

        def start(*options: str) -> Server:
            served = stack.enter_context(running_server(tmp_path_factory.mktemp("serve") / "log", *options))
            return Server(served.url, served.pid)

        yield start
