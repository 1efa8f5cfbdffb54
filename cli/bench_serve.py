"""`triolet bench serve`: load any OpenAI-compatible server, or Triolet's WebSocket, and say how it bore it.

The options of the load (load_options.py) become one `LoadSettings`; the work is in loadtest/serve.
"""

import resource
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from ..loadtest.serve.arrivals import Recorded
from ..loadtest.serve.settings import LoadSettings
from .load_options import build_load_settings, load_options
from .refusals import Refusal

if TYPE_CHECKING:
    from rich.console import Console

    from ..loadtest.serve.lag import LagMeter
    from ..loadtest.serve.runner import Runner
    from ..loadtest.serve.session import FinishedSession

HELP: Final = """Load the server at --url and report what its clients saw.

    A closed loop is so many clients, each of whom asks again when it was answered:

    \b
      triolet bench serve --concurrency 64 --duration 60

    An open loop starts requests when they are meant to start, however the server fares; latencies count from then:

    \b
      triolet bench serve --rate 20 --duration 60                        a Poisson process
      triolet bench serve --rate 20 --burstiness 0.3 --duration 60       in bursts
      triolet bench serve --ramp 1:50 --duration 120                     until it breaks
      triolet bench serve --trace azure.csv --time-scale 0.5             recorded traffic, twice as fast

    What they ask for, and how they behave:

    \b
      --prompt-tokens lognormal:300,0.8 --output-tokens uniform:16-256
      --shared-prefix 0.8@512 --turns uniform:2-5 --think-time lognormal:4,0.5
      --tenant acme,key=K1,weight=3 --tenant small,key=K2 --cancel 0.1@16 --slow 0.05@10

    Written to --out: NAME.json (the result), NAME.jsonl (a line per request), NAME.html (the report with
    its charts). `triolet bench compare A.json B.json` tells two results apart. docs/loadtest.md
    explains each figure. Ctrl-C ends the load and reports what was measured.
    """


def _refuse_picture(_ctx: click.Context, _option: click.Parameter, given: bool | None) -> None:
    if given is not None:
        raise click.UsageError("--png and --no-png are gone: the charts are in the report, NAME.html")


@click.command("serve", help=HELP)
@load_options
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("bench-results"),
              show_default=True, help="Folder of what is written.")  # fmt: skip
@click.option("--name", default="serve", show_default=True, help="Of the files.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON instead of tables.")
@click.option("--png/--no-png", default=None, hidden=True, expose_value=False, callback=_refuse_picture)
def serve(out: Path, name: str, as_json: bool, **values: Any) -> None:  # Any: checked by their options
    from rich.console import Console

    from ..loadtest.serve.report_html import page
    from ..loadtest.serve.result import write_result
    from ..loadtest.serve.text_report import show
    from ..loadtest.serve.traces import BadTrace, read_trace

    settings = build_load_settings(**values)
    if isinstance(settings.arrivals, Recorded):
        try:
            read_trace(Path(settings.arrivals.path))
        except BadTrace as error:
            raise Refusal(str(error)) from error
    _raise_file_limit()
    console = Console(stderr=True, highlight=False)
    command = _command(settings)
    finished = _run(settings, name, command, out / f"{name}.jsonl", console)
    path = out / name
    write_result(finished.result, path.with_name(f"{name}.json"))
    path.with_name(f"{name}.html").write_text(page(finished.result), encoding="utf-8")
    if as_json:
        click.echo(msgspec.json.encode(finished.result))
    else:
        show(finished.result, Console(highlight=False, width=None if sys.stdout.isatty() else 140))
    console.print(f"written: {path}.json, {path}.jsonl, {path}.html", soft_wrap=True)
    if finished.result.client.bottleneck:
        console.print("These figures are the client's, not the server's: see above.", style="bold red")


def _run(settings: LoadSettings, name: str, command: str, records: Path, console: "Console") -> "FinishedSession":
    import trio

    from ..loadtest.serve.live_view import LiveView
    from ..loadtest.serve.session import CannotRun, run_session
    from ..loadtest.serve.traces import BadTrace

    found: list[FinishedSession] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:

            def begin(runner: "Runner", meter: "LagMeter") -> None:
                nursery.start_soon(_end_on_interrupt, runner)
                if console.is_terminal:
                    nursery.start_soon(LiveView(settings, runner, meter).show, console)

            found.append(await run_session(settings, name=name, command=command, records_to=records, on_begin=begin))
            nursery.cancel_scope.cancel()

    refusal: Refusal | None = None
    try:
        trio.run(main)
    except* (CannotRun, BadTrace) as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        refusal = Refusal(str(error))
    if refusal is not None:
        raise refusal
    return found[0]


async def _end_on_interrupt(runner: "Runner") -> None:
    """The first Ctrl-C ends the load; from then on it does what it always does."""
    import trio

    with trio.open_signal_receiver(signal.SIGINT) as interrupts:
        async for _ in interrupts:
            break
    runner.stop(at_once=True)


def _raise_file_limit() -> None:
    """As many open connections as the system lets this user have."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _command(settings: LoadSettings) -> str:
    """What was typed, without keys: for a page that is shared."""
    text = shlex.join(["triolet", *sys.argv[1:]]).replace(str(Path.home()), "~")
    for key in {tenant.key for tenant in settings.mix.tenants} - {None, ""}:
        text = text.replace(str(key), "KEY")
    return text
