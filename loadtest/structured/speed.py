"""How fast are answers that follow a schema, beside free ones? And do other streams notice that a grammar is built?

    python -m triolet.loadtest.structured.speed [--random] [--rows 16] [--tokens 256] [--rounds 5] [--threads N]

Runs the engine without a web server. Each round decodes `rows` free answers, then as many with a schema without
jumping ahead, then with it; a schema whose keys are fixed, and one that is nearly all text. Speeds are counted by the
clock and in CPU time of all processes, which a busy machine disturbs less. Then eight free streams run alone, while
large schemas are compiled and built, and beside an endless loop in the class SCHED_IDLE: what that costs is the
machine's, since no computation can have a lower priority. `--random` takes a larger model of random weights, with
32,000 tokens. The result is one JSON object on standard output.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count, pairwise
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Final, NamedTuple

import trio
from llguidance import LLMatcher
from msgspec import to_builtins

from triolet.actors.engine import Engine, open_engine
from triolet.loadtest.device.random_model import random_checkpoint
from triolet.loadtest.machine import busy_share, machine, versions
from triolet.models.checkpoint.spec import ModelSpec, alike
from triolet.protocol.events import Finished, Token
from triolet.protocol.grammars import GrammarSource
from triolet.protocol.requests import Generate, TextPrompt
from triolet.protocol.sampling import Sampling
from triolet.protocol.settings import EngineSettings, ServeSettings

DEMO: Final = Path(__file__).resolve().parents[2] / "models" / "demo" / "checkpoint"
LARGER: Final = ModelSpec(
    family="qwen3", vocab_size=32_000, hidden_size=768, layers=alike(12), num_heads=12, num_kv_heads=4, head_dim=64,
    mlp_size=2048, norm_eps=1e-6, max_position=2048, qk_norm="head", tied_embeddings=True,
)  # fmt: skip
ITEM: Final = {
    "type": "object",
    "properties": {
        "product_identifier": {"type": "integer", "maximum": 999_999, "minimum": 0},
        "manufacturer_country": {"enum": ["Germany", "Japan", "Brazil"]},
        "available_in_the_warehouse": {"type": "boolean"},
    },
    "required": ["product_identifier", "manufacturer_country", "available_in_the_warehouse"],
    "additionalProperties": False,
}
SCHEMAS: Final[dict[str, dict[str, Any]]] = {  # Any: JSON. Neither ends before an answer is full
    "keys": {"type": "array", "items": ITEM, "minItems": 400},
    "text": {"type": "array", "items": {"type": "string", "minLength": 200}, "minItems": 100},
}


class Speed(NamedTuple):
    """Tokens in a second of the clock, and in a second of CPU time."""

    clock: float
    cpu: float


def grammar_of(schema: dict[str, Any]) -> str:  # Any: JSON
    return LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False})


def slow_schema(number: int) -> str:
    """A schema that takes most of a second to compile, and to build again; every number is another one."""
    fields = {f"field_{(number * 8000 + place) * 7919 % 10_000_019}": {"type": "integer"} for place in range(8000)}
    return json.dumps({"type": "object", "properties": fields, "required": [*fields]})


def request(engine: Engine, seed: int, tokens: int, grammar: str = "", *, schema: str = "") -> Generate:
    return Generate(
        id=engine.gateway.new_id(),
        model=engine.model_name,
        prompts=(TextPrompt(text=f"List {seed}:"),),
        sampling=Sampling(temperature=1.0, seed=seed),
        max_tokens=tokens,
        ignore_eos=not (grammar or schema),
        grammar=grammar,
        grammar_source=GrammarSource(kind="json_schema", text=schema, param="schema") if schema else None,
    )


async def read(engine: Engine, generate: Generate, times: list[float] | None = None) -> int:
    """Its tokens, and when each event with text came."""
    event: object = None
    async for event in engine.stream(generate):
        if times is not None and isinstance(event, Token):
            times.append(perf_counter())
        if isinstance(event, Finished):
            return event.usage.completion_tokens
    raise SystemExit(f"an answer failed: {event}")


def cpu_seconds() -> float:
    """CPU time of this process and of the processes that it has started and not ended."""
    children = [Path(f"/proc/{pid}/stat") for task in Path("/proc/self/task").iterdir()
                for pid in (task / "children").read_text().split()]  # fmt: skip
    ticks = sum(sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13])) for stat in children)
    return process_time() + ticks / os.sysconf("SC_CLK_TCK")


async def speed(engine: Engine, rows: int, tokens: int, grammar: str) -> Speed:
    """Of all rows together."""
    found: list[int] = []

    async def one(seed: int) -> None:
        found.append(await read(engine, request(engine, seed, tokens, grammar)))

    began, cpu = perf_counter(), cpu_seconds()
    async with trio.open_nursery() as nursery:
        for seed in range(rows):
            nursery.start_soon(one, seed)
    if found != [tokens] * rows:
        raise SystemExit(f"answers of {found} tokens, not {tokens}")
    return Speed(rows * tokens / (perf_counter() - began), rows * tokens / (cpu_seconds() - cpu))


async def gaps(engine: Engine, tokens: int, schemas: Iterator[str]) -> list[float]:
    """Seconds between the events of eight free streams, while a client asks for one schema after another."""
    times: list[list[float]] = [[] for _ in range(8)]
    ended = trio.Event()

    async def build() -> None:
        for schema in schemas:
            await read(engine, request(engine, 0, 1, schema=schema))
            if ended.is_set():  # not cancelled: its schema would be built beside the next streams
                return

    async with trio.open_nursery() as outer:
        outer.start_soon(build)
        async with trio.open_nursery() as nursery:
            for seed, mine in enumerate(times):
                nursery.start_soon(read, engine, request(engine, seed, tokens), mine)
        ended.set()
    return [later - earlier for mine in times for earlier, later in pairwise(mine)]


@contextmanager
def idle_loop() -> Generator[None]:
    """Another process computes whenever a core has nothing else to do."""
    lowest = os.sched_param(0)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as loop:
        os.sched_setscheduler(loop.pid, os.SCHED_IDLE, lowest)
        try:
            yield
        finally:
            loop.kill()


@asynccontextmanager
async def engine_of(model: Path, options: argparse.Namespace, *, jumps: bool) -> AsyncGenerator[Engine]:
    rows, threads = options.rows, options.threads
    settings = EngineSettings(
        model=str(model), max_running=rows, threads=threads, kv_cache_memory=512 << 20, no_jump_ahead=not jumps
    )
    async with open_engine(ServeSettings(engine=settings)) as engine:
        await speed(engine, rows, 16, "")  # warm
        yield engine


@contextmanager
def model_folder(*, random: bool) -> Generator[Path]:
    if not random:
        yield DEMO
        return
    with random_checkpoint(LARGER, [Path("/dev/shm"), Path(tempfile.gettempdir())]) as folder:
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            if (DEMO / name).exists():
                shutil.copy(DEMO / name, folder / name)
        yield folder


async def measure(model: Path, options: argparse.Namespace) -> dict[str, Any]:  # Any: JSON
    rows, tokens = options.rows, options.tokens
    grammars = {name: grammar_of(schema) for name, schema in SCHEMAS.items()}
    found: dict[str, list[Speed]] = {}
    async with engine_of(model, options, jumps=False) as slow, engine_of(model, options, jumps=True) as fast:
        for _ in range(options.rounds):
            found.setdefault("free", []).append(await speed(fast, rows, tokens, ""))
            for name, grammar in grammars.items():
                found.setdefault(f"{name}, no jumps", []).append(await speed(slow, rows, tokens, grammar))
                found.setdefault(name, []).append(await speed(fast, rows, tokens, grammar))
        alone, beside, idle = list[float](), list[float](), list[float]()
        schemas = map(slow_schema, count())
        for _ in range(options.rounds):
            alone.append(p99_ms(await gaps(fast, 2 * tokens, iter(()))))
            beside.append(p99_ms(await gaps(fast, 2 * tokens, schemas)))
            with idle_loop():
                idle.append(p99_ms(await gaps(fast, 2 * tokens, iter(()))))
    shares = {
        kind: {name: shares_of(values, found["free"], place) for name, values in found.items() if name != "free"}
        for place, kind in enumerate(Speed._fields)
    }
    return {
        "tokens": {name: [[round(value) for value in one] for one in values] for name, values in found.items()},
        "share_of_free_speed": shares,
        "gap_p99_ms": {"alone": alone, "beside a schema": beside, "beside an idle loop": idle},
        "gap_p99_to_alone": {
            "beside a schema": spread([one / other for one, other in zip(beside, alone, strict=True)]),
            "beside an idle loop": spread([one / other for one, other in zip(idle, alone, strict=True)]),
        },
    }


def p99_ms(seconds: list[float]) -> float:
    return round(1000 * statistics.quantiles(seconds, n=100)[98], 3)


def spread(ratios: list[float]) -> dict[str, float]:
    return {name: round(of(ratios), 3) for name, of in (("median", statistics.median), ("min", min), ("max", max))}


def shares_of(values: list[Speed], free: list[Speed], place: int) -> dict[str, float]:
    """Of the free speed in the same round; on a machine that others use, the best rounds say more of the program."""
    best = max(one[place] for one in values) / max(one[place] for one in free)
    return spread([one[place] / other[place] for one, other in zip(values, free, strict=True)]) | {
        "best": round(best, 3)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of answers that follow a schema.")
    parser.add_argument("--random", action="store_true", help="a larger model of random weights")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="that compute (default: a thread per core)")
    options = parser.parse_args()
    busy = busy_share()
    with model_folder(random=options.random) as model:
        result = trio.run(measure, model, options)
    facts = {
        "command": f"python -m triolet.loadtest.structured.speed {' '.join(sys.argv[1:])}".strip(),
        "machine": to_builtins(machine()),
        "versions": versions("llguidance", "numpy", "numba"),
        "busy_share_of_others": round(busy, 2),
        "model": "random" if options.random else "triolet-demo",
    }
    print(json.dumps({**facts, **result}, indent=1))


if __name__ == "__main__":
    main()
