"""`triolet serve`: load a model and serve it until told to stop. Standard output gets one line, when it is ready.

The worker is started before the web is imported: on two cores it is nearly done when this process is.
"""

import gc
import logging
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..actors.worker_process import WorkerProcess
from ..protocol.settings import ServeSettings
from .options import build_settings, serve_options
from .refusals import refuse_early

if TYPE_CHECKING:
    from ..actors.engine import Engine
    from .serving import Serving


@click.command()
@serve_options
def serve(model: Path | None, **values: Any) -> None:  # Any: click's values, checked by each option's type
    """Serve MODEL, a checkpoint folder as Hugging Face writes it; without one, the small model that comes along."""
    settings = build_settings(model, values)
    refuse_early(settings)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("triolet").setLevel(logging.INFO)  # a line per request; of libraries only warnings
    try:
        worker = None if settings.inline else WorkerProcess(settings.engine)
    except OSError:
        worker = None  # the engine will try again, and say why
    gc.disable()  # what an import makes stays: looking through it again and again is a tenth of the time
    import_module(".serving", __package__)  # hundreds of modules

    gc.freeze()
    gc.enable()
    _serve(settings, worker)


def _serve(settings: ServeSettings, worker: WorkerProcess | None) -> None:
    from .report import LoadDisplay, report_addresses, report_model, standard_error
    from .serving import run_or_refuse, serve_until_signalled

    report = standard_error()
    with LoadDisplay(report) as display:

        def show_model(engine: "Engine") -> None:
            display.close()
            if (ready := engine.ready) is not None:
                report_model(report, ready, settings.engine, engine.model_name)

        def show_addresses(serving: "Serving") -> None:
            report_addresses(report, serving.urls, settings)
            click.echo(f"Triolet is ready at {serving.urls[0]}")

        run_or_refuse(
            partial(
                serve_until_signalled,
                settings,
                worker,
                on_progress=display,
                on_ready=show_model,
                on_serving=show_addresses,
                on_drain=lambda: report.line("Finishing running answers; once more ends them now."),
            )
        )
