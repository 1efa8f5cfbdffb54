"""What a person sees while a model loads and once it serves, on standard error: bars on a terminal, lines elsewhere."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ..models.host import usable_cores
from ..protocol.settings import EngineSettings, ServeSettings
from ..protocol.steps import LoadProgress, Ready
from .values import format_size


def standard_error() -> Console:
    """A console on standard error; rich honours NO_COLOR and knows a terminal."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


class LoadDisplay:
    """Shows each stage of loading as it comes. Call it with every LoadProgress, within its `with`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stages: dict[str, TaskID | None] = {}
        self._bars: Progress | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            columns = (
                TextColumn("  {task.description:<24}"),
                BarColumn(bar_width=32),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
            )
            self._bars = Progress(*columns, console=self._console)
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the bars as they stand; what is printed from now on comes below them."""
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, progress: LoadProgress) -> None:
        if self._bars is None:
            if progress.stage not in self._stages:
                self._stages[progress.stage] = None
                self._console.print(f"  {escape(progress.stage)}…")
            return
        task = self._stages.get(progress.stage)
        if task is None:
            task = self._stages[progress.stage] = self._bars.add_task(escape(progress.stage), total=progress.total)
        self._bars.update(task, completed=progress.done, total=progress.total)


def _threads(engine: EngineSettings) -> str:
    count = engine.threads or usable_cores()
    return f"{count} thread{'s' if count > 1 else ''}"


def report_model(console: Console, ready: Ready, engine: EngineSettings, name: str) -> None:
    """The model, its precision and what its memory goes to."""
    memory = ready.memory
    precision = ready.dtype if ready.quantize == "none" else f"{ready.quantize} weights, {ready.dtype} otherwise"
    where = f"{ready.device}, {_threads(engine)}" if ready.device == "cpu" else ready.device
    rows = {
        "model": f"{name}: {ready.architecture}, {ready.parameters / 1e6:,.1f} M parameters, "
        f"context {ready.context_length:,} tokens",
        "runs on": f"{where}, {precision}",
        "memory": f"weights {format_size(memory.weights_bytes)} · workspace {format_size(memory.workspace_bytes)} · "
        f"KV cache {format_size(memory.kv_bytes)}",
        "KV cache": f"{memory.num_blocks:,} blocks of {memory.block_size} tokens in {ready.kv_cache_dtype}: "
        f"{memory.sequences_at_full_length:.1f} sequences at full length, {ready.max_running} at once in a step",
    }
    _print_rows(console, rows)


def report_addresses(console: Console, urls: list[str], settings: ServeSettings) -> None:
    """Where to go now."""
    keys = len(settings.api_keys)
    asked = f"asks for {'a key' if keys == 1 else f'one of {keys} keys'}" if keys else "open to this machine"
    _print_rows(console, {"chat page": f"{urls[0]}/", "API": f"{urls[0]}/v1  ({asked})"})


def _print_rows(console: Console, rows: dict[str, str]) -> None:
    for label, text in rows.items():
        console.print(f"  [dim]{label:<9}[/] {escape(text)}")
