"""`triolet serve`: load a model and serve it until told to stop. Standard output gets one line, when it is ready.

The worker is started before the web is imported: on two cores it is nearly done when this process is.
"""

import gc
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from ..actors.supervisor.child_process import ChildProcess, start_worker
from ..protocol.settings import ServeSettings, model_name
from ..protocol.steps import Ready
from .options import build_settings, serve_options
from .refusals import refuse_early


@click.command()
@serve_options
def serve(model: Path | None, **values: Any) -> None:  # Any: click's values, checked by each option's type
    """Serve MODEL, a checkpoint folder as Hugging Face writes it; without one, the small model that comes along."""
    settings = build_settings(model, values)
    refuse_early(settings)
    try:
        worker = None if settings.inline else start_worker(settings.engine)
    except OSError:
        worker = None  # the engine will try again, and say why
    gc.disable()  # what an import makes stays: looking through it again and again is a tenth of the time
    import_module(".serving" if settings.web_processes == 1 else ".several", __package__)  # hundreds of modules
    gc.freeze()
    gc.enable()
    _serve(settings, worker)


def _serve(settings: ServeSettings, worker: ChildProcess | None) -> None:
    from .process import keep_what_is_there, log_to_stderr, run_or_refuse
    from .report import LoadDisplay, report_addresses, report_model, standard_error

    log_to_stderr()
    report = standard_error()
    with LoadDisplay(report) as display:

        def show_model(ready: Ready | None) -> None:
            display.close()
            if ready is not None:
                report_model(report, ready, settings.engine, model_name(settings))

        def show_addresses(urls: list[str]) -> None:
            report_addresses(report, urls, settings)
            click.echo(f"Triolet is ready at {urls[0]}")
            keep_what_is_there()

        run_or_refuse(
            partial(
                _life_of(settings),
                settings,
                worker,
                on_progress=display,
                on_ready=show_model,
                on_serving=show_addresses,
                on_drain=lambda: report.line("Finishing running answers; once more ends them now."),
            )
        )


def _life_of(settings: ServeSettings) -> Callable[..., Awaitable[None]]:
    """The server in one process, or with the web in processes of its own."""
    if settings.web_processes == 1:
        from .serving import serve_until_signalled

        return serve_until_signalled
    from .several import serve_several_until_signalled

    return serve_several_until_signalled
