"""Which of our files run for one chat request: a real server is asked, and a profiler in its processes listens.

A file counts when one of its functions runs between the socket and the end of the answer, in the web process or in the
worker, for a streamed chat completion on the CPU: for each of several, so that what runs once a second, beside some of
them, is left out. Two requests before them warm up what is made once. Compiled kernels run as machine code and are not
seen; nor are the messages of `protocol/`, which are made in C.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import httpx

ROOT = Path(__file__).resolve().parents[2]
LISTENER = Path(__file__).parent / "listener"  # its sitecustomize.py is imported by every Python process started here
QUESTION = {
    "model": "triolet-demo",
    "messages": [{"role": "user", "content": "What is 123 + 456?"}],
    "stream": True,
    "max_tokens": 4,  # a short answer: what runs beside some of them must not run beside each
}
REQUESTS = 12
_PATIENCE = 120.0  # seconds, on a busy machine; nothing is measured here


class Executed(NamedTuple):
    """The files that ran, relative to the root, with their functions."""

    functions: dict[str, frozenset[str]]

    @property
    def files(self) -> list[str]:
        return sorted(self.functions)

    @property
    def lines(self) -> int:
        """Of these files, whole."""
        return sum(len((ROOT / name).read_text().splitlines()) for name in self.files)


def trace_one_request(folder: Path) -> Executed:
    """Serve the bundled model, ask it one question and report what ran. `folder` takes what the processes write."""
    environment = {**os.environ, "PYTHONPATH": str(LISTENER), "LISTENER_ROOT": str(ROOT), "LISTENER_OUT": str(folder)}
    command = [str(Path(sys.executable).with_name("triolet")), "serve", "--port", "0"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        try:
            assert server.stdout is not None
            ready = re.search(rb"http://[\w.:]+", server.stdout.readline())
            assert ready, "the server did not start"
            url = ready[0].decode() + "/v1/chat/completions"
            for _ in range(2):
                _ask(url)
            processes = [server.pid, *_children(server.pid)]
            requests: list[set[tuple[str, str]]] = []
            for _ in range(REQUESTS):
                _toggle(processes, folder, "listening")
                _ask(url)
                _toggle(processes, folder, "heard")
                requests.append(_heard(folder))
        finally:
            server.terminate()
    functions: dict[str, set[str]] = {}
    for name, function in requests[0].intersection(*requests[1:]):
        functions.setdefault(name, set()).add(function)
    return Executed({name: frozenset(found) for name, found in functions.items()})


def _heard(folder: Path) -> set[tuple[str, str]]:
    """Files and functions that all processes have heard; the next listening begins anew."""
    found = {(name, function) for heard in folder.glob("*.heard") for name, function in json.loads(heard.read_text())}
    for file in (*folder.glob("*.heard"), *folder.glob("*.listening")):
        file.unlink()
    return found


def _ask(url: str) -> None:
    answer = httpx.post(url, json=QUESTION, timeout=_PATIENCE)
    assert answer.text.endswith("data: [DONE]\n\n"), answer.text


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _toggle(processes: list[int], folder: Path, becomes: str) -> None:
    """Tell every process to begin or to end listening, and wait until it has."""
    for pid in processes:
        os.kill(pid, signal.SIGUSR1)
    deadline = time.monotonic() + _PATIENCE
    while not all((folder / f"{pid}.{becomes}").exists() for pid in processes):
        assert time.monotonic() < deadline, f"no process is {becomes}"
        time.sleep(0.02)
