"""A real `triolet serve` on the bundled model, with its worker process, for tests that kill things."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

TRIOLET = Path(sys.executable).with_name("triolet")
PATIENCE = 120.0  # seconds until a hang becomes a failure; a cold start compiles the kernels
POLL = 0.02


class Server:
    """The serving process and what it says of itself."""

    def __init__(self, process: "subprocess.Popen[str]", url: str) -> None:
        self.process = process
        self.url = url

    def ledger(self) -> dict[str, object]:
        with urlopen(f"{self.url}/internal/ledger", timeout=PATIENCE) as answer:
            ledger: dict[str, object] = json.load(answer)
        blocks = ledger["kv_blocks"]
        assert isinstance(blocks, dict)
        assert blocks["free"] + blocks["cached"] + blocks["owned"] == blocks["total"]
        return ledger

    def owned_blocks(self) -> int:
        blocks = self.ledger()["kv_blocks"]
        assert isinstance(blocks, dict)
        return int(blocks["owned"])

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
            child
            for child in psutil.Process(self.process.pid).children()
            if "triolet.actors.worker" in " ".join(child.cmdline())
        ]
        assert len(workers) == 1, workers
        return workers[0]

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert self.process.poll() is None, "the server has ended"
            assert time.monotonic() < deadline, f"never came true: {what}; {self.ledger()}"
            time.sleep(POLL)

    def wait_balanced(self) -> None:
        """Until no request is left, and no block owned."""
        self.wait_until(lambda: self.ledger()["requests"] == 0 and self.owned_blocks() == 0, "the ledger is balanced")


Serve = Callable[..., Server]


@contextmanager
def _served(*options: str) -> Iterator[Server]:
    command = [str(TRIOLET), "serve", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if found := re.search(r"ready at (http://\S+)", line):
                    yield Server(process, found[1])
                    break
            else:
                pytest.fail(f"`{' '.join(command)}` ended before it was ready, with status {process.wait()}")
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


@pytest.fixture(scope="module")
def serve() -> Iterator[Serve]:
    """Start servers with the given options of `triolet serve`; all end with the module's tests."""
    with ExitStack() as stack:
        yield lambda *options: stack.enter_context(_served(*options))
