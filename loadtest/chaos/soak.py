"""The same for hours: `python -m triolet.loadtest.chaos.soak --minutes 60 --kills 6 --out FILE.json`.

Clients send short requests of every kind (mix.py), and some leave in the middle. Now and then all pause, and once no
request is left the server's processes are measured: so each figure is of a server that does nothing, and nothing of a
request may be in it. The exit status is 1 if an answer failed, something is left, or memory is not flat.
"""

import argparse
import json
import os
import random
import re
import signal
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

import trio
from msgspec import Struct, structs

from ..client.client import HttpClient
from ..client.dial import Endpoint, read_url
from ..client.ending import Fault
from ..machine import machine, versions
from ..process import TRIOLET, ServerProcess, serving
from ..serve.charts import Chart, Line
from ..serve.plots import svg
from ..serve.report_html import STYLE
from .mix import ShortRequests
from .run import LEFT

CLIENTS: Final = 24
SETTLE_SECONDS: Final = 20.0  # for the last requests, and a worker that is being replaced
STILL_SECONDS: Final = 0.5  # for what is freed behind the last answer
WARM: Final = 30_000  # requests until every cache, pool and ring has its size: the flight recorder's is the last
FLAT_BYTES: Final = 1 << 20  # growth that is allowed in 10,000 requests after that


class Sample(Struct, frozen=True, kw_only=True):
    seconds: float
    requests: int
    front: dict[str, int]  # bytes, by the names of the kernel
    worker: dict[str, int]
    worker_pid: int
    ledger: dict[str, Any]  # Any: JSON


class SoakResult(Struct, kw_only=True):
    minutes: float
    seed: int
    samples: list[Sample] = []
    counts: Counter[str] = Counter()
    faults: list[str] = []  # of requests
    kills: int = 0

    def growth(self, name: str) -> float | None:
        """Bytes in 10,000 requests after the warm-up, by the median slope; of the worker, only of one that lived on."""
        last = self.samples[-1].worker_pid
        same = [each for each in self.samples if name == "front" or each.worker_pid == last]
        begun = same[0].requests if same[0] is not self.samples[0] else 0  # a new worker warms up again
        warm = [each for each in same if each.requests >= begun + WARM]
        slopes = [
            (getattr(later, name)["Rss"] - getattr(earlier, name)["Rss"]) / (later.requests - earlier.requests)
            for place, earlier in enumerate(warm)
            for later in warm[place + 1 :]
        ]
        return statistics.median(slopes) * 10_000 if slopes else None

    def judged(self) -> list[str]:
        """What must not be."""
        first, last = self.samples[0].ledger, self.samples[-1].ledger
        found = [f"{len(self.faults)} requests failed: {self.faults[:3]}"] if self.faults else []
        found += [f"{name}: {last[name]} after {first[name]}" for name in LEFT if last[name] > first[name]]
        found += [f"{last['kv_blocks']['owned']} blocks are owned"] if last["kv_blocks"]["owned"] else []
        for name in ("front", "worker"):
            if (grown := self.growth(name)) is not None and grown > FLAT_BYTES:
                found.append(f"the {name} grows by {grown / 2**20:.2f} MiB in 10,000 requests")
        return found


class Soak:
    def __init__(self, server: Endpoint, pid: int, result: SoakResult) -> None:
        self.result = result
        self._server, self._pid = server, pid
        self._root = HttpClient(server)
        self._began = trio.current_time()
        self._texts: dict[int, str] = {}
        self._asking = 0
        self._open = trio.Event()

    async def run(self, *, requests: int, every_requests: int, every_seconds: float, kills: int) -> None:
        """Until either limit; sampled after each `every`."""
        limit = self.result.minutes * 60
        kill_at = [limit * (number + 0.5) / kills for number in range(kills)]
        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                nursery.start_soon(self._client, random.Random(self.result.seed * 1000 + number))
            while True:
                self._open.set()
                before, until = self._requests, trio.current_time() + every_seconds
                while trio.current_time() < until and self._requests < before + every_requests:
                    await trio.sleep(0.05)
                    if kill_at and trio.current_time() - self._began > kill_at[0]:
                        kill_at.pop(0)
                        self.result.kills += 1
                        os.kill(self._worker(), signal.SIGKILL)
                self._open = trio.Event()
                self.result.samples.append(sample := await self._measure())
                print(json.dumps(structs.asdict(sample)), file=sys.stderr, flush=True)
                if sample.seconds >= limit or sample.requests >= requests or len(self.result.faults) > 100:
                    break
            nursery.cancel_scope.cancel()

    @property
    def _requests(self) -> int:
        return sum(self.result.counts.values())

    def _worker(self) -> int:
        worker = ServerProcess(self._pid).largest_child()
        assert worker is not None
        return worker

    async def _client(self, rng: random.Random) -> None:
        mix = ShortRequests(self._server, rng, self.result.counts, self._texts)
        while True:
            if not self._open.is_set():
                await mix.close()  # so that no connection is counted
            await self._open.wait()
            self._asking += 1
            if fault := await mix.ask():
                self.result.faults.append(fault)
            self._asking -= 1

    async def _measure(self) -> Sample:
        ledger: dict[str, Any] = {}  # Any: JSON
        with trio.move_on_after(SETTLE_SECONDS):
            while True:
                await trio.sleep(STILL_SECONDS)
                try:
                    ledger = json.loads(await self._root.fetch("GET", "/internal/ledger"))
                except Fault as fault:
                    self.result.faults.append(f"ledger: {fault}")
                    continue
                wanted = self.result.samples[0].ledger if self.result.samples else ledger
                if not (self._asking or ledger["requests"] or ledger["kv_blocks"]["owned"]) and all(
                    ledger[name] <= wanted[name] for name in LEFT
                ):
                    break
        worker = self._worker()
        return Sample(
            seconds=round(trio.current_time() - self._began, 1),
            requests=self._requests,
            front=memory(self._pid),
            worker=memory(worker),
            worker_pid=worker,
            ledger=ledger,
        )


def memory(pid: int) -> dict[str, int]:
    """Bytes that a process has in RAM. Pss: shared pages count as a share of them; Anonymous: in no file."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return {
        name: int(size) * 1024 for name, size in re.findall(r"^(Rss|Pss|Anonymous|Private_Dirty):\s+(\d+)", text, re.M)
    }


def report(result: SoakResult, command: list[str]) -> dict[str, Any]:
    grown = {name: result.growth(name) for name in ("front", "worker")}
    return {
        "machine": structs.asdict(machine()),
        "versions": versions("trio", "msgspec", "numba"),
        "command": " ".join(command),
        "judged": result.judged() or "nothing failed, nothing left, memory flat",
        "mib_in_10000_requests": {
            name: None if each is None else round(each / 2**20, 3) for name, each in grown.items()
        },
        **structs.asdict(result),
        "samples": [structs.asdict(each) for each in result.samples],
    }


def page(result: SoakResult) -> str:
    """Pictures over the requests: memory of both processes, and what the ledger counts."""
    xs = tuple(float(each.requests) for each in result.samples)

    def chart(title: str, unit: str, lines: dict[str, list[float]]) -> str:
        drawn = tuple(Line(name=name, xs=xs, ys=tuple(ys)) for name, ys in lines.items())
        return f"<figure>{svg(Chart(title=title, x_label='requests', y_label=unit, lines=drawn))}</figure>"

    def mib(name: str) -> list[float]:
        return [getattr(each, name)["Rss"] / 2**20 for each in result.samples]

    figures = [
        chart("Memory of the server's process", "MiB (RSS)", {"front": mib("front")}),
        chart("Memory of its worker", "MiB (RSS)", {"worker": mib("worker")}),
        chart("Left when nothing runs", "", {n: [float(e.ledger[n]) for e in result.samples] for n in LEFT}),
        chart("KV blocks", "owned", {"owned": [float(e.ledger["kv_blocks"]["owned"]) for e in result.samples]}),
    ]
    heading = f"{sum(result.counts.values()):,} requests in {result.samples[-1].seconds / 60:.0f} minutes"
    title = f"<!doctype html><meta charset=utf-8><title>{heading}</title><style>{STYLE}</style><h1>{heading}</h1>"
    return "\n".join([title, *figures])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m triolet.loadtest.chaos.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="ends after that")
    parser.add_argument("--requests", type=int, default=10**9, help="or after so many")
    parser.add_argument("--every", type=int, default=10**9, help="requests between two samples; else a minute")
    parser.add_argument("--kills", type=int, default=0, help="of the worker, spread over the time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where to write the result")
    options = parser.parse_args()
    result = SoakResult(minutes=options.minutes, seed=options.seed, counts=Counter())
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryDirectory() as data:
        command = [TRIOLET, "serve", "--port", "0", "--data", data, "--log-level", "warning"]
        with serving(command, errors) as server:

            async def run() -> None:
                soak = Soak(read_url(f"http://127.0.0.1:{server.port}", path=""), server.pid, result)
                await soak.run(
                    requests=options.requests,
                    every_requests=options.every,
                    every_seconds=60.0 if options.every == 10**9 else 3600.0,
                    kills=options.kills,
                )

            trio.run(run)
    text = json.dumps(report(result, sys.argv), indent=1)
    if options.out:
        options.out.write_text(text + "\n")
        options.out.with_suffix(".html").write_text(page(result))
    else:
        print(text)
    raise SystemExit("; ".join(result.judged()) or None)


if __name__ == "__main__":
    main()
