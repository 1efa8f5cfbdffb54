"""What a batch costs the streams beside it: times between tokens and to the first one, alone and beside 1,000 lines.

    python -m triolet.loadtest.batch_beside [--rounds 5] [--serve COMMAND …]

A round is both, one after the other, in the order alone, beside or beside, alone. Between two streams of one client is
a pause, in which lines run; so every stream begins while they do. Standard output gets one JSON object with every
round, and how many lines had a result before and after.
"""

import argparse
import json
import platform
import statistics
import tempfile
from collections.abc import Sequence
from time import perf_counter, sleep
from typing import Any
from urllib.request import Request, urlopen

import trio
from msgspec import Struct

from .client.body import EventStream
from .client.chunk import PATHS, decode_chunk
from .client.client import HttpClient
from .client.dial import read_url
from .machine import versions
from .process import TRIOLET, serving

ENDPOINT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


class Load(Struct, frozen=True, kw_only=True):
    """The streams of one phase, one after the other, and the lines beside them."""

    streams: int = 12
    tokens: int = 200  # of each stream
    pause_seconds: float = 0.3  # between two streams
    lines: int = 1000
    line_tokens: int = 64


class Phase(Struct, kw_only=True):
    """Seconds between tokens, and to the first one."""

    gaps: list[float]
    first: list[float]

    def figures(self) -> dict[str, float]:
        """Milliseconds."""
        return {
            "itl_p50": 1000 * statistics.median(self.gaps),
            "itl_p99": 1000 * _p99(self.gaps),
            "itl_max": 1000 * max(self.gaps),
            "ttft_p50": 1000 * statistics.median(self.first),
            "ttft_max": 1000 * max(self.first),
        }


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]


class BatchClient:
    """The batches of the server at this address."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, method: str, path: str, data: bytes | None = None, type: str = "application/json") -> dict[str, Any]:
        request = Request(self._url + path, data=data, method=method, headers={"Content-Type": type})
        with urlopen(request, timeout=60) as answer:
            body: dict[str, Any] = json.load(answer)
            return body

    def begin_batch(self, load: Load) -> str:
        """Its id, once the first lines have results."""
        rows = [
            {
                "custom_id": str(number),
                "method": "POST",
                "url": ENDPOINT,
                "body": {
                    "messages": [{"role": "user", "content": f"What is {number} + {number * 7}?"}],
                    "max_tokens": load.line_tokens,
                    "ignore_eos": True,
                },
            }
            for number in range(load.lines)
        ]
        mark = "line-of-a-form"
        content = "\n".join(map(json.dumps, rows))
        form = (
            f'--{mark}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="lines.jsonl"\r\n\r\n{content}\r\n'
            f"--{mark}--\r\n"
        )
        file = self.ask("POST", "/v1/files", form.encode(), f"multipart/form-data; boundary={mark}")
        wanted = {"input_file_id": file["id"], "endpoint": ENDPOINT, "completion_window": "24h"}
        id: str = self.ask("POST", "/v1/batches", json.dumps(wanted).encode())["id"]
        while not self.done(id):
            sleep(0.05)
        return id

    def done(self, id: str) -> int:
        """Lines with a result."""
        counts = self.ask("GET", f"/v1/batches/{id}")["request_counts"]
        return int(counts["completed"] + counts["failed"])

    def end_batch(self, id: str) -> None:
        self.ask("POST", f"/v1/batches/{id}/cancel", b"")
        while self.ask("GET", f"/v1/batches/{id}")["status"] not in ENDED:
            sleep(0.05)


async def stream(port: int, load: Load) -> Phase:
    """The streams of one phase."""
    client, phase = HttpClient(read_url(f"http://127.0.0.1:{port}")), Phase(gaps=[], first=[])
    body = {
        "stream": True,
        "ignore_eos": True,
        "max_tokens": load.tokens,
        "messages": [{"role": "user", "content": "Tell me about the sea."}],
    }
    for _ in range(load.streams):
        await trio.sleep(load.pause_seconds)
        events, last = EventStream(), 0.0
        began = perf_counter()
        async with client.request("POST", PATHS["chat"], json.dumps(body).encode()) as (response, _sent, _reused):
            while data := await response.read():
                now = perf_counter()
                if not any(event != b"[DONE]" and decode_chunk(event).text() for event in events.feed(data)):
                    continue
                if last:
                    phase.gaps.append(now - last)
                else:
                    phase.first.append(now - began)
                last = now
    return phase


def run_round(port: int, load: Load, *, beside_first: bool) -> dict[str, Any]:
    """Both phases; figures in milliseconds."""
    client = BatchClient(f"http://127.0.0.1:{port}")
    result: dict[str, Any] = {}
    for beside in (True, False) if beside_first else (False, True):
        if not beside:
            result["alone"] = trio.run(stream, port, load).figures()
            continue
        id = client.begin_batch(load)
        before = client.done(id)
        result["beside"] = trio.run(stream, port, load).figures()
        after = client.done(id)
        if after >= load.lines:
            raise SystemExit(f"all {load.lines} lines were done before the streams: take more, or fewer streams")
        result["lines_done"] = [before, after]
        client.end_batch(id)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="What a batch costs the streams beside it.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lines", type=int, default=Load().lines)
    parser.add_argument("--line-tokens", type=int, default=Load().line_tokens)
    parser.add_argument("--serve", nargs="+", default=[TRIOLET, "serve"])
    options = parser.parse_args()
    load = Load(lines=options.lines, line_tokens=options.line_tokens)
    with (
        tempfile.TemporaryFile() as errors,
        tempfile.TemporaryDirectory() as data,
        serving([*options.serve, "--port", "0", "--data", data], errors) as server,
    ):
        trio.run(stream, server.port, load)  # warm
        rounds = [run_round(server.port, load, beside_first=bool(number % 2)) for number in range(options.rounds)]
    names = rounds[0]["alone"]
    result = {
        "load": {name: getattr(load, name) for name in Load.__struct_fields__},
        "medians": {
            phase: {name: statistics.median(each[phase][name] for each in rounds) for name in names}
            for phase in ("alone", "beside")
        },
        "beside_to_alone": {
            name: statistics.median(each["beside"][name] / each["alone"][name] for each in rounds) for name in names
        },
        "python": platform.python_version(),
        "versions": versions(),
        "rounds": rounds,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
