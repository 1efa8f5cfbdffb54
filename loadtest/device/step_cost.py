"""What a decode step costs beside its forward pass, by process and thread: wall time, CPU time, context switches.

    python -m triolet.loadtest.device.step_cost MODEL [--quantize int8] [--batch 1 16] [--json]

The engine runs here as it does under `triolet serve`, without the web; the worker is its child. Wall time splits into
the forward pass, the rest of a step in the worker, and the time between two steps in which the worker waits for the
front. CPU time is the better measure on a machine with other work: it is read from /proc for every thread, and what
loops and step threads use is taken from the kernels' cores. Linux only.
"""

import argparse
import json
import os
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import trio

from triolet.actors.engine import Engine, open_engine
from triolet.protocol.events import Failed
from triolet.protocol.requests import Generate, TokenPrompt
from triolet.protocol.sampling import Sampling
from triolet.protocol.settings import EngineSettings, ServeSettings

PROC = Path("/proc")


class ThreadUse(NamedTuple):
    """What a thread, or several, used so far."""

    seconds: float = 0.0  # on a core
    waited: float = 0.0  # ready to run, on no core
    slept: int = 0  # voluntary context switches
    preempted: int = 0

    def less(self, earlier: "ThreadUse") -> "ThreadUse":
        return ThreadUse(
            self.seconds - earlier.seconds,
            self.waited - earlier.waited,
            self.slept - earlier.slept,
            self.preempted - earlier.preempted,
        )


def threads_of(pid: int, proc: Path = PROC) -> dict[int, tuple[ThreadUse, bool]]:
    """By thread: its usage, and whether it may run on one core only, as kernel threads do."""
    found: dict[int, tuple[ThreadUse, bool]] = {}
    for task in (proc / str(pid) / "task").iterdir():
        try:
            ran, waited, _ = (task / "schedstat").read_text().split()
            lines = (line.partition(":") for line in (task / "status").read_text().splitlines())
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        status = {name: value.strip() for name, _, value in lines}
        slept, preempted = int(status["voluntary_ctxt_switches"]), int(status["nonvoluntary_ctxt_switches"])
        usage = ThreadUse(int(ran) / 1e9, int(waited) / 1e9, slept, preempted)
        found[int(task.name)] = usage, status["Cpus_allowed_list"].isdecimal()
    return found


def total(usages: Iterable[ThreadUse]) -> ThreadUse:
    seconds, waited, slept, preempted = zip(ThreadUse(), *usages, strict=True)
    return ThreadUse(sum(seconds), sum(waited), sum(slept), sum(preempted))


def by_role(front: int, worker: int) -> dict[str, ThreadUse]:
    """The front, the worker's event loop, its kernel threads, and its other threads (the one of the steps)."""
    threads = threads_of(worker)
    return {
        "front": total(usage for usage, _ in threads_of(front).values()),
        "worker_loop": threads[worker][0],
        "step_thread": total(usage for id, (usage, pinned) in threads.items() if id != worker and not pinned),
        "kernels": total(usage for usage, pinned in threads.values() if pinned),
    }


async def decode(engine: Engine, load: argparse.Namespace, batch: int, salt: str) -> None:
    """Run `batch` sequences to their end."""
    prompt = TokenPrompt(token_ids=tuple(range(10, 10 + load.prompt_tokens)))
    sampling = Sampling(temperature=load.temperature, seed=1)

    async def run(sequence: int) -> None:
        request = Generate(
            id=engine.gateway.new_id(),
            model=engine.model_name,
            prompts=(prompt,),
            sampling=sampling,
            max_tokens=load.output_tokens,
            ignore_eos=True,
            cache_salt=f"{salt}.{sequence}",
        )
        async for event in engine.stream(request):
            if isinstance(event, Failed):
                raise RuntimeError(event.message)

    async with trio.open_nursery() as nursery:
        for sequence in range(batch):
            nursery.start_soon(run, sequence)


async def _step_seconds(engine: Engine) -> float:
    return (await engine.report()).worker.step_time.sum


async def measure(engine: Engine, load: argparse.Namespace, batch: int, salt: str) -> dict[str, float]:
    """One round, its figures per step."""
    assert engine.ready is not None
    pids = os.getpid(), engine.ready.pid
    usage, totals, computed = by_role(*pids), engine.scheduler_statistics().totals, await _step_seconds(engine)
    began = trio.current_time()
    await decode(engine, load, batch, salt)
    wall = trio.current_time() - began
    now, later, computed = by_role(*pids), engine.scheduler_statistics().totals, await _step_seconds(engine) - computed
    steps, model = later.steps - totals.steps, later.model_seconds - totals.model_seconds
    figures = {
        "step_ms": wall / steps * 1e3,
        "outside_share": 1 - model / wall,
        "worker_us": (computed - model) / steps * 1e6,
        "between_us": (wall - computed) / steps * 1e6,
    }
    for role, used in now.items():
        spent = used.less(usage[role])
        figures |= {
            f"{role}_cpu_us": spent.seconds / steps * 1e6,
            f"{role}_sleeps": spent.slept / steps,
            f"{role}_preempted": spent.preempted / steps,
        }
    return figures


async def run(options: argparse.Namespace, results: dict[str, dict[str, float]]) -> None:
    settings = EngineSettings(
        model=str(options.model), quantize=options.quantize, max_model_len=1024, threads=options.threads
    )
    async with open_engine(ServeSettings(engine=settings)) as engine:
        for batch in options.batch:
            await decode(engine, options, batch, "warm-up")
            rounds = [await measure(engine, options, batch, str(number)) for number in range(options.rounds)]
            results[str(batch)] = {name: statistics.median(figures[name] for figures in rounds) for name in rounds[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="checkpoint folder")
    parser.add_argument("--quantize", default="int8", choices=["none", "int8", "int4"])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16], help="sequences at once")
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5, help="medians are of so many")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    trio.run(run, options, results)
    if options.json:
        print(json.dumps(results))
        return
    for batch, figures in results.items():
        print(f"{batch} sequences:")
        for name, value in figures.items():
            print(f"  {name:24} {value:10.3f}")


if __name__ == "__main__":
    main()
