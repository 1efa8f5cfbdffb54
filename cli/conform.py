"""`triolet conform URL`: whether a server speaks the APIs that clients rely on."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from .values import CLIENT_KEY

if TYPE_CHECKING:
    from ..loadtest.conform.table import Report


@click.command()
@click.argument("url")
@click.option("--model", help="Model to ask for.  [default: the first that the server lists]")
@click.option("--api-key", "key", type=CLIENT_KEY, help="KEY or @FILE.")
@click.option("--name", default="server", show_default=True, help="Heads the table's column.")
@click.option("--group", "groups", multiple=True, help="Only this part, such as tools; may be repeated.")
@click.option("--timeout", type=click.FloatRange(min=0.1), default=60.0, show_default=True, help="Seconds per check.")
@click.option("--compare", multiple=True, type=click.Path(exists=True, path_type=Path), help="JSON of other servers.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def conform(
    url: str,
    model: str | None,
    key: str | None,
    name: str,
    groups: tuple[str, ...],
    timeout: float,
    compare: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Check whether the server at URL keeps to the APIs that clients rely on, and print a table.

    It asks as clients do: whole and streamed answers, bad requests, structured output, tools, and the other APIs. A
    feature that the server refuses is "not offered", which is no failure. Exit code 1 if a check fails.

    \b
    triolet conform http://127.0.0.1:8000
    triolet conform http://host:8000 --name peer --json > peer.json
    triolet conform http://127.0.0.1:8000 --compare peer.json
    """
    import trio
    from rich.console import Console

    from ..loadtest.client.ending import Fault
    from ..loadtest.conform.conform import GROUPS
    from ..loadtest.conform.table import table_of

    known = [group.name for group in GROUPS]
    for group in groups:
        if group not in known:
            raise click.UsageError(f"--group {group!r} is none of {', '.join(known)}")
    others = [_earlier(path) for path in compare]
    try:
        report = trio.run(partial(_examine, url, model, key, name, groups, timeout))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except (Fault, msgspec.MsgspecError) as error:
        raise click.ClickException(f"{url}: {error}") from error
    except trio.TooSlowError as error:
        raise click.ClickException(f"{url}: no list of models within {timeout:g} s (--timeout)") from error
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(report)))
    else:
        Console().print(table_of([report, *others]))
    if report.fails:
        raise SystemExit(1)


def _earlier(path: Path) -> "Report":
    from ..loadtest.conform.table import Report

    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except msgspec.MsgspecError as error:
        raise click.UsageError(f"--compare {path} is no report of --json: {error}") from error


async def _examine(
    url: str, model: str | None, key: str | None, name: str, groups: tuple[str, ...], seconds: float
) -> "Report":
    import trio
    from rich.console import Console

    from ..loadtest.conform.check import CheckResult
    from ..loadtest.conform.conform import GROUPS, conform, first_model
    from ..loadtest.conform.server import ExaminedServer
    from ..loadtest.conform.table import Report

    with trio.fail_after(seconds):
        model = model or await first_model(url, key)
    server = ExaminedServer(url, model=model, key=key)
    results = list[CheckResult]()
    chosen = [group for group in GROUPS if not groups or group.name in groups]
    wanted = sum(len(group.checks) for group in chosen)
    with Console(stderr=True).status(f"examining {name}") as status:
        async for result in conform(server, chosen, seconds=seconds):
            results.append(result)
            status.update(f"examining {name}: {len(results)} of {wanted} checks")
    await server.close()
    return Report(name=name, url=url, model=server.model, results=tuple(results))
