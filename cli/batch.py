"""`triolet batch FILE`: the requests in a file, answered with an engine of its own, without a server."""

from pathlib import Path
from typing import Any

import click

from .help import SettingsCommand
from .options import build_settings, engine_options
from .refusals import Refusal, refuse_missing_model


@click.command(cls=SettingsCommand)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@engine_options
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the results go.  [default: beside FILE, as FILE.output.jsonl]",
)
def batch(
    file: Path,
    model: Path | None,
    output: Path | None,
    **values: Any,  # Any: click's values, checked by each option's type
) -> None:
    """Answer the requests in FILE with MODEL, and write a line for each to --output.

    Each line of FILE is a request as in OpenAI's Batch API:

    \b
    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
     "body": {"messages": [{"role": "user", "content": "What is 2 + 3?"}]}}

    \b
    triolet batch questions.jsonl                                   with the bundled model
    triolet batch questions.jsonl path/to/model --quantize int8     with another one
    triolet batch questions.jsonl --output answers.jsonl

    Stopped or killed, the same command goes on where it was: until the end, what is done is in the folder
    OUTPUT.part. The exit code is 1 if a request was refused; its line in the output says why.
    """
    settings = build_settings(model, values)
    refuse_missing_model(settings.engine)
    output = output or file.with_name(f"{file.name.removesuffix('.jsonl')}.output.jsonl")
    if not output.parent.is_dir():
        raise Refusal(f"cannot write --output {output}: there is no folder {output.parent}; make it first")
    from .batch_run import BatchRun
    from .process import run_or_refuse

    run = BatchRun(settings, file, output)
    try:
        run_or_refuse(run.run)
    except click.Abort:
        click.echo(f"\nStopped. What is done is in {run.part}; the same command goes on from there.", err=True)
        raise
    click.echo(f"{run.counts.completed} answered, {run.counts.failed} refused: {output}")
    if run.counts.failed:
        raise SystemExit(1)
