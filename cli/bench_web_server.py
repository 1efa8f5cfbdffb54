"""The server that `triolet bench web` measures: `triolet serve`, with a worker that follows a script.

`python -m triolet.cli.bench_web_server`, started by loadtest/web; takes the options of `triolet serve` and a few of its
own. Everything between the socket and the worker's link is as in production.
"""

import os
from pathlib import Path
from typing import Any

import click

from ..loadtest.web.profile import profiling
from ..loadtest.web.scripted_worker import start_scripted_worker
from .options import build_settings, serve_options
from .serve import serve_until_ended


@click.command()
@serve_options
@click.option("--pace", default="at-once", help="When a step is answered: at-once, in-turn, or seconds of a step.")
@click.option("--tokens-per-row", type=click.IntRange(min=1), default=1, help="Tokens that a step gives a stream.")
@click.option("--cpu", type=click.IntRange(min=0), default=None, help="The one core for the server.")
@click.option("--worker-cpu", type=click.IntRange(min=0), default=None, help="The one core for its worker.")
@click.option("--profile", type=click.Path(path_type=Path), default=None, help="Write where the time went to a file.")
def main(
    model: str | None,
    pace: str,
    tokens_per_row: int,
    cpu: int | None,
    worker_cpu: int | None,
    profile: Path | None,
    **values: Any,  # Any: click's values, checked by each option's type
) -> None:
    """Serve a script."""
    settings = build_settings(model, values)
    worker = start_scripted_worker(settings.engine, pace=pace, tokens_per_row=tokens_per_row, cpu=worker_cpu)
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    with profiling(profile):
        serve_until_ended(settings, worker)


if __name__ == "__main__":
    main()
