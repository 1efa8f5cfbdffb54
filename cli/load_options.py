"""The options that say what load `triolet bench serve` puts on a server, and the `LoadSettings` they become."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec

from ..loadtest.serve.arrivals import Arrivals, Constant, Gamma, Ramp, Recorded
from ..loadtest.serve.lengths import read_distribution
from ..loadtest.serve.mix import BadMix, Mix, MixShare, Tenant, check_shares, read_priorities, read_share, read_tenant
from ..loadtest.serve.settings import LoadSettings
from ..loadtest.serve.slo import read_slo
from .refusals import Refusal
from .values import CLIENT_KEY

_Command = TypeVar("_Command", bound=Callable[..., object])


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
        except ValueError as error:
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
    from ..loadtest.client.dial import read_url  # trio and ssl, which help must not wait for

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


_OPTIONS: Final = (
    click.option("--url", type=_Text("url", _read_address), default="http://127.0.0.1:8000", show_default=True,
                  help="The server. Without a path, /v1 is added."),
    click.option("--api", type=click.Choice(["chat", "completions", "websocket"]), default="chat", show_default=True,
                  help="What it speaks; websocket is Triolet's own."),
    click.option("--model", help="Name of the model.  [default: the first that the server lists]"),
    click.option("--api-key", type=CLIENT_KEY, help="KEY, or @FILE with it; sent as a bearer token."),
    click.option("--concurrency", type=_COUNT, help="Closed loop: clients.  [default: 16, unless the loop is open]"),
    click.option("--rate", type=_POSITIVE, help="Open loop: requests a second."),
    click.option("--burstiness", type=_POSITIVE, help="Of --rate: 1 is a Poisson process, less comes in bursts."),
    click.option("--even", is_flag=True, help="Of --rate: at even intervals."),
    click.option("--ramp", type=_Text("start:end", _read_ramp), help="Open loop: requests a second, START to END."),
    click.option("--trace", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                  help="Open loop: times and lengths of an Azure LLM or BurstGPT trace (CSV)."),
    click.option("--time-scale", type=_POSITIVE, help="Of --trace: its times are multiplied by this."),
    click.option("--duration", "seconds", type=_POSITIVE,
                  help="Seconds to measure.  [default: 30, unless --requests or --trace]"),
    click.option("--requests", type=_COUNT, help="Requests to measure."),
    click.option("--warm-up", "warmup_seconds", type=_SECONDS, default=2.0, show_default=True,
                  help="Seconds before, left out of the figures."),
    click.option("--prompt-tokens", type=_LENGTH, default="128", show_default=True,
                  help="NUMBER, uniform:LOW-HIGH, lognormal:MEDIAN,SIGMA or file:PATH."),
    click.option("--output-tokens", type=_LENGTH, default="64", show_default=True, help="The same, of the answers."),
    click.option("--shared-prefix", type=_Text("share@tokens", partial(read_share, least=1)),
                  help="A share of the conversations begins with the same so many tokens."),
    click.option("--turns", type=_LENGTH, default="1", show_default=True, help="Of a conversation; a distribution."),
    click.option("--think-time", "think_seconds", type=_LENGTH, default="1", show_default=True,
                  help="Seconds between them; a distribution."),
    click.option("--tenant", "tenants", type=_Text("name,key=…", read_tenant), multiple=True,
                  help="NAME[,key=KEY][,weight=N][,priority=N]. May be repeated."),
    click.option("--priorities", type=_Text("p:weight,…", read_priorities), help="As 0:9,10:1; lower runs first."),
    click.option("--cancel", type=_Text("share@pieces", partial(read_share, least=1)),
                  help="A share of the clients leaves after so many pieces."),
    click.option("--slow", type=_Text("share@rate", partial(read_share, least=0.01)),
                  help="A share of the clients reads so many pieces a second."),
    click.option("--ignore-eos/--no-ignore-eos", default=True, show_default=True,
                  help="Ask for answers of exactly the drawn length (not every server can)."),
    click.option("--temperature", type=click.FloatRange(0, 2), help="Of every request.  [default: the server's]"),
    click.option("--extra-body", type=_Text("json", _read_body), help="A JSON object: more fields of every request."),
    click.option("--slo", type=_Text("limits", read_slo), help="As ttft=500ms,itl=50ms (or tpot, e2e): gives goodput."),
    click.option("--timeout", "timeout_seconds", type=_POSITIVE, default=300.0, show_default=True,
                  help="Seconds of a request, at most."),
    click.option("--stall", "stall_seconds", type=_POSITIVE, default=60.0, show_default=True,
                  help="Seconds without a piece, at most."),
    click.option("--grace", "grace_seconds", type=_SECONDS, default=30.0, show_default=True,
                  help="Seconds for what runs at the end."),
    click.option("--max-in-flight", type=_COUNT, default=10_000, show_default=True, help="Of an open loop."),
    click.option("--streams-per-socket", type=_COUNT, default=16, show_default=True, help="Of --api websocket."),
    click.option("--seed", type=int, default=1, show_default=True, help="Decides everything that is drawn."),
)  # fmt: skip


def load_options(command: _Command) -> _Command:
    """Every option of a load, in this order in the help."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def build_load_settings(
    *,
    api_key: str | None,
    rate: float | None,
    burstiness: float | None,
    even: bool,
    ramp: tuple[float, float] | None,
    trace: Path | None,
    time_scale: float | None,
    tenants: tuple[Tenant, ...],
    priorities: tuple[tuple[int, float], ...] | None,
    cancel: MixShare | None,
    slow: MixShare | None,
    **same: Any,  # Any: options whose names are those of the settings
) -> LoadSettings:
    """The settings; options that were not given stay the Struct's defaults."""
    given = {name: value for name, value in same.items() if value is not None}
    ways = {"--concurrency": given.get("concurrency"), "--rate": rate, "--ramp": ramp, "--trace": trace}
    chosen = [option for option, value in ways.items() if value is not None]
    if len(chosen) > 1:
        raise Refusal(f"{' and '.join(chosen)}: one of them says how the load comes")
    if rate is None and (burstiness is not None or even):
        raise Refusal("--burstiness and --even need --rate")
    if burstiness is not None and even:
        raise Refusal("--even intervals have no --burstiness")
    if trace is None and time_scale is not None:
        raise Refusal("--time-scale needs --trace")
    if trace is None and "requests" not in given:
        given.setdefault("seconds", 30.0)
    arrivals: Arrivals | None = None
    if rate is not None:
        arrivals = Constant(rate) if even else Gamma(rate, burstiness or 1.0)
    elif ramp is not None:
        if "seconds" not in given:
            raise Refusal("--ramp needs --duration: how long it takes")
        arrivals = Ramp(*ramp, given["warmup_seconds"] + given["seconds"])
    elif trace is not None:
        arrivals = Recorded(str(trace), time_scale or 1.0)
    if tenants and api_key is not None:
        raise Refusal("--api-key or --tenant …,key=KEY, not both")
    mix = Mix(
        tenants=tenants or (Tenant(name="default", key=api_key),),
        priorities=priorities or (),
        cancel=cancel or MixShare(0.0, 0.0),
        slow=slow or MixShare(0.0, 0.0),
    )
    try:
        check_shares(mix)
    except BadMix as error:
        raise Refusal(str(error)) from error
    return LoadSettings(arrivals=arrivals, mix=mix, **given)
