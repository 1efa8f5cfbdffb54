"""`triolet batch FILE`: the requests in a file, answered with an engine of its own, without a server."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..protocol.settings import ServeSettings
from .help import SettingsCommand
from .names import with_local_models
from .options import build_settings, engine_options
from .refusals import Refusal
from .values import CLIENT_KEY, SERVER_URL

if TYPE_CHECKING:
    from .batch_remote import RemoteBatch
    from .batch_run import BatchRun


@click.command(cls=SettingsCommand)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@engine_options
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the results go.  [default: beside FILE, as FILE.output.jsonl]",
)
@click.option(
    "--url",
    type=SERVER_URL,
    help="A running server, such as http://127.0.0.1:8000, to answer them. Then MODEL and its options are not used.",
)
@click.option("--api-key", type=CLIENT_KEY, help="KEY for that server, or @FILE with it.")
def batch(
    file: Path,
    model: str | None,
    output: Path | None,
    url: str | None,
    api_key: str | None,
    **values: Any,  # Any: click's values, checked by each option's type
) -> None:
    """Answer the requests in FILE with MODEL, or the server at --url, and write a line for each to --output.

    Each line of FILE is a request as in OpenAI's Batch API:

    \b
    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
     "body": {"messages": [{"role": "user", "content": "What is 2 + 3?"}]}}

    \b
    triolet batch questions.jsonl                                   with the bundled model
    triolet batch questions.jsonl path/to/model --quantize int8     with another one
    triolet batch questions.jsonl --output answers.jsonl
    triolet batch questions.jsonl --url http://127.0.0.1:8000       as a batch of a running server

    Stopped or killed, the same command goes on where it was: until the end, what is done is in the folder
    OUTPUT.part. Ctrl-C cancels a batch of a server. The exit code is 1 if a request was refused; its line in the
    output says why.
    """
    output = output or file.with_name(f"{file.name.removesuffix('.jsonl')}.output.jsonl")
    if not output.parent.is_dir():
        raise Refusal(f"cannot write --output {output}: there is no folder {output.parent}; make it first")
    run, answer = (
        _run_there(url, api_key, model, file, output)
        if url is not None
        else _run_here(build_settings(model, values), file, output)
    )
    try:
        answer()
    except (click.Abort, KeyboardInterrupt):
        if run.part.exists():
            click.echo(f"\nStopped. What is done is in {run.part}; the same command goes on from there.", err=True)
        raise click.Abort from None
    click.echo(f"{run.counts.completed} answered, {run.counts.failed} refused: {output}")
    if run.counts.failed:
        raise SystemExit(1)


def _run_there(
    url: str, api_key: str | None, model: str | None, file: Path, output: Path
) -> "tuple[RemoteBatch, Callable[[], None]]":
    from .batch_remote import RemoteBatch

    if model is not None:
        raise Refusal("give a MODEL to start or the --url of a server that runs, not both")
    run = RemoteBatch(url.rstrip("/"), api_key, file, output)
    return run, run.run


def _run_here(settings: ServeSettings, file: Path, output: Path) -> "tuple[BatchRun, Callable[[], None]]":
    settings = with_local_models(settings)
    from .batch_run import BatchRun
    from .process import run_or_refuse

    run = BatchRun(settings, file, output)
    return run, partial(run_or_refuse, run.run)
