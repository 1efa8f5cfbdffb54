"""How long from starting `triolet serve` to the first streamed token over HTTP, beside `import torch`.

    python -m triolet.loadtest.cold_start [--rounds 7] [--torch PYTHON] [--serve COMMAND …]

Both are started in turn, with everything compiled and cached (a first round, not counted, sees to that); the medians
and the median of the ratios go to standard output as one JSON object. `import torch` is what a server built on torch
has spent before its own first line. `--torch` names a Python that has it, by default the one that runs this.
"""

import argparse
import http.client
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from time import perf_counter
from typing import NamedTuple

from .process import TRIOLET, serving

REQUEST = {
    "model": "triolet-demo", "stream": True, "max_tokens": 8,
    "messages": [{"role": "user", "content": "What is 2 + 3?"}],
}  # fmt: skip


class ColdStart(NamedTuple):
    """Seconds since the process was started."""

    ready: float
    first_token: float


def first_token_of(lines: Sequence[bytes] | http.client.HTTPResponse) -> bool:
    """Read server-sent events up to the first with text."""
    for line in lines:
        if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
            return True
    return False


def start(command: Sequence[str]) -> ColdStart:
    with tempfile.TemporaryFile() as errors:
        began = perf_counter()
        with serving([*command, "--port", "0"], errors) as server:
            ready = perf_counter() - began
            with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
                connection.request(
                    "POST", "/v1/chat/completions", json.dumps(REQUEST), {"Content-Type": "application/json"}
                )
                if not first_token_of(connection.getresponse()):
                    raise SystemExit("the answer had no text")
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
