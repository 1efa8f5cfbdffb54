"""The real server with every token streamed: `triolet serve` on random weights, clients in processes beside it.

Beside each rate stands the same model's without HTTP and scheduler, from the part before. With --dry-run a tiny model
on interpreted kernels, two streams, which shows that all of this works.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from triolet.loadtest.device.gpu_case import HERE, Figures, GpuCase, GpuMachine, Skip
from triolet.loadtest.device.gpu_check import require
from triolet.loadtest.device.gpu_crew import given_folders
from triolet.loadtest.device.gpu_streams import StreamedLoad
from triolet.loadtest.device.random_model import LLAMA_8B, QWEN_600M, TINY, random_checkpoint
from triolet.loadtest.process import launched
from triolet.models.checkpoint.spec import ModelSpec

NEEDED = ("trio", "msgspec", "hypercorn", "quart", "quart_trio", "h2", "wsproto", "tokenizers", "click", "rich")
SERVE = "from triolet.cli.main import main; main()"
LOADED = ("--max-running", "256", "--max-step-tokens", "8192", "--max-model-len", "8448", "--kv-cache-memory", "24GiB")
DRY = ("--kernels", "interpret", "--max-running", "2", "--max-step-tokens", "4", "--max-model-len", "64",
       "--kv-cache-memory", "1MiB")  # fmt: skip
PROMPT, OUTPUT = 128, 256
STREAMS = (1, 64, 256)
OF_A_CLIENT = 64  # streams: one process reads so many with time to spare


@contextmanager
def served(folder: Path, options: tuple[str, ...]) -> Generator[tuple[int, float]]:
    """The port of `triolet serve`, and the seconds of its start. What it says goes to standard error."""
    began = time.perf_counter()
    command = [sys.executable, "-c", SERVE, "serve", str(folder), "--port", "0", "--device", "cuda", *options]
    with launched(command, stdout=subprocess.PIPE, stderr=None) as process:
        assert process.stdout is not None
        address: str = process.stdout.readline().decode()
        if not address:
            raise RuntimeError(f"triolet serve ended with status {process.wait()}; see log.txt")
        port = urlsplit(address.split()[-1]).port
        assert port is not None
        yield port, time.perf_counter() - began


def stream(port: int, streams: int, prompt: int, output: int, vocab_size: int, round: int) -> Figures:
    """All streams at once, none of whose prompts the server has seen."""
    loads = [
        StreamedLoad(port, 10_000 * round + first, min(OF_A_CLIENT, streams - first), prompt, output, vocab_size)
        for first in range(0, streams, OF_A_CLIENT)
    ]
    command = [sys.executable, "-m", f"{HERE}.gpu_streams"]
    with ExitStack() as stack:
        clients = [
            stack.enter_context(launched(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None))
            for _ in loads
        ]
        for client, load in zip(clients, loads, strict=True):
            say(client, json.dumps(asdict(load)))
            assert client.stdout is not None
            require(client.stdout.readline() == b"ready\n", "a client did not start; see log.txt")
        began = time.perf_counter()
        for client in clients:
            say(client, "go")
        found = [one for client in clients for one in json.loads(client.communicate()[0] or "[]")]
    return figures_of(found, streams, output, began)


def say(client: subprocess.Popen[bytes], line: str) -> None:
    assert client.stdin is not None
    client.stdin.write(line.encode() + b"\n")
    client.stdin.flush()


def figures_of(found: list[dict[str, Any]], streams: int, output: int, began: float) -> Figures:  # Any: JSON
    """Raises Wrong where a token is missing. The rate is of the time in which every stream gets tokens."""
    faults = [one["fault"] for one in found if one["fault"]]
    require(not faults, f"{len(faults)} streams failed: {faults[:1]}")
    tokens = [sum(count for _, count in one["arrivals"]) for one in found]
    require(tokens == [output] * streams, f"{sum(tokens)} tokens came of {streams} x {output}")
    firsts = [one["arrivals"][0][0] for one in found]
    begin, end = max(firsts), min(one["arrivals"][-1][0] for one in found)
    inside = sum(count for one in found for when, count in one["arrivals"] if begin < when <= end)
    last = max(one["arrivals"][-1][0] for one in found)
    gaps = sorted(
        later[0] - earlier[0]
        for one in found
        for earlier, later in zip(one["arrivals"], one["arrivals"][1:], strict=False)
    )
    return {
        "tokens_s": inside / (end - begin) if end > begin else streams * output / (last - began),
        "whole_run_tokens_s": streams * output / (last - began),
        "first_token_ms": 1e3 * (statistics.median(firsts) - began),
        "gap_p99_ms": 1e3 * gaps[int(0.99 * len(gaps))] if gaps else 0.0,
        "tokens_per_frame": streams * output / max(1, sum(one["frames"] - 1 for one in found)),
    }


def measure(name: str, spec: ModelSpec, machine: GpuMachine) -> Figures:
    if missing := [package for package in NEEDED if find_spec(package) is None]:
        raise Skip(f"the server needs {', '.join(missing)}: pass --wheels with them")
    prompt, output, numbers = (2, 3, (2,)) if machine.dry else (PROMPT, OUTPUT, STREAMS)
    if not machine.dry:
        from triolet.loadtest.device.gpu_model_times import unload

        unload()
    with (
        random_checkpoint(spec, given_folders()) as folder,
        served(folder, DRY if machine.dry else LOADED) as (port, seconds),
    ):
        figures: Figures = {"start_s": seconds}
        if not machine.dry:
            stream(port, numbers[-1], prompt, 32, spec.vocab_size, 0)
        for round, streams in enumerate(numbers, 1):
            rate = stream(port, streams, prompt, output, spec.vocab_size, round)
            offline = machine.limits.get(f"{name} {'one stream' if streams == 1 else f'batch {streams}'} tokens_s")
            if offline is not None:
                rate |= {"offline_tokens_s": offline, "of_offline": rate["tokens_s"] / offline}
            figures |= {f"{streams}:{figure}": value for figure, value in rate.items()}
    return figures


def times(dry: bool) -> list[GpuCase]:
    models = {"tiny": TINY} if dry else {"llama-8b": LLAMA_8B, "qwen-0.6b": QWEN_600M}
    return [GpuCase(f"{name} over SSE", partial(measure, name, spec), on_host=True) for name, spec in models.items()]
