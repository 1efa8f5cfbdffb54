"""Accuracy of a served model on held-out instances: `python -m triolet.loadtest.accuracy --url http://127.0.0.1:8000`.

Every instance goes through POST /v1/chat/completions, greedy, several at a time. The answer must equal the expected
text, or match the expected pattern (stories). The table shows how many were right per family. The exit status is 1 if
a family is below `--minimum`, and 2 if the server did not answer. `--json FILE` saves the outcomes. `--compare FILE`
compares with an earlier run, for example the same instances under int8 and bfloat16.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import trio
from msgspec import structs
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..protocol.requests import ChatMessage
from .client.chunk import PATHS, listed_models
from .client.client import HttpClient
from .client.dial import Endpoint, read_url
from .client.ending import Fault
from .heldout import CALL, CALL_END, HELD_OUT, LONGEST_ANSWER, Instance, read_instances
from .table import terminal_table

ANSWER_SECONDS = 120.0  # a queued request on a busy small machine; a stuck server still ends the run


class _Function(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class _Call(msgspec.Struct, frozen=True):
    function: _Function


class _Message(msgspec.Struct, frozen=True):
    content: str | None = None
    tool_calls: tuple[_Call, ...] | None = None

    def text(self) -> str:
        """The answer as the model wrote it, with the tool calls that the server parsed out of the text."""
        calls = (
            f'{{"name": {json.dumps(c.function.name)}, "arguments": {c.function.arguments}}}'
            for c in self.tool_calls or ()
        )
        return (self.content or "") + "".join(f"{CALL}{call}{CALL_END}" for call in calls)


class _Answer(msgspec.Struct, frozen=True):
    message: _Message


class _Answered(msgspec.Struct, frozen=True):
    choices: tuple[_Answer, ...]


class JudgedAnswer(msgspec.Struct, frozen=True):
    family: str
    wording: str
    right: bool
    answer: str
    expected: str


class AccuracyRun(msgspec.Struct, frozen=True):
    """What `--json` writes and `--compare` reads. Outcomes are in the order of the held-out file."""

    url: str
    model: str
    outcomes: tuple[JudgedAnswer, ...]


def wire_messages(messages: Sequence[ChatMessage]) -> list[dict[str, object]]:
    """The messages in the API's form: a call written as text goes into `tool_calls`, and its result names it."""
    sent: list[dict[str, object]] = []
    for index, message in enumerate(messages):
        content = message.content or ""
        if message.role == "assistant" and content.startswith(CALL):
            call = msgspec.json.decode(content.removeprefix(CALL).removesuffix(CALL_END))
            function = {"name": call["name"], "arguments": json.dumps(call["arguments"], ensure_ascii=False)}
            calls = [{"id": f"call_{index}", "type": "function", "function": function}]
            sent.append({"role": "assistant", "content": None, "tool_calls": calls})
        elif message.role == "tool":
            sent.append({"role": "tool", "content": content, "tool_call_id": f"call_{index - 1}"})
        else:
            sent.append({"role": message.role, "content": content})
    return sent


async def ask(client: HttpClient, key: str | None, model: str, instance: Instance) -> JudgedAnswer:
    fields = {
        "model": model,
        "messages": wire_messages(instance.messages),
        "temperature": 0,
        "max_tokens": LONGEST_ANSWER,
    }
    with trio.fail_after(ANSWER_SECONDS):
        body = await client.fetch("POST", PATHS["chat"], json.dumps(fields).encode(), key=key)
    answer = msgspec.json.decode(body, type=_Answered).choices[0].message.text()
    return JudgedAnswer(instance.family, instance.wording, instance.accepts(answer), answer, instance.expected)


async def ask_all(
    client: HttpClient,
    key: str | None,
    model: str,
    instances: Sequence[Instance],
    concurrency: int,
    advance: Callable[[], None],
) -> list[JudgedAnswer]:
    """The outcomes in the order of the instances, `concurrency` requests at a time."""
    outcomes: dict[int, JudgedAnswer] = {}
    waiting = iter(enumerate(instances))

    async def worker() -> None:
        for index, instance in waiting:  # shared by the workers: each takes the next one
            outcomes[index] = await ask(client, key, model, instance)
            advance()

    async with trio.open_nursery() as nursery:
        for _ in range(concurrency):
            nursery.start_soon(worker)
    return [outcomes[index] for index in range(len(instances))]


def server_at(url: str) -> Endpoint:
    """The server's root, which may have a path before /v1. Raises ValueError."""
    root = read_url(url, path="")
    return structs.replace(root, path=f"{root.path.removesuffix('/v1')}/v1")


async def run(options: argparse.Namespace, console: Console) -> AccuracyRun:
    instances = read_instances(options.data, options.limit)
    columns = (TextColumn("asking"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    client, key = HttpClient(server_at(options.url)), options.api_key
    model = options.model or listed_models(await client.fetch("GET", "/models", key=key))[0]
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("asking", total=len(instances))
        outcomes = await ask_all(client, key, model, instances, options.concurrency, lambda: progress.advance(task))
    await client.close()
    return AccuracyRun(options.url, model, tuple(outcomes))


def share(outcomes: Sequence[JudgedAnswer]) -> float:
    return sum(outcome.right for outcome in outcomes) / len(outcomes)


def by_family(outcomes: Sequence[JudgedAnswer]) -> dict[str, list[JudgedAnswer]]:
    groups: dict[str, list[JudgedAnswer]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.family, []).append(outcome)
    return groups


def table(measured: AccuracyRun, earlier: AccuracyRun | None) -> Table:
    """Per family: instances, share right, trained and unseen wordings apart, and an earlier run's share."""
    headings = ["family", "instances", "right", "trained wordings", "unseen wordings"]
    rows = [[*headings, "earlier run"] if earlier else headings]
    before = by_family(earlier.outcomes) if earlier else {}
    groups = by_family(measured.outcomes)
    for family, group in [*groups.items(), ("all", list(measured.outcomes))]:
        cells = [family, str(len(group)), f"{share(group):.1%}"]
        for wording in ("trained", "unseen"):
            part = [outcome for outcome in group if outcome.wording == wording]
            cells.append(f"{share(part):.1%}" if part else "")
        if earlier:
            old = list(earlier.outcomes) if family == "all" else before.get(family, [])
            cells.append(f"{share(old):.1%}" if old else "")
        rows.append(cells)
    styles = ["bold" if row[0] == "all" else "" for row in rows[1:]]
    return terminal_table(rows, title=f"{measured.model}: exact match on held-out instances", styles=styles)


def _url(text: str) -> str:
    try:
        server_at(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m triolet.loadtest.accuracy", description=__doc__)
    parser.add_argument("--url", type=_url, default="http://127.0.0.1:8000", help="the server (http://127.0.0.1:8000)")
    parser.add_argument("--api-key", help="sent as a bearer token")
    parser.add_argument("--model", help="model name (the first that the server lists)")
    parser.add_argument("--data", type=Path, default=HELD_OUT, help="held-out instances, one JSON object per line")
    parser.add_argument("--limit", type=int, help="at most so many instances per family")
    parser.add_argument("--concurrency", type=int, default=16, help="requests at a time (16)")
    parser.add_argument("--minimum", type=float, default=0.8, help="least share right in each family (0.8)")
    parser.add_argument("--json", type=Path, help="write every outcome to this file")
    parser.add_argument("--compare", type=Path, help="a file that --json wrote: shown beside this run")
    parser.add_argument("--wrong", type=int, default=0, help="wrong answers to print per family (0)")
    return parser


def main() -> None:
    options = arguments().parse_args()
    console = Console()
    earlier = msgspec.json.decode(options.compare.read_bytes(), type=AccuracyRun) if options.compare else None
    failed: Exception | None = None
    measured: AccuracyRun | None = None
    try:
        measured = trio.run(run, options, console)
    except* (Fault, trio.TooSlowError, msgspec.MsgspecError, LookupError) as errors:
        failed = errors.exceptions[0]
    if measured is None:
        while isinstance(failed, ExceptionGroup):
            failed = failed.exceptions[0]
        console.print(f"no accuracy: {str(failed) or type(failed).__name__}", markup=False, style="red")
        sys.exit(2)
    console.print(table(measured, earlier))
    low: list[str] = []
    for family, group in by_family(measured.outcomes).items():
        for outcome in [outcome for outcome in group if not outcome.right][: options.wrong]:
            console.print(
                f"{family}: {outcome.answer!r} instead of {outcome.expected!r}", markup=False, highlight=False
            )
        if share(group) < options.minimum:
            low.append(family)
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(measured)))
    if low:
        console.print(f"under {options.minimum:.0%}: {', '.join(low)}", style="red")
        sys.exit(1)


if __name__ == "__main__":
    main()
