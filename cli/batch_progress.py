"""How far a batch is: a bar on a terminal; elsewhere nothing until the end."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..protocol.openai_batches import BatchObject


@contextmanager
def batch_progress() -> Generator[Callable[[BatchObject], None]]:
    """Call it with the batch again and again."""
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading", total=None)

        def show(batch: BatchObject) -> None:
            counts = batch.request_counts
            if batch.status != "validating":
                done = counts.completed + counts.failed
                progress.update(task, description="answering", total=counts.total, completed=done)

        yield show
