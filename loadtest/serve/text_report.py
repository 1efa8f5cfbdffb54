"""A result as text for a terminal, and the tables that the HTML report also shows."""

from rich.console import Console
from rich.text import Text

from ..client.ending import GIVEN_UP
from ..table import Rows, terminal_facts, terminal_table
from .arrivals import Constant, Gamma, Ramp, Recorded
from .lengths import describe
from .mix import names_of
from .quantiles import Spread
from .result import Result
from .settings import LoadSettings

METRICS = {
    "ttft": "time to first token",
    "itl": "inter-token latency",
    "tpot": "time per output token",
    "e2e": "end to end",
}
WORTH_SAYING = 0.005  # seconds of a 99th percentile spent before requests started
SELF_INFLICTED = {
    "ttft_started": "time to first token, from the actual start",
    "e2e_started": "end to end, from the actual start",
}


def milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    value = seconds * 1000
    return f"{value:,.{0 if value >= 1000 else 1 if value >= 10 else 2}f}"


def banner(result: Result) -> str:
    """Why the figures do not describe the server; empty if they do."""
    if not result.client.bottleneck:
        return ""
    return "The load client was itself the bottleneck: " + "; ".join(result.client.reasons) + "."


def headline_rows(result: Result) -> Rows:
    summary, client = result.summary, result.client
    per_thousand = client.cpu_ms_per_1000_tokens
    rows = [
        ["output tokens/s", f"{summary.output_tokens_per_second:,.1f}"],
        ["requests/s", f"{summary.requests_per_second:,.2f}"],
        ["requests", f"{summary.requests:,} in {summary.seconds:,.1f} s, {summary.failures:,} failed"],
        ["tokens", f"{summary.output_tokens:,} out in {summary.pieces:,} pieces, {summary.prompt_tokens:,} in"
         + (f" ({summary.cached_tokens:,} from a cache)" if summary.cached_tokens else "")],
    ]  # fmt: skip
    if summary.goodput is not None:
        good = summary.goodput
        rows.append(
            [
                "goodput",
                f"{good.requests_per_second:,.2f} requests/s, {good.share:.1%} within {slo_text(result.settings)}",
            ]
        )
    if result.unwarmed:
        rows.append(
            ["note", f"no request began after the warm-up of {result.unwarmed:g} s, so its requests count: the server "
             "is busy, or slow; run longer, or with a lower --concurrency"]
        )  # fmt: skip
    if not summary.tokens_are_counted:
        rows.append(["note", "the server tells no usage: every piece counts as one token"])
    if left := sum(summary.outcomes.get(outcome, 0) for outcome in GIVEN_UP):
        rows.append(
            ["note", f"{left:,} requests were given up (stalled, timeout or unfinished): their waits count as long as "
             "they lasted, and a figure with ≥ is a lower bound"]
        )  # fmt: skip
    used = f", {per_thousand:,.1f} ms of CPU per 1,000 tokens" if per_thousand is not None else ""
    rows.append(
        ["client", f"{client.cpu_share:.0%} of a core{used}; wake-ups late by {milliseconds(client.lag_p50)} ms (p50), "
         f"{milliseconds(client.lag_p99)} ms (p99)"]
    )  # fmt: skip
    return rows


def latency_rows(result: Result) -> Rows:
    """Milliseconds. Rows from the actual start are shown only if requests waited in the client."""
    found = result.summary.latencies
    rows = [["milliseconds", "mean", "p50", "p90", "p95", "p99", "p99.9", "max", "values"]]
    for name, title in METRICS.items():
        rows.append([title, *_spread_cells(getattr(found, name))])
    for name, title in SELF_INFLICTED.items():
        own: Spread | None = getattr(found, name)
        intended: Spread | None = getattr(found, name.removesuffix("_started"))
        if own is not None and intended is not None and intended.p99 - own.p99 > WORTH_SAYING:
            rows.append([title, *_spread_cells(own)])
    return rows


def _spread_cells(spread: Spread | None) -> list[str]:
    if spread is None:
        return ["–"] * 7 + ["0"]
    mean = ("≥ " if spread.at_least else "") + milliseconds(spread.mean)
    quantiles = (spread.p50, spread.p90, spread.p95, spread.p99, spread.p999, spread.max)
    count = f"{spread.count:,}" + (f", {spread.at_least:,} of them ≥" if spread.at_least else "")
    return [mean, *(_quantile_cell(spread, value) for value in quantiles), count]


def _quantile_cell(spread: Spread | None, value: float | None) -> str:
    bound = spread is not None and value is not None and spread.is_bound(value)
    return ("≥ " if bound else "") + milliseconds(value)


def group_rows(result: Result) -> Rows:
    """Tenants, priorities and behaviours, each only if there is more than one."""
    summary = result.summary
    rows = [
        ["", "requests", "failed", "tokens out", "first token p50", "p99", "per token p50", "p99", "e2e p50", "p99"]
    ]
    for kind, groups in (
        ("tenant", summary.tenants), ("priority", summary.priorities), ("client", summary.behaviours),
    ):  # fmt: skip
        if len(groups) > 1:
            for group in groups:
                cells = [f"{group.requests:,}", f"{group.failures:,}", f"{group.output_tokens:,}"]
                for spread in (group.ttft, group.tpot, group.e2e):
                    cells += [
                        _quantile_cell(spread, spread.p50 if spread else None),
                        _quantile_cell(spread, spread.p99 if spread else None),
                    ]
                rows.append([f"{kind} {group.name}", *cells])
    return rows


def outcome_rows(result: Result) -> Rows:
    summary = result.summary
    rows = [["outcome", "requests", "share", "first of them"]]
    for name, count in summary.outcomes.items():
        rows.append([name, f"{count:,}", f"{count / summary.requests:.1%}", summary.examples.get(name, "")])
    return rows


def settings_rows(settings: LoadSettings) -> Rows:
    ends = [f"{settings.seconds:g} s"] if settings.seconds is not None else []
    ends += [f"{settings.requests:,} requests"] if settings.requests is not None else []
    mix = settings.mix
    rows = [
        ["server", f"{settings.url}, {settings.api}"],
        ["load", load_text(settings)],
        ["measured", f"{' or '.join(ends)}, after {settings.warmup_seconds:g} s of warm-up"],
        ["lengths", f"prompt {describe(settings.prompt_tokens)}, answer {describe(settings.output_tokens)}"
         + ("" if settings.ignore_eos else " at most")],
    ]  # fmt: skip
    if isinstance(settings.arrivals, Recorded):
        rows[-1][1] = "as in the trace"
    if settings.shared_prefix.share:
        rows.append(
            [
                "shared prefix",
                f"{settings.shared_prefix.value:g} tokens, {settings.shared_prefix.share:.0%} of conversations",
            ]
        )
    if describe(settings.turns) != "1":
        rows.append(["turns", f"{describe(settings.turns)}, {describe(settings.think_seconds)} s between them"])
    if len(mix.tenants) > 1:
        rows.append(["tenants", names_of(mix.tenants)])
    if mix.priorities:
        rows.append(["priorities", ", ".join(f"{value} ×{weight:g}" for value, weight in mix.priorities)])
    if mix.cancel.share:
        rows.append(["cancelling", f"{mix.cancel.share:.0%} of clients, after {mix.cancel.value:g} pieces"])
    if mix.slow.share:
        rows.append(["slow readers", f"{mix.slow.share:.0%} of clients, {mix.slow.value:g} pieces a second"])
    return [*rows, ["seed", str(settings.seed)]]


def load_text(settings: LoadSettings) -> str:
    match settings.arrivals:
        case None:
            return f"closed loop, {settings.concurrency} clients"
        case Constant(rate=rate):
            return f"open loop, {rate:g} requests/s at even intervals"
        case Gamma(rate=rate, burstiness=shape):
            kind = "Poisson" if shape == 1 else f"gamma, burstiness {shape:g}"
            return f"open loop, {rate:g} requests/s, {kind}"
        case Ramp(start=start, end=end, seconds=seconds):
            return f"open loop, Poisson, {start:g} to {end:g} requests/s over {seconds:g} s"
        case Recorded(path=path, time_scale=scale):
            return f"open loop, the trace {path}, times × {scale:g}"


def slo_text(settings: LoadSettings) -> str:
    limits = {name: getattr(settings.slo, name) for name in settings.slo.__struct_fields__}
    return ", ".join(f"{name} {milliseconds(limit)} ms" for name, limit in limits.items() if limit is not None)


def show(result: Result, console: Console) -> None:
    if text := banner(result):
        console.print(Text(text, style="bold red"))
    console.print(terminal_facts(headline_rows(result)))
    console.print(terminal_table(latency_rows(result)))
    if len(rows := group_rows(result)) > 1:
        console.print(terminal_table(rows))
    if result.summary.failures:
        console.print(terminal_table(outcome_rows(result), left=(0, 3)))
