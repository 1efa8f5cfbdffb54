"""`triolet doctor`: what a server is doing and what looks wrong: one that answers, one that hangs, one that is dead."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import click
import msgspec

from ..protocol.flight import DoctorReport, FlightBegan, FlightRecording, Record, StepBack, StepSent
from ..protocol.reports import Health
from .refusals import Refusal
from .values import CLIENT_KEY, SERVER_URL

ANSWER_SECONDS: Final = 10.0  # for a server
STACK_SECONDS: Final = 5.0  # for the stacks of a process, and its tasks
_LAST_STEPS: Final = 400  # records of a file's steps


@click.command()
@click.argument("where", metavar="[URL | FILE]", default="http://127.0.0.1:8000")
@click.option("--pid", type=click.IntRange(min=1), help="A server's process that does not answer: asked by a signal.")
@click.option("--api-key", "key", type=CLIENT_KEY, help="An operator's KEY, or @FILE with it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(where: str, pid: int | None, key: str | None, as_json: bool) -> None:
    """Say what a server is doing, what it did last, and what looks wrong.

    Begin here when something is slow, stuck or gone. Nothing that it prints holds a prompt or an answer, so all of it
    may be sent with a report.

    \b
    triolet doctor                                        the server at http://127.0.0.1:8000
    triolet doctor http://host:8000 --api-key @operators  another one, which asks for an operator's key
    triolet doctor --pid 4711                             one that does not answer: where each of its threads is
    triolet doctor ~/.local/state/triolet/flight/X.jsonl  one that is gone: what it recorded until then

    A server that answers is asked at /internal/doctor. With --pid its process gets SIGUSR2, which needs the same user
    and the same machine; it goes on as before. Every server records its last minutes in the folder flight/ of its
    data folder; after a SIGKILL the last second may be missing. The exit code is 1 if something looks wrong.
    """
    from .diagnosis import problems
    from .doctor_page import print_report

    if pid is not None:
        where_it_is, flights = _ask_by_signal(pid)
        report = msgspec.structs.replace(_recorded(flights, time.time()), tasks=where_it_is)
    elif where.startswith(("http://", "https://")):
        report = _ask(SERVER_URL.convert(where, None, None), key)
    else:
        report = _recorded([Path(where)], None)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(report)))
    else:
        print_report(report)
    raise SystemExit(1 if problems(report) else 0)


def _ask(url: str, key: str | None) -> DoctorReport:
    from .batch_client import ServerBatches

    try:
        answer = ServerBatches(url, key, seconds=ANSWER_SECONDS).ask("GET", "/internal/doctor")
        return msgspec.json.decode(answer, type=DoctorReport)
    except msgspec.MsgspecError as error:
        raise click.ClickException(f"{url} does not answer as this version of Triolet does: {error}") from error
    except click.ClickException as error:
        hint = "If the process runs and does not answer, try `triolet doctor --pid PID` on its machine"
        raise click.ClickException(f"{error.message}\n{hint}.") from error


def _ask_by_signal(pid: int) -> tuple[list[str], list[Path]]:
    """Where the process is, and the files of its flight recorder. Others, which the signal would end, do not get it."""
    from ..actors.observe.stack_file import END, SUFFIX
    from .upgrade import server_of

    if (server := server_of(pid)) is not None:  # the process that follows it, if it only waits for that
        pid = server.pid
    try:
        names = set[str]()
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                names.add(os.readlink(link))
    except OSError as error:
        raise Refusal(f"process {pid} cannot be looked at: {error.strerror}") from error
    root = f"/proc/{pid}/root"  # it may be in a container
    stacks = next((Path(root + name) for name in names if name.endswith(SUFFIX)), None)
    if stacks is None:
        raise Refusal(f"process {pid} is no Triolet server, or one of its workers: take the process that started them")
    os.truncate(stacks, 0)
    os.kill(pid, signal.SIGUSR2)
    text, deadline = "", time.monotonic() + STACK_SECONDS
    while END not in text and time.monotonic() < deadline:
        time.sleep(0.05)
        text = stacks.read_text(errors="replace")
    lines = text.replace(END, "").strip().splitlines() or ["It does not even handle signals: is it stopped?"]
    if text and END not in text:
        lines.append("Its tasks cannot be read: something holds the interpreter's lock.")
    return lines, [Path(root + name) for name in names if name.endswith(".jsonl")]


def _recorded(files: list[Path], wall: float | None) -> DoctorReport:
    """What flight recorders wrote. `wall`: the Unix time now, if the process lives; else it ended with its file."""
    recordings, version, end = dict[str, FlightRecording](), "", wall or 0.0
    for file in files:
        records = _read(file)
        began = next((record for record in records if isinstance(record, FlightBegan)), None)
        if began is None:
            raise Refusal(f"{file} is not a file of the flight recorder, such as flight/….jsonl in a data folder")
        now = records[-1].at if wall is None else wall - began.wall + began.at
        version, end = began.version, end or now - began.at + began.wall
        recordings[file.stem] = FlightRecording(now=now, records=records)
    health = Health(ready=wall is not None, status="recorded" if wall is None else "alive", reason="")
    return DoctorReport(version=version, wall=end, health=health, recordings=recordings)


def _read(file: Path) -> list[Record]:
    """With the older file beside it. A last line that was cut off is left out."""
    from ..actors.observe.flight_file import OLDER

    decoder, found = msgspec.json.Decoder[Record](Record), list[Record]()
    try:
        older = file.with_suffix(OLDER)
        lines = [
            line for each in (older, file) if each == file or each.exists() for line in each.read_bytes().splitlines()
        ]
    except OSError as error:
        raise Refusal(f"{file} cannot be read: {error.strerror}") from error
    for line in lines:
        try:
            found.append(decoder.decode(line))
        except msgspec.MsgspecError:
            continue
    steps = [record for record in found if isinstance(record, StepSent | StepBack)][-_LAST_STEPS:]
    others = [record for record in found if not isinstance(record, StepSent | StepBack)]
    return sorted([*others, *steps], key=_at)


def _at(record: Record) -> float:
    return record.at
