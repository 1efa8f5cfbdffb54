"""`triolet bench`: its commands are in a file each, `bench_*.py`, imported when they run or explain themselves."""

from typing import Final

import click

from .help import LazyGroup

COMMANDS: Final = {
    "offline": ("bench_offline", "offline", "The engine alone: prefill and decode rates, the time of a step."),
    "cpu": ("bench_cpu", "cpu", "This machine's roofline, and where a model's steps stand under it."),
    "serve": ("bench_serve", "serve", "Load any OpenAI-compatible server and report what its clients saw."),
    "compare": ("bench_compare", "compare", "Tell two results of `bench serve` apart."),
    "peers": ("bench_peers", "peers", "Run Triolet and other engines in turn on one model."),
    "behaviour": ("bench_behaviour", "behaviour", "How a server behaves when clients leave, stall or flood."),
    "web": ("bench_web", "web", "The web tier alone, before a worker that follows a script."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def bench() -> None:
    """Measure the engine on this machine, or load a server."""
