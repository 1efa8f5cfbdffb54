"""How much of the engine's rate remains through HTTP: streams of `triolet serve` against `triolet bench offline`.

    python -m triolet.loadtest.served_share MODEL [--quantize int8] [--batch 16] [--output-tokens 64 256] [--turns 5]

Both get the same load, with the client on the same cores, and alternate, so that both meet the same machine.
`share` is the median over the turns of served tokens/s divided by offline tokens/s. CPU seconds per 1,000 tokens of
client, front and worker are from the served rounds. The client is a separate process that reads raw sockets in one
loop. It only counts bytes and looks for each stream's end, so it takes little from the server. Linux only.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from .client.reader import LAST_CHUNK, Pipe, read_streams
from .client.request import post_json
from .process import TRIOLET, ServerProcess, launched, serving

FIRST_TOKEN_ID = 10  # as `bench offline` begins its prompts
END = b"data: [DONE]\n\n"
ROUND_SECONDS = 600.0  # a slow model's round; a stuck one still ends the run


class ServedLoad(NamedTuple):
    """One round of streams, each with its own cache salt."""

    streams: int
    prompt_tokens: int
    output_tokens: int


def request_of(load: ServedLoad, salt: str) -> bytes:
    """A completion of token ids, streamed to its full length."""
    return post_json(
        "/v1/completions",
        {
            "prompt": list(range(FIRST_TOKEN_ID, FIRST_TOKEN_ID + load.prompt_tokens)),
            "max_tokens": load.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "cache_salt": salt,
            "stream_options": {"include_usage": True},
        },
    )


def run_streams(port: int, load: ServedLoad, salts: Iterator[int]) -> tuple[float, int]:
    """Send all requests at once and read until the last ends: (seconds, pieces). Raises if an answer is incomplete."""
    requests = [request_of(load, f"{os.getpid()}-{next(salts)}") for _ in range(load.streams)]
    pipes = [Pipe(port, request, LAST_CHUNK) for request in requests]
    try:
        began = time.perf_counter()
        pieces = read_streams(pipes, deadline_seconds=ROUND_SECONDS)
        seconds = time.perf_counter() - began
        for pipe in pipes:
            _check_end(pipe.received()[-600:], load)
    finally:
        for pipe in pipes:
            pipe.close()
    return seconds, pieces


def _check_end(tail: bytes, load: ServedLoad) -> None:
    found = re.search(rb'"completion_tokens":(\d+)', tail)
    if END not in tail or found is None or int(found[1]) != load.output_tokens:
        raise RuntimeError(f"a stream ended with {tail[-300:]!r}")


def client() -> None:
    """The client process: a line of JSON for each round in, one out."""
    salts = count()
    for line in sys.stdin:
        order = json.loads(line)
        port, load = order.pop("port"), ServedLoad(**order)
        used = time.process_time()
        seconds, pieces = run_streams(port, load, salts)
        answer = {"seconds": seconds, "pieces": pieces, "cpu": time.process_time() - used}
        print(json.dumps(answer), flush=True)


def offline_rate(model: Path, options: list[str], load: ServedLoad, rounds: int) -> float:
    """Output tokens/s of `bench offline` at this load."""
    command = [TRIOLET, "bench", "offline", str(model), "--json", "--rounds", str(rounds), *options]
    command += ["--prompt-tokens", str(load.prompt_tokens), "--output-tokens", str(load.output_tokens)]
    done = subprocess.run([*command, "--batch", str(load.streams)], stdout=subprocess.PIPE, text=True, check=True)
    rate: float = json.loads(done.stdout)["output_tok_s"]
    return rate


def served_round(pipe: subprocess.Popen[bytes], server: ServerProcess, load: ServedLoad) -> dict[str, float]:
    """One round through HTTP: its rate, and CPU seconds per 1,000 tokens."""
    assert pipe.stdin is not None
    assert pipe.stdout is not None
    before = server.cpu_time()
    pipe.stdin.write(json.dumps({"port": server.port, **load._asdict()}).encode() + b"\n")
    pipe.stdin.flush()
    answer = json.loads(pipe.stdout.readline())
    after = server.cpu_time()
    thousands = load.streams * load.output_tokens / 1000
    return {
        "tok_s": thousands * 1000 / answer["seconds"],
        "pieces": answer["pieces"],
        "client_cpu": answer["cpu"] / thousands,
        "front_cpu": (after.server - before.server) / thousands,
        "worker_cpu": (after.worker - before.worker) / thousands,
    }


def median_of(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def measure(options: argparse.Namespace, load: ServedLoad) -> dict[str, Any]:  # Any: JSON
    """All turns of one load."""
    engine = ["--quantize", options.quantize, "--max-model-len", "1024", "--threads", str(options.threads)]
    command = [sys.executable, "-m", "triolet.loadtest.served_share", "--client"]
    turns: list[dict[str, float]] = []
    serve = [TRIOLET, "serve", str(options.model), "--port", "0", *engine]
    with (
        tempfile.TemporaryFile() as errors,
        serving(serve, errors) as server,
        launched(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None) as pipe,
    ):
        served_round(pipe, server, load)  # warm-up, as `bench offline` does
        for turn in range(options.turns):
            # The first to run may have an advantage, so they alternate.
            offline = offline_rate(options.model, engine, load, options.rounds) if turn % 2 == 0 else 0.0
            served = median_of([served_round(pipe, server, load) for _ in range(options.rounds)])
            offline = offline or offline_rate(options.model, engine, load, options.rounds)
            turns.append({"share": served["tok_s"] / offline, "offline_tok_s": offline, **served})
            print(json.dumps(turns[-1]), file=sys.stderr, flush=True)
    return {**load._asdict(), **median_of(turns), "lowest_share": min(turn["share"] for turn in turns), "turns": turns}


def main() -> None:
    if sys.argv[1:] == ["--client"]:
        client()
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="checkpoint folder")
    parser.add_argument("--quantize", default="int8", choices=["none", "int8", "int4"])
    parser.add_argument("--batch", type=int, default=16, help="streams at once")
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--output-tokens", type=int, nargs="+", default=[64, 256], help="one load for each")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3, help="of each side in a turn; their median counts")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    loads = [ServedLoad(options.batch, options.prompt_tokens, tokens) for tokens in options.output_tokens]
    print(json.dumps([measure(options, load) for load in loads], indent=1))


if __name__ == "__main__":
    main()
