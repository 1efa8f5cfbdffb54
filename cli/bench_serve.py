"""`triolet bench serve`: load any OpenAI-compatible server, or Triolet's WebSocket, and say how it bore it.

The options become one `LoadSettings`; the work is in loadtest/serve.
"""

import resource
import shlex
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import msgspec
import trio
from rich.console import Console

from ..loadtest.serve.arrivals import Arrivals, Constant, Gamma, Ramp, Recorded
from ..loadtest.serve.lag import LagMeter
from ..loadtest.serve.lengths import BadDistribution, Distribution, read_distribution
from ..loadtest.serve.live_view import LiveView
from ..loadtest.serve.mix import BadMix, Mix, Share, Tenant, check_shares, read_priorities, read_share, read_tenant
from ..loadtest.serve.pictures import draw_pictures
from ..loadtest.serve.report_html import page
from ..loadtest.serve.result import write_result
from ..loadtest.serve.runner import Runner
from ..loadtest.serve.session import CannotRun, Finished, run_session
from ..loadtest.serve.settings import LoadSettings
from ..loadtest.serve.slo import BadSlo, Slo, read_slo
from ..loadtest.serve.text_report import show
from ..loadtest.serve.traces import BadTrace, read_trace
from ..loadtest.serve.wire import read_url
from .refusals import Refusal

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

    Written to --out: NAME.json (the result), NAME.jsonl (a line per request), NAME.html (the report) and, where
    matplotlib is installed, NAME.png. `triolet bench compare A.json B.json` tells two results apart. docs/loadtest.md
    explains each figure. Ctrl-C ends the load and reports what was measured.
    """


class _Text(click.ParamType[Any]):  # Any: each reader has its own result
    """An option's value, by a function that raises ValueError with what to write instead."""

    def __init__(self, name: str, read: Any) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except (BadDistribution, BadMix, BadSlo, ValueError) as error:
            self.fail(str(error), param, ctx)


def _read_ramp(text: str) -> tuple[float, float]:
    start, colon, end = text.partition(":")
    try:
        rates = float(start), float(end)
    except ValueError:
        rates = (-1.0, -1.0)
    if not colon or min(rates) < 0 or max(rates) == 0:
        raise ValueError(f"{text!r} is not START:END in requests a second, as in 1:50")
    return rates


def _read_address(text: str) -> str:
    read_url(text)
    return text


def _read_body(text: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise ValueError(f"{text!r} is no JSON object: {error}") from error


_LENGTH: Final = _Text("distribution", read_distribution)
_SECONDS: Final = click.FloatRange(min=0)
_POSITIVE: Final = click.FloatRange(min=0, min_open=True)
_COUNT: Final = click.IntRange(min=1)


@click.command("serve", help=HELP)
@click.option("--url", type=_Text("url", _read_address), default="http://127.0.0.1:8000", show_default=True,
              help="The server. Without a path, /v1 is added.")  # fmt: skip
@click.option("--api", type=click.Choice(["chat", "completions", "websocket"]), default="chat", show_default=True,
              help="What it speaks; websocket is Triolet's own.")  # fmt: skip
@click.option("--model", help="Name of the model.  [default: the first that the server lists]")
@click.option("--api-key", help="Sent as a bearer token.")
@click.option("--concurrency", type=_COUNT, help="Closed loop: clients.  [default: 16, unless the loop is open]")
@click.option("--rate", type=_POSITIVE, help="Open loop: requests a second.")
@click.option("--burstiness", type=_POSITIVE, help="Of --rate: 1 is a Poisson process, less comes in bursts.")
@click.option("--even", is_flag=True, help="Of --rate: at even intervals.")
@click.option("--ramp", type=_Text("start:end", _read_ramp), help="Open loop: requests a second, from START to END.")
@click.option("--trace", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Open loop: times and lengths of an Azure LLM or BurstGPT trace (CSV).")  # fmt: skip
@click.option("--time-scale", type=_POSITIVE, help="Of --trace: its times are multiplied by this.")
@click.option("--duration", type=_POSITIVE, help="Seconds to measure.  [default: 30, unless --requests or --trace]")
@click.option("--requests", type=_COUNT, help="Requests to measure.")
@click.option(
    "--warm-up", type=_SECONDS, default=2.0, show_default=True, help="Seconds before, left out of the figures."
)
@click.option("--prompt-tokens", type=_LENGTH, default="128", show_default=True,
              help="NUMBER, uniform:LOW-HIGH, lognormal:MEDIAN,SIGMA or file:PATH.")  # fmt: skip
@click.option("--output-tokens", type=_LENGTH, default="64", show_default=True, help="The same, of the answers.")
@click.option("--shared-prefix", type=_Text("share@tokens", partial(read_share, least=1)),
              help="A share of the conversations begins with the same so many tokens.")  # fmt: skip
@click.option("--turns", type=_LENGTH, default="1", show_default=True, help="Of a conversation; a distribution.")
@click.option(
    "--think-time", type=_LENGTH, default="1", show_default=True, help="Seconds between them; a distribution."
)
@click.option("--tenant", "tenants", type=_Text("name,key=…", read_tenant), multiple=True,
              help="NAME[,key=KEY][,weight=N][,priority=N]. May be repeated.")  # fmt: skip
@click.option("--priorities", type=_Text("p:weight,…", read_priorities), help="As 0:9,10:1; lower runs first.")
@click.option("--cancel", type=_Text("share@pieces", partial(read_share, least=1)),
              help="A share of the clients leaves after so many pieces.")  # fmt: skip
@click.option("--slow", type=_Text("share@rate", partial(read_share, least=0.01)),
              help="A share of the clients reads so many pieces a second.")  # fmt: skip
@click.option("--ignore-eos/--no-ignore-eos", default=True, show_default=True,
              help="Ask for answers of exactly the drawn length (not every server can).")  # fmt: skip
@click.option("--temperature", type=click.FloatRange(0, 2), help="Of every request.  [default: the server's]")
@click.option("--extra-body", type=_Text("json", _read_body), help="A JSON object: more fields of every request.")
@click.option("--slo", type=_Text("limits", read_slo), help="As ttft=500ms,itl=50ms (also tpot, e2e): gives goodput.")
@click.option("--timeout", type=_POSITIVE, default=300.0, show_default=True, help="Seconds of a request, at most.")
@click.option("--stall", type=_POSITIVE, default=60.0, show_default=True, help="Seconds without a piece, once begun.")
@click.option("--grace", type=_SECONDS, default=30.0, show_default=True, help="Seconds for what runs at the end.")
@click.option("--max-in-flight", type=_COUNT, default=10_000, show_default=True, help="Of an open loop.")
@click.option("--streams-per-socket", type=_COUNT, default=16, show_default=True, help="Of --api websocket.")
@click.option("--seed", type=int, default=1, show_default=True, help="Decides everything that is drawn.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("bench-results"),
              show_default=True, help="Folder of what is written.")  # fmt: skip
@click.option("--name", default="serve", show_default=True, help="Of the files.")
@click.option("--png/--no-png", default=True, show_default=True, help="Draw the plots where matplotlib is installed.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON instead of tables.")
def serve(
    out: Path, name: str, png: bool, as_json: bool, **values: Any
) -> None:  # Any: click's values, checked by their types
    settings = _settings(**values)
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
    drawn = png and draw_pictures(finished.result, path.with_name(f"{name}.png"))
    if as_json:
        click.echo(msgspec.json.encode(finished.result))
    else:
        show(finished.result, Console(highlight=False, width=None if sys.stdout.isatty() else 140))
    console.print(f"written: {path}.json, {path}.jsonl, {path}.html{f', {path}.png' if drawn else ''}", soft_wrap=True)
    if finished.result.client.bottleneck:
        console.print("These figures are the client's, not the server's: see above.", style="bold red")


def _settings(
    *,
    api_key: str | None,
    concurrency: int | None,
    rate: float | None,
    burstiness: float | None,
    even: bool,
    ramp: tuple[float, float] | None,
    trace: Path | None,
    time_scale: float | None,
    duration: float | None,
    requests: int | None,
    warm_up: float,
    shared_prefix: Share | None,
    tenants: tuple[Tenant, ...],
    priorities: tuple[tuple[int, float], ...] | None,
    cancel: Share | None,
    slow: Share | None,
    slo: Slo | None,
    extra_body: dict[str, object] | None,
    think_time: Distribution,
    timeout: float,
    stall: float,
    grace: float,
    **same: Any,  # Any: options whose names are those of the settings
) -> LoadSettings:
    chosen = [option for option, value in (("--concurrency", concurrency), ("--rate", rate), ("--ramp", ramp),
                                           ("--trace", trace)) if value is not None]  # fmt: skip
    if len(chosen) > 1:
        raise Refusal(f"{' and '.join(chosen)}: one of them says how the load comes")
    if rate is None and (burstiness is not None or even):
        raise Refusal("--burstiness and --even need --rate")
    if burstiness is not None and even:
        raise Refusal("--even intervals have no --burstiness")
    if trace is None and time_scale is not None:
        raise Refusal("--time-scale needs --trace")
    if duration is None and requests is None and trace is None:
        duration = 30.0
    arrivals: Arrivals | None = None
    if rate is not None:
        arrivals = Constant(rate) if even else Gamma(rate, burstiness or 1.0)
    elif ramp is not None:
        if duration is None:
            raise Refusal("--ramp needs --duration: how long it takes")
        arrivals = Ramp(*ramp, warm_up + duration)
    elif trace is not None:
        arrivals = Recorded(str(trace), time_scale or 1.0)
    if tenants and api_key is not None:
        raise Refusal("--api-key or --tenant …,key=KEY, not both")
    mix = Mix(
        tenants=tenants or (Tenant(name="default", key=api_key),),
        priorities=priorities or (),
        cancel=cancel or Share(0.0, 0.0),
        slow=slow or Share(0.0, 0.0),
    )
    try:
        check_shares(mix)
    except BadMix as error:
        raise Refusal(str(error)) from error
    return LoadSettings(
        arrivals=arrivals,
        concurrency=concurrency or 16,
        seconds=duration,
        requests=requests,
        warmup_seconds=warm_up,
        shared_prefix=shared_prefix or Share(0.0, 1.0),
        think_seconds=think_time,
        mix=mix,
        extra_body=extra_body or {},
        timeout_seconds=timeout,
        stall_seconds=stall,
        grace_seconds=grace,
        slo=slo or Slo(),
        **same,
    )


def _run(settings: LoadSettings, name: str, command: str, records: Path, console: Console) -> Finished:
    found: list[Finished] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:

            def begin(runner: Runner, meter: LagMeter) -> None:
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


async def _end_on_interrupt(runner: Runner) -> None:
    """The first Ctrl-C ends the load; from then on it does what it always does."""
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
