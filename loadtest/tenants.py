"""How long one key's requests wait for their first token while another key floods the server.

    python -m triolet.loadtest.tenants [--rounds 3] [--requests 40] [--apart] [--serve COMMAND …]

B sends one short request after another, with a pause between two. Each round has three phases, in an order that turns:
`solo`; beside 64 clients of A that ask one question after the other (`streams`); beside 64 clients of A whose prompts
have 2,000 tokens, no two alike (`prompts`). The flood comes from a process of its own, so that its work does not delay
B's clock. Standard output gets one JSON object: B's times to the first token in every
phase, their quantiles, what the server computed for A meanwhile, and how busy others kept the machine before.

With `--apart` A floods a second server on the same cores: what the cores alone cost B, when nothing else is shared.
"""

import argparse
import json
import random
import re
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from math import ceil
from time import perf_counter
from typing import Any, Final

import trio
from msgspec import Struct

from .client.body import EventStream
from .client.chunk import PATHS, decode_chunk
from .client.client import HttpClient
from .client.dial import read_url
from .machine import busy_share, machine, versions
from .process import TRIOLET, launched, serving

FLOODER: Final = "key-of-a"
OTHER: Final = "key-of-b"
FLOODS: Final = {"streams": 16, "prompts": 2000}  # tokens of A's prompts
WORDS: Final = range(300, 2000)  # token ids of A's prompts
COUNTED: Final = ("prompt_tokens", "generation_tokens")  # of requests that ended; of all


class Flood(Struct, frozen=True, kw_only=True):
    clients: int = 64  # of A
    answer: int = 128  # tokens of each of A's answers
    requests: int = 40  # of B in a phase
    tokens: int = 8  # of each of B's answers
    pause_seconds: float = 0.05
    warm_seconds: float = 3.0  # of a flood before B begins


class TenantPhase(Struct, kw_only=True):
    """A phase: B's seconds to the first token, and what was computed per second meanwhile."""

    first: list[float]
    rates: dict[str, float]


async def flood(port: int, length: int, load: Flood) -> None:
    """A's clients, until cancelled."""
    client, seed = HttpClient(read_url(f"http://127.0.0.1:{port}", "")), random.Random(length)

    async def ask() -> None:
        while True:
            body = {"prompt": seed.choices(WORDS, k=length), "max_tokens": load.answer, "ignore_eos": True}
            data, path = json.dumps(body | {"stream": True}).encode(), f"/v1{PATHS['completions']}"
            async with client.request("POST", path, data, key=FLOODER) as (response, _sent, _reused):
                while await response.read():
                    pass

    async with trio.open_nursery() as nursery:
        for _ in range(load.clients):
            nursery.start_soon(ask)


class Tenants:
    """B's client of the server at this port, and the floods of the one at `flooded`, which may be the same."""

    def __init__(self, port: int, flooded: int, load: Flood) -> None:
        self._flooded = flooded
        self._client = HttpClient(read_url(f"http://127.0.0.1:{port}", ""))
        self._load = load

    async def phase(self, prompt: int) -> TenantPhase:
        """B's requests, beside a flood of prompts of this length; 0: alone."""
        if not prompt:
            return await self._measure()
        command = [sys.executable, "-m", "triolet.loadtest.tenants", "--flood", str(self._flooded), str(prompt)]
        with launched(command) as process:
            await trio.sleep(self._load.warm_seconds)
            measured = await self._measure()
            if process.poll() is not None:
                raise SystemExit("a request of A failed")
            return measured

    async def _measure(self) -> TenantPhase:
        load, first = self._load, list[float]()
        began, before = perf_counter(), await self._counters()
        for number in range(load.requests):
            await trio.sleep(load.pause_seconds)
            first.append(await self._first(number))
        after, seconds = await self._counters(), perf_counter() - began
        return TenantPhase(first=first, rates={name: (after[name] - before[name]) / seconds for name in COUNTED})

    async def _first(self, number: int) -> float:
        """Seconds until B's answer begins."""
        question = [{"role": "user", "content": f"Tell me {number} things about the sea."}]
        body = {"messages": question, "max_tokens": self._load.tokens, "ignore_eos": True, "stream": True}
        began, first, events = perf_counter(), 0.0, EventStream()
        data = json.dumps(body).encode()
        path = f"/v1{PATHS['chat']}"
        async with self._client.request("POST", path, data, key=OTHER) as (response, _sent, _reused):
            while piece := await response.read():
                found = events.feed(piece)
                if not first and any(event != b"[DONE]" and decode_chunk(event).text() for event in found):
                    first = perf_counter() - began
        if not first:
            raise SystemExit(f"a request of B has no answer: {response.head.status}")
        return first

    async def _counters(self) -> dict[str, int]:
        page = (await self._client.fetch("GET", "/metrics", key=OTHER)).decode()
        found = {name: re.search(rf"^triolet_{name}_total(?:{{.*}})? (\S+)$", page, re.MULTILINE) for name in COUNTED}
        return {name: int(float(match[1])) if match else 0 for name, match in found.items()}


def quantile(values: Sequence[float], share: float) -> float:
    """The nearest rank."""
    return sorted(values)[max(ceil(share * len(values)), 1) - 1]


def figures(rounds: Sequence[dict[str, TenantPhase]]) -> dict[str, Any]:
    """Milliseconds of all rounds together, and their ratios to solo."""
    found: dict[str, Any] = {}
    for name in rounds[0]:
        first = [1000 * seconds for each in rounds for seconds in each[name].first]
        found[name] = {
            "requests": len(first),
            "ttft_p50": quantile(first, 0.5),
            "ttft_p95": quantile(first, 0.95),
            "ttft_max": max(first),
            **{rate: statistics.median(each[name].rates[rate] for each in rounds) for rate in COUNTED},
        }
    for name in FLOODS:
        for key in ("ttft_p50", "ttft_p95"):
            found[name][f"{key}_to_solo"] = found[name][key] / found["solo"][key]
    return found


async def run(tenants: Tenants, rounds: int) -> list[dict[str, TenantPhase]]:
    lengths = {"solo": 0, **FLOODS}
    for length in lengths.values():
        await tenants.phase(length)  # warm
    found: list[dict[str, TenantPhase]] = []
    for number in range(rounds):
        names = [*lengths]
        turned = names[number % 3 :] + names[: number % 3]
        phases = {name: await tenants.phase(lengths[name]) for name in turned}
        found.append({name: phases[name] for name in names})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="One key's time to the first token while another key floods.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=Flood().requests)
    parser.add_argument("--apart", action="store_true", help="A floods a server of its own")
    parser.add_argument("--serve", nargs="+", default=[TRIOLET, "serve"])
    parser.add_argument("--flood", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.flood:
        trio.run(flood, options.flood[0], options.flood[1], Flood())
    load, busy = Flood(requests=options.requests), busy_share()
    with tempfile.TemporaryFile() as errors, tempfile.NamedTemporaryFile("w") as keys:
        keys.write(f"{FLOODER}\n{OTHER}\n")
        keys.flush()
        command = [*options.serve, "--port", "0", "--api-key", f"@{keys.name}"]
        with ExitStack() as servers:
            ports = [servers.enter_context(serving(command, errors)).port for _ in range(1 + options.apart)]
            rounds = trio.run(run, Tenants(ports[0], ports[-1], load), options.rounds)
    result = {
        "command": " ".join(options.serve),
        "servers": len(ports),
        "load": {name: getattr(load, name) for name in Flood.__struct_fields__},
        "machine": {name: getattr(machine(), name) for name in machine().__struct_fields__},
        "versions": versions("numba", "llvmlite"),
        "busy_share_before": busy,
        "figures": figures(rounds),
        "rounds": [{name: {"first": one.first, **one.rates} for name, one in each.items()} for each in rounds],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
