"""`triolet serve`: load a model and serve it until told to stop. Standard output gets one line, when it is ready.

The worker starts before the web is imported: on two cores both are ready at about the same time.
"""

import gc
import logging
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from ..protocol.settings import ServeSettings, model_name
from .help import SettingsCommand
from .model_argument import GivenModel
from .options import build_settings, serve_options
from .sources import tell_notes

if TYPE_CHECKING:
    from ..actors.supervisor.child_process import ChildProcess
    from ..protocol.steps import Ready


@click.command(cls=SettingsCommand)
@serve_options
def serve(model: GivenModel, **values: Any) -> None:  # Any: click's values, checked by each option's type
    """Serve MODEL: a name on the Hugging Face hub, a folder, or a GGUF file (default: the bundled small model).

    \b
    triolet serve                                      the bundled model at http://127.0.0.1:8000
    triolet serve Qwen/Qwen3-0.6B                      one from the hub, fetched once
    triolet serve path/to/model --quantize int8        a folder, with weights of 8 bits
    triolet serve a=path/to/one b=ORG/NAME@v2          several models, by the names a and b
    triolet serve --host 0.0.0.0 --api-key @keys.txt   for other machines too, with keys
    """
    from ..actors.supervisor.child_process import start_worker
    from .names import with_local_models
    from .refusals import refuse_early, warn_of_open_pages

    settings = build_settings(model, values)
    refuse_early(settings)
    warn_of_open_pages(settings)
    tell_notes(settings.engine)
    settings = with_local_models(settings)
    try:
        worker = None if settings.inline or settings.models else start_worker(settings.engine)
    except OSError:
        worker = None  # the engine will try again, and report why
    gc.disable()  # objects made by imports stay: collecting garbage repeatedly would take a tenth of the time
    import_module(".serving" if settings.web_processes == 1 else ".several", __package__)  # hundreds of modules
    gc.freeze()
    gc.enable()
    serve_until_ended(settings, worker)


def serve_until_ended(settings: ServeSettings, worker: "ChildProcess | None") -> None:
    """Serve with this worker, or one that the engine starts, until a signal ends it; keep the user informed."""
    from ..actors.logs import log_to_stderr
    from .process import keep_what_is_there, return_large_blocks, run_or_refuse
    from .report import LoadDisplay, LogReport, reached_at, report_addresses, report_model, standard_error
    from .signals import run_until_signalled
    from .succession import succession_of

    if settings.web_processes == 1:
        from .serving import life_of
    else:
        from .several import life_of

    log_to_stderr(settings.engine)
    line = succession_of(settings)
    report = LogReport() if settings.engine.log_format == "json" else standard_error()
    with LoadDisplay(report) as display:

        def show_listening(urls: list[str]) -> None:
            display.close()
            if line.follows:
                return  # it is loaded
            report.line(f"  listening at {reached_at(urls, settings)[0]}; the model is being loaded")

        def show_model(ready: "Ready", own: ServeSettings) -> None:
            display.close()
            report_model(report, ready, own.engine, model_name(own))

        def show_addresses(urls: list[str]) -> None:
            urls = reached_at(urls, settings)
            report_addresses(report, urls, settings)
            if not line.follows:  # else whoever read the first server's line may be gone
                click.echo(f"Triolet is ready at {urls[0]}")
            keep_what_is_there()
            return_large_blocks()

        life = life_of(settings, worker, line, on_progress=display, on_listening=show_listening, on_ready=show_model)
        run = partial(
            run_until_signalled,
            settings,
            life,
            line,
            on_serving=show_addresses,
            on_drain=lambda: report.line("Finishing running answers; once more ends them now, a third time kills."),
        )
        try:
            run_or_refuse(run)
        except Exception:
            if line.heir is None:
                raise
            logging.getLogger("triolet.upgrade").exception("the old server failed while it finished its answers")
        line.leave()
