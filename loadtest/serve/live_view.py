"""Shows a run's progress on a terminal: one small table, redrawn twice a second.

Cheap on purpose: it reads counters and the last few hundred records, in the client's own event loop.
"""

from collections import deque

import trio
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .lag import MOST_LAG, LagMeter
from .quantiles import quantile
from .record import time_per_output_token, time_to_first_token
from .runner import Runner
from .settings import LoadSettings

REFRESH_SECONDS = 0.5
RECENT = 400  # latest records, from which the latencies are computed
RATE_SECONDS = 5.0  # over which the rate is computed


class LiveView:
    def __init__(self, settings: LoadSettings, runner: Runner, meter: LagMeter) -> None:
        self._settings = settings
        self._runner = runner
        self._meter = meter
        self._history: deque[tuple[float, int]] = deque()

    async def show(self, console: Console) -> None:
        """Run until cancelled, then erase the table, because the report follows."""
        with Live(self.render(), console=console, auto_refresh=False, transient=True) as live:
            while True:
                await trio.sleep(REFRESH_SECONDS)
                live.update(self.render(), refresh=True)

    def render(self) -> RenderableType:
        progress, settings = self._runner.progress, self._settings
        now = trio.current_time()
        elapsed = now - progress.begun if progress.begun is not None else 0.0
        pieces = progress.pieces
        self._history.append((now, pieces))
        while now - self._history[0][0] > RATE_SECONDS:
            self._history.popleft()
        since, before = self._history[0]
        rate = (pieces - before) / (now - since) if now > since else 0.0
        table = Table.grid(padding=(0, 2))
        for label, text in {
            "load": f"{len(progress.in_flight):,} in flight, {len(progress.records):,} ended"
            + (f", {progress.waiting:,} waiting for a place" if progress.waiting else ""),
            "pieces": f"{rate:,.0f} a second, {pieces:,} in all",
            "latest": self._latest(),
            "failures": self._failures(),
        }.items():
            table.add_row(Text(label, style="dim"), Text.from_markup(text))
        table.add_row(Text("client", style="dim"), self._client())
        return Group(self._bar(elapsed, settings), table)

    def _bar(self, elapsed: float, settings: LoadSettings) -> RenderableType:
        phase = "warming up" if elapsed < settings.warmup_seconds else "measuring"
        if self._runner.progress.issuing_ended is not None:
            phase = "finishing"
        line = Table.grid(padding=(0, 2))
        if settings.seconds is not None:
            total = settings.warmup_seconds + settings.seconds
            line.add_row(
                Text(phase, style="bold"), ProgressBar(total, min(elapsed, total), width=40), f"{elapsed:.0f} s"
            )
        else:
            done = self._runner.progress.measured_ended
            bar = ProgressBar(settings.requests, min(done, settings.requests or done), width=40)
            line.add_row(Text(phase, style="bold"), bar, f"{elapsed:.0f} s")
        return line

    def _latest(self) -> str:
        recent = [each for each in self._runner.progress.records[-RECENT:] if each.behaviour == "ordinary"]
        parts: list[str] = []
        for label, values in (
            ("first token", sorted(v for each in recent if (v := time_to_first_token(each)) is not None)),
            ("per token", sorted(v for each in recent if (v := time_per_output_token(each)) is not None)),
        ):
            if values:
                p50, p99 = quantile(values, 0.5) * 1000, quantile(values, 0.99) * 1000
                parts.append(f"{label} {p50:.1f} ms, p99 {p99:.1f}")
        return " · ".join(parts) or "nothing yet"

    def _failures(self) -> str:
        failures = self._runner.progress.failures.most_common()
        return ", ".join(f"[red]{name} {count:,}[/red]" for name, count in failures) or "none"

    def _client(self) -> Text:
        lags = sorted(self._meter.lags[-500:]) or [0.0]
        late = quantile(lags, 0.99)
        text = f"p99 of its wake-ups {late * 1000:.1f} ms late"
        return Text(
            text + (": it is the bottleneck" if late > MOST_LAG else ""), style="red" if late > MOST_LAG else ""
        )
