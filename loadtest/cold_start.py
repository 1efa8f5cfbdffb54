"""Time from starting `triolet serve` to the first streamed token over HTTP, compared with `import torch`.

    python -m triolet.loadtest.cold_start [--rounds 7] [--torch PYTHON] [--serve COMMAND …]

Both are started alternately. A first, uncounted round makes sure that everything is compiled and cached. The medians
and the median of the ratios go to standard output as one JSON object. A server built on torch spends `import torch`
before its own first line. `--torch` names a Python that has torch; the default is the one that runs this.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

import trio

from .client.body import EventStream
from .client.chunk import PATHS, decode_chunk
from .client.client import HttpClient
from .client.dial import read_url
from .process import TRIOLET, serving

REQUEST = {
    "model": "triolet-demo", "stream": True, "max_tokens": 8,
    "messages": [{"role": "user", "content": "What is 2 + 3?"}],
}  # fmt: skip


class ColdStart(NamedTuple):
    """Seconds since the process was started."""

    ready: float
    first_token: float


def has_text(event: bytes) -> bool:
    """Whether a server-sent event has text; a chat's first one has only the role."""
    return event != b"[DONE]" and bool(decode_chunk(event).text())


async def first_token(port: int) -> None:
    """Ask, and read up to the first text."""
    client, events = HttpClient(read_url(f"http://127.0.0.1:{port}"), most_idle=0), EventStream()
    async with client.request("POST", PATHS["chat"], json.dumps(REQUEST).encode()) as (response, _sent, _reused):
        while data := await response.read():
            if any(map(has_text, events.feed(data))):
                return
    raise SystemExit("the answer had no text")


def start(command: Sequence[str]) -> ColdStart:
    with tempfile.TemporaryFile() as errors:
        began = perf_counter()
        with serving([*command, "--port", "0"], errors) as server:
            ready = perf_counter() - began
            trio.run(first_token, server.port)
            return ColdStart(ready, perf_counter() - began)


def import_torch(python: str) -> float:
    began = perf_counter()
    subprocess.run([python, "-c", "import torch"], check=True)
    return perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description="Time from process start to the first streamed token.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--torch", default=sys.executable, help="a Python with torch")
    parser.add_argument("--serve", nargs="+", default=[TRIOLET, "serve"])
    options = parser.parse_args()
    first = start(options.serve)
    import_torch(options.torch)
    rounds: list[dict[str, float]] = []
    for _ in range(options.rounds):
        torch = import_torch(options.torch)
        rounds.append({"import_torch": torch, **start(options.serve)._asdict()})
    result = {
        "first_start": first._asdict(),
        "medians": {key: statistics.median(each[key] for each in rounds) for key in rounds[0]},
        "first_token_to_import_torch": statistics.median(each["first_token"] / each["import_torch"] for each in rounds),
        "python": platform.python_version(),
        "rounds": rounds,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
