"""`triolet serve`: load a model and serve it until told to stop. Standard output gets one line, when it is ready."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

import click

from ..actors.engine import Engine
from .options import build_settings, serve_options
from .refusals import refuse_early
from .report import LoadDisplay, report_addresses, report_model, standard_error
from .serving import Serving, run_or_refuse, serve_until_signalled


@click.command()
@serve_options
def serve(model: Path | None, **values: Any) -> None:  # Any: click's values, checked by each option's type
    """Serve MODEL, a checkpoint folder as Hugging Face writes it; without one, the small model that comes along."""
    settings = build_settings(model, values)
    refuse_early(settings)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("triolet").setLevel(logging.INFO)  # a line per request; of libraries only warnings
    console = standard_error()
    with LoadDisplay(console) as display:

        def show_model(engine: Engine) -> None:
            display.close()
            if (ready := engine.ready) is not None:
                report_model(console, ready, settings.engine, engine.model_name)

        def show_addresses(serving: Serving) -> None:
            report_addresses(console, serving.urls, settings)
            click.echo(f"Triolet is ready at {serving.urls[0]}")

        run_or_refuse(
            partial(
                serve_until_signalled,
                settings,
                on_progress=display,
                on_ready=show_model,
                on_serving=show_addresses,
                on_drain=lambda: console.print("Finishing running answers; once more ends them now."),
            )
        )
