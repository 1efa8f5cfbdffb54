"""How fast are answers that follow a schema, beside free ones? And do other streams notice that a grammar is built?

    python -m triolet.loadtest.structured.speed [--random] [--rows 16] [--tokens 256] [--rounds 5]

Runs the engine without a web server. Each round decodes `rows` free answers, then as many with a schema without
jumping ahead, then with it; a schema whose keys are fixed, and one that is nearly all text. Then free streams run while
large grammars are built, and while none is. `--random` takes a larger model of random weights, with 32,000 tokens. The
result is one JSON object on standard output.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import trio
from llguidance import LLMatcher
from msgspec import to_builtins

from triolet.actors.engine import Engine, open_engine
from triolet.loadtest.device.random_model import random_checkpoint
from triolet.loadtest.machine import busy_share, machine, versions
from triolet.models.checkpoint.rope import RopeSpec
from triolet.models.checkpoint.spec import ModelSpec
from triolet.protocol.events import Finished, Token
from triolet.protocol.requests import Generate, TextPrompt
from triolet.protocol.sampling import Sampling
from triolet.protocol.settings import EngineSettings, ServeSettings

DEMO: Final = Path(__file__).resolve().parents[2] / "models" / "demo" / "checkpoint"
LARGER: Final = ModelSpec(
    family="qwen3", vocab_size=32_000, hidden_size=768, num_layers=12, num_heads=12, num_kv_heads=4, head_dim=64,
    mlp_size=2048, norm_eps=1e-6, max_position=2048, rope=RopeSpec(), qk_norm=True, tied_embeddings=True,
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


def grammar_of(schema: dict[str, Any]) -> str:  # Any: JSON
    return LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False})


def slow_grammar(number: int) -> str:
    """A grammar that takes most of a second to build; every number is another one."""
    fields = {f"field_{(number * 3000 + place) * 7919 % 10_000_019}": {"type": "integer"} for place in range(3000)}
    return grammar_of({"type": "object", "properties": fields})


def request(engine: Engine, seed: int, tokens: int, grammar: str = "") -> Generate:
    return Generate(
        id=engine.gateway.new_id(),
        model=engine.model_name,
        prompts=(TextPrompt(text=f"List {seed}:"),),
        sampling=Sampling(temperature=1.0, seed=seed),
        max_tokens=tokens,
        ignore_eos=not grammar,
        grammar=grammar,
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


async def speed(engine: Engine, rows: int, tokens: int, grammar: str) -> float:
    """Tokens a second of all rows together."""
    found: list[int] = []

    async def one(seed: int) -> None:
        found.append(await read(engine, request(engine, seed, tokens, grammar)))

    began = perf_counter()
    async with trio.open_nursery() as nursery:
        for seed in range(rows):
            nursery.start_soon(one, seed)
    if found != [tokens] * rows:
        raise SystemExit(f"answers of {found} tokens, not {tokens}")
    return rows * tokens / (perf_counter() - began)


async def gaps(engine: Engine, tokens: int, *, building: bool, first: int) -> list[float]:
    """Seconds between the events of four free streams, while grammars are built one after another or not."""
    times: list[list[float]] = [[] for _ in range(4)]

    async def build() -> None:
        number = first
        while True:
            await read(engine, request(engine, number, 1, slow_grammar(number)))
            number += 1

    async with trio.open_nursery() as outer:
        if building:
            outer.start_soon(build)
        async with trio.open_nursery() as nursery:
            for seed, mine in enumerate(times):
                nursery.start_soon(read, engine, request(engine, seed, tokens), mine)
        outer.cancel_scope.cancel()
    return [later - earlier for mine in times for earlier, later in pairwise(mine)]


@asynccontextmanager
async def engine_of(model: Path, rows: int, *, jumps: bool) -> AsyncGenerator[Engine]:
    settings = EngineSettings(model=str(model), max_running=rows, kv_cache_memory=512 << 20, no_jump_ahead=not jumps)
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
    found: dict[str, list[float]] = {}
    async with engine_of(model, rows, jumps=False) as slow, engine_of(model, rows, jumps=True) as fast:
        for _ in range(options.rounds):
            found.setdefault("free", []).append(await speed(fast, rows, tokens, ""))
            for name, grammar in grammars.items():
                found.setdefault(f"{name}, no jumps", []).append(await speed(slow, rows, tokens, grammar))
                found.setdefault(name, []).append(await speed(fast, rows, tokens, grammar))
        quiet, building = list[float](), list[float]()
        for number in range(options.rounds):
            quiet += await gaps(fast, tokens, building=False, first=0)
            building += await gaps(fast, tokens, building=True, first=1000 * number)
    free = found["free"]
    # The median of rounds says what happened; on a machine that others use, the best rounds say more of the program.
    shares = {
        name: statistics.median(one / other for one, other in zip(values, free, strict=True))
        for name, values in found.items()
    }
    best = {name: max(values) / max(free) for name, values in found.items()}
    p99 = {name: statistics.quantiles(values, n=100)[98] for name, values in (("quiet", quiet), ("building", building))}
    return {
        "tokens_per_second": {name: [round(value) for value in values] for name, values in found.items()},
        "share_of_free_speed": {name: round(value, 3) for name, value in shares.items()},
        "share_of_free_speed_in_the_best_rounds": {name: round(value, 3) for name, value in best.items()},
        "gap_p99_ms": {name: round(1000 * value, 2) for name, value in p99.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of answers that follow a schema.")
    parser.add_argument("--random", action="store_true", help="a larger model of random weights")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
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
