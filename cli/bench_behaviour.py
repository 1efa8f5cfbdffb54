"""`triolet bench behaviour`: how a server behaves when clients leave, stall or flood, and when its processes die."""

import json
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ..loadtest.behaviour.plan import BehaviourPlan, Subject
from .values import CLIENT_KEY

if TYPE_CHECKING:
    from ..loadtest.behaviour.results import BehaviourReport

PROBE_KEY, FLOOD_KEY = "behaviour-probe", "behaviour-flood"
OWN = f"{Path(sys.executable).with_name('triolet')} serve --port {{port}} --api-key {PROBE_KEY} --api-key {FLOOD_KEY}"

_COUNT = click.IntRange(min=1)
_PLAN = BehaviourPlan()


@click.command()
@click.option("--url", help="A running server, as http://127.0.0.1:8000; without --pid its memory is not measured.")
@click.option("--command", help="Starts a server; {port} becomes a free port.  [default: Triolet's bundled model]")
@click.option("--pid", type=int, help="The server's process at --url.")
@click.option("--name", default="server", show_default=True, help="Heads the table's column.")
@click.option("--model", help="Model to ask for.  [default: the first that the server lists]")
@click.option("--api-key", "keys", type=CLIENT_KEY, multiple=True, help="KEY or @FILE; a second is the flood's.")
@click.option("--field", "fields", multiple=True, metavar="NAME=JSON", help="A field of every request, as top_k=1.")
@click.option("--log", type=click.Path(path_type=Path), default=Path("/dev/null"), help="Where a --command prints to.")
@click.option("--patience", type=click.FloatRange(min=1), default=30.0, show_default=True, help="Seconds to wait for.")
@click.option("--streams", type=_COUNT, default=_PLAN.streams, show_default=True, help="That are left, cut or drained.")
@click.option("--readers", type=_COUNT, default=_PLAN.readers, show_default=True, help="Clients that do not read.")
@click.option("--flood", type=_COUNT, default=_PLAN.flood, show_default=True, help="Clients that ask without end.")
@click.option("--answer-tokens", type=_COUNT, default=_PLAN.long_tokens, show_default=True, help="Of a long answer.")
@click.option("--compare", multiple=True, type=click.Path(exists=True, path_type=Path), help="JSON of earlier servers.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def behaviour(
    url: str | None,
    command: str | None,
    pid: int | None,
    name: str,
    model: str | None,
    keys: tuple[str, ...],
    fields: tuple[str, ...],
    log: Path,
    patience: float,
    streams: int,
    readers: int,
    flood: int,
    answer_tokens: int,
    compare: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Measure how an OpenAI-compatible server behaves, not how fast it is.

    Clients leave in the middle of their answers; others ask for long answers and do not read; one floods while another
    asks now and then; the model's process is killed; the server is told to stop. What cannot be measured from outside
    is reported as such, with the reason.

    \b
    triolet bench behaviour                                            Triolet with its bundled model
    triolet bench behaviour --url http://host:8000 --api-key KEY       any server; nothing of it is killed
    triolet bench behaviour --name peer --command "peer --port {port}" a server started here, and ended
    """
    if url is not None and command is not None:
        raise click.UsageError("give --url or --command, not both")
    if url is None and command is None:
        command, name, keys = OWN, "Triolet", (PROBE_KEY, FLOOD_KEY)
    if command is not None and "{port}" not in command:
        raise click.UsageError("--command needs {port}, which becomes a free port")
    subject = Subject(
        name=name, command=command, url=url, pid=pid, model=model, keys=keys, fields=dict(map(_field, fields))
    )
    plan = BehaviourPlan(streams=streams, long_tokens=answer_tokens, readers=readers, flood=flood, patience=patience)
    import trio
    from rich.console import Console

    from ..loadtest.behaviour.results import BehaviourReport
    from ..loadtest.behaviour.table import table_of

    console = Console(stderr=True)
    try:
        with console.status(f"examining {name}"):
            report = trio.run(partial(_examine_until_told, subject, plan, log))
    except RuntimeError as error:
        raise click.ClickException(str(error)) from error
    if report is None:
        raise SystemExit(128 + signal.SIGTERM)
    if as_json:
        click.echo(msgspec.json.encode(report))
    else:
        earlier = [msgspec.json.decode(path.read_bytes(), type=BehaviourReport) for path in compare]
        Console().print(table_of([report, *earlier]))


async def _examine_until_told(subject: Subject, plan: BehaviourPlan, log: Path) -> "BehaviourReport | None":
    """None after SIGTERM, as after Ctrl-C: a server started here has then been ended too."""
    import trio

    from ..loadtest.behaviour.bench import examine

    report: BehaviourReport | None = None
    failure: RuntimeError | None = None
    with trio.open_signal_receiver(signal.SIGTERM) as told:
        async with trio.open_nursery() as nursery:

            async def end_when_told() -> None:
                async for _ in told:
                    nursery.cancel_scope.cancel()

            nursery.start_soon(end_when_told)
            try:
                report = await examine(subject, plan, log)
            except RuntimeError as error:
                failure = error  # raised here it would come out in a group
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return report


def _field(text: str) -> tuple[str, Any]:  # Any: JSON
    name, separator, value = text.partition("=")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError as error:
        wrong = "has no =" if not separator else f"is not JSON: {error}"
        raise click.UsageError(f"--field {text!r} {wrong}") from error
