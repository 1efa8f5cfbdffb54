"""`triolet models`: what is in the hub's cache, what each model would take of this machine, and whether it runs."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import msgspec
from msgspec import Struct

from ..models.hub.cache import cache_folder, snapshots
from ..models.hub.names import hub_name, local_model
from ..protocol.settings import EngineSettings
from .refusals import Refusal
from .values import format_count, format_size

FORMATS = ("none", "int8", "int4")


class ModelRow(Struct, frozen=True, kw_only=True):
    """One model. `memory`: bytes of weights and working arrays by --quantize; `problem`: why it does not run here."""

    name: str
    path: str
    disk: int
    family: str = ""
    parameters: int = 0
    weights: str = ""  # the checkpoint's own format
    memory: dict[str, int] = {}
    problem: str = ""


@click.command()
@click.argument("folders", nargs=-1, type=click.Path())
@click.option("--remove", metavar="NAME", help="Remove ORG/NAME from the cache, or one commit of it, ORG/NAME@COMMIT.")
@click.option("--yes", is_flag=True, help="Remove without asking.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
def models(folders: tuple[str, ...], remove: str | None, yes: bool, as_json: bool) -> None:
    """List the models of the hub's cache, and those of FOLDERS. Only headers are read.

    Memory is that of weights and working arrays on this machine's CPU; the KV cache comes on top (`triolet plan`).
    """
    if remove is not None:
        _remove(remove, without_asking=yes)
        return
    rows = [_row(name, path) for name, path in _found(folders)]
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(rows)))
    elif rows:
        _show(rows)
    else:
        click.echo(f"There are no models in {cache_folder()}. `triolet serve Qwen/Qwen3-0.6B` would fetch one.")


def _found(folders: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    for snapshot in snapshots():
        ggufs = sorted(snapshot.folder.rglob("*.gguf"))
        for gguf in ggufs if not (snapshot.folder / "config.json").exists() else ():
            if "-of-" not in gguf.name or "-00001-of-" in gguf.name:
                yield f"{snapshot}, {gguf.relative_to(snapshot.folder)}", gguf
        if not ggufs or (snapshot.folder / "config.json").exists():
            yield str(snapshot), snapshot.folder
    for folder in folders:
        yield folder, Path(folder)


def _row(name: str, path: Path) -> ModelRow:
    """Every refusal is the loader's own."""
    from ..models.checkpoint.open import open_checkpoint
    from ..models.encoder.checkpoint import makes_vectors
    from ..models.encoder.load import open_vector_checkpoint
    from ..models.errors import LoadError
    from ..models.host import available_memory
    from ..models.plan.plan import plan_here
    from .calibrated import NOT_MEASURED

    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    row = ModelRow(name=name, path=str(path), disk=sum(file.stat().st_size for file in files))
    try:
        if makes_vectors(local_model(str(path))):
            vectors = open_vector_checkpoint(path)
            return msgspec.structs.replace(row, family=vectors.spec.family, parameters=vectors.spec.parameters)
        checkpoint = open_checkpoint(local_model(str(path)))
        settings = EngineSettings(model=str(path))
        plan = plan_here(checkpoint, settings, available_memory(), lambda weights, threads: NOT_MEASURED)
    except LoadError as error:
        return msgspec.structs.replace(row, problem=str(error))
    fitting = {each.quantize: each.memory for each in plan.precisions if each.memory is not None}
    return msgspec.structs.replace(
        row,
        family=plan.architecture,
        parameters=plan.parameters,
        weights=checkpoint.dtype,
        memory={each: memory.weights_bytes + memory.workspace_bytes for each, memory in fitting.items()},
        problem="" if fitting else plan.precisions[-1].problem,
    )


def _show(rows: list[ModelRow]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    columns: dict[str, Callable[[ModelRow], str]] = {
        "model": lambda row: row.name,
        "family": lambda row: row.family,
        "parameters": lambda row: format_count(row.parameters) if row.parameters else "",
        "weights": lambda row: row.weights,
        "on disk": lambda row: format_size(row.disk),
        "in memory": lambda row: _size(row, "none"),
        "int8": lambda row: _size(row, "int8"),
        "int4": lambda row: _size(row, "int4"),
        "runs here": lambda row: (
            "no" if row.problem else "yes" if "none" in row.memory or not row.memory else "quantised"
        ),
    }
    table = Table(box=box.SIMPLE_HEAD)
    for label in columns:
        table.add_column(label, justify="left" if label in ("model", "family", "weights", "runs here") else "right")
    for row in rows:
        table.add_row(*(text(row) for text in columns.values()))
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(table)
    for row in rows:
        if row.problem:
            console.print(f"  {row.name}: {row.problem}", soft_wrap=True, markup=False)


def _size(row: ModelRow, quantize: str) -> str:
    return format_size(row.memory[quantize]) if quantize in row.memory else ""


def _remove(text: str, *, without_asking: bool) -> None:
    """By the hub's library, which knows what other commits share."""
    name = hub_name(text)
    if name is None:
        raise Refusal(f"--remove {text}: only models of the cache, as ORG/NAME; delete a folder yourself")
    found = [each for each in snapshots() if each.repo == name.repo]
    if name.revision is not None:
        found = [each for each in found if name.revision in (*each.refs, each.commit)]
    if not found:
        raise Refusal(f"--remove {text}: there is no such model in {cache_folder()}; `triolet models` lists them")
    from huggingface_hub import scan_cache_dir

    strategy = scan_cache_dir(cache_folder()).delete_revisions(*(each.commit for each in found))
    if not without_asking:
        click.confirm(f"Remove {text} from {cache_folder()}, {strategy.expected_freed_size_str}?", abort=True)
    strategy.execute()
    click.echo(f"Removed {text}: {strategy.expected_freed_size_str} are free again.")
