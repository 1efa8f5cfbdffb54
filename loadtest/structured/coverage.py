"""Which JSON schemas are accepted, and whether every finished answer fits: random ones, and a file of others.

    python -m triolet.loadtest.structured.coverage [MODEL] [--count 1000] [--seed 0] [--file SCHEMAS.jsonl] [--url URL]

Each schema is compiled as the server does it. Without --url an answer is drawn at random from the masks of its grammar;
with --url a server is asked, --streams requests at a time. The table counts by keyword; the JSON on standard output has
every schema that was refused, failed or invalid. The exit status is 1 if an answer is invalid or fails.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import msgspec
from llguidance import LLTokenizer
from rich.console import Console

from ...actors.grammar.compile import compile_grammar
from ...models.checkpoint.grammar import open_grammar_tokenizer
from ...protocol.grammars import GrammarRefused, GrammarSource
from ..machine import machine, versions
from ..table import terminal_table
from .answers import Outcome, ask, drawn, outcome_of
from .schemas import Schema, keywords, random_schema

BUNDLED: Final = Path(__file__).parents[2] / "models" / "demo" / "checkpoint"
COUNTED: Final = ("valid", "cut", "invalid", "failed", "refused")


class Tried(NamedTuple):
    """One schema. `compile_ms` is CPU time, with the first mask; `text` the answer, or why there is none."""

    number: int
    schema: Schema
    compile_ms: float
    outcome: Outcome
    text: str


def try_schema(number: int, schema: Schema, tokenizer: LLTokenizer, seed: int, url: str | None) -> Tried:
    source = GrammarSource(kind="json_schema", text=json.dumps(schema), param="schema")
    began = time.thread_time()
    verdict = compile_grammar(source, tokenizer)
    compile_ms = (time.thread_time() - began) * 1000
    if url is not None:
        return Tried(number, schema, compile_ms, *ask(url, schema, seed + number))
    if isinstance(verdict, GrammarRefused):
        return Tried(number, schema, compile_ms, "refused", f"{verdict.place}: {verdict.message}")
    outcome = outcome_of(lambda: drawn(verdict.grammar, tokenizer, Random(seed + number)), schema)
    return Tried(number, schema, compile_ms, *outcome)


def schemas_of(options: argparse.Namespace) -> Iterator[Schema]:
    for number in range(options.count):
        yield random_schema(Random(options.seed + number))
    if options.file is not None:
        for line in options.file.read_text().splitlines():
            yield json.loads(line)


def counts_by_keyword(tried: list[Tried]) -> list[list[str]]:
    """A row for all schemas, and one for every keyword, the most frequent first."""
    totals: dict[str, Counter[Outcome]] = {"all": Counter(each.outcome for each in tried)}
    for each in tried:
        for keyword in set(keywords(each.schema)):
            totals.setdefault(keyword, Counter())[each.outcome] += 1
    rows = sorted(totals.items(), key=lambda item: -item[1].total())
    return [
        ["keyword", "schemas", *COUNTED],
        *([name, str(counts.total()), *(str(counts[outcome]) for outcome in COUNTED)] for name, counts in rows),
    ]


def report(tried: list[Tried], options: argparse.Namespace) -> dict[str, Any]:  # Any: JSON
    times = sorted(each.compile_ms for each in tried)
    at = {"p50": times[len(times) // 2], "p99": times[int(len(times) * 0.99)], "max": times[-1]}
    bad = [each for each in tried if each.outcome in ("invalid", "failed", "refused")]
    return {
        "command": "python -m triolet.loadtest.structured.coverage " + " ".join(sys.argv[1:]),
        "machine": msgspec.to_builtins(machine()),
        "versions": versions("llguidance", "jsonschema", "tokenizers"),
        "answers": "drawn from masks" if options.url is None else "of a server",
        "outcomes": Counter(each.outcome for each in tried),
        "compile_ms": {name: round(value, 2) for name, value in at.items()},
        "by_keyword": counts_by_keyword(tried),
        "not_valid": [each._asdict() for each in bad],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=BUNDLED, help="checkpoint folder")
    parser.add_argument("--count", type=int, default=1000, help="random schemas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--file", type=Path, help="further schemas, a JSON object on each line")
    parser.add_argument("--url", help="a server that writes the answers")
    parser.add_argument("--streams", type=int, default=16, help="requests at a time")
    options = parser.parse_args()
    config = json.loads((options.model / "config.json").read_text())
    tokenizer = open_grammar_tokenizer(str(options.model), config["vocab_size"], ())
    with ThreadPoolExecutor(1 if options.url is None else options.streams) as pool:
        futures = [
            pool.submit(try_schema, number, schema, tokenizer, options.seed, options.url)
            for number, schema in enumerate(schemas_of(options))
        ]
        tried = [future.result() for future in futures]
    made = report(tried, options)
    Console(stderr=True).print(terminal_table(made["by_keyword"]))
    json.dump(made, sys.stdout, indent=1)
    sys.exit(bool(made["outcomes"]["invalid"] or made["outcomes"]["failed"]))


if __name__ == "__main__":
    main()
