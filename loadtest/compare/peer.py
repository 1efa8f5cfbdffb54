"""Runs one turn of another engine: a process that reads the cases and prints one JSON line per repetition.

    in:   {"threads": 2, "cases": [{"name", "prompt_tokens", "output_tokens", "batch", "repeats"}, …]}
    out:  {"engine", "precision", "bits", "versions"}, then per repetition {"case", "times": [[seconds, …], …]}

`loadtest/peers` has such programs; any command with this protocol works. The process has the machine to itself
and ends before the next engine starts.
"""

import shlex
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import Final

import msgspec
from msgspec import Struct

from ...cli.refusals import Refusal
from ..process import last_words, launched
from .cases import Case, ImpossibleTimes, round_of, value_of

TURN_SECONDS: Final = 1800.0  # a slow engine's whole turn; a stuck one still ends the run


class Peer(Struct, frozen=True):
    """`--peer NAME=COMMAND`."""

    name: str
    command: tuple[str, ...]


class PeerEngine(Struct, frozen=True):
    """The first line of a peer."""

    engine: str
    precision: str
    bits: int
    versions: dict[str, str] = {}


class _Repetition(Struct, frozen=True):
    case: str
    times: list[list[float]]


def read_peer(text: str) -> Peer:
    """`NAME=COMMAND` -> a Peer."""
    name, equals, command = text.partition("=")
    words = tuple(shlex.split(command))
    if not (name.strip() and equals and words):
        raise ValueError(f'"{text}" is not NAME=COMMAND, as in "llama.cpp q8=python loadtest/peers llama.cpp DIR"')
    return Peer(name.strip(), words)


def run_peer(
    peer: Peer, cases: Sequence[Case], threads: int, on_value: Callable[[], None]
) -> tuple[PeerEngine, dict[str, list[float]]]:
    """One turn: the engine's description, and the values of every case. Raises Refusal with its last output."""
    told = [{name: getattr(case, name) for name in _TOLD} for case in cases]
    with tempfile.TemporaryFile() as errors, ExitStack() as stack:
        try:
            process = stack.enter_context(
                launched(peer.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
            )
        except OSError as error:
            raise Refusal(f"--peer {peer.name}: cannot run {peer.command[0]}: {error.strerror}") from error
        alarm = threading.Timer(TURN_SECONDS, process.kill)
        alarm.start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            # If it has already ended, its last output is reported below.
            with suppress(BrokenPipeError), process.stdin:
                process.stdin.write(msgspec.json.encode({"threads": threads, "cases": told}))
            return _read((line for line in process.stdout if line.startswith(b"{")), cases, on_value)
        except (msgspec.DecodeError, ImpossibleTimes, _Silent) as error:
            if not isinstance(error, _Silent):
                process.kill()  # it might run on; a process without output has ended, or will
            status = process.wait()
            raise Refusal(f"--peer {peer.name}: {error} (exit status {status}){last_words(errors)}") from error
        finally:
            alarm.cancel()


_TOLD: Final = ("name", "prompt_tokens", "output_tokens", "batch", "repeats")


class _Silent(Exception):
    """Its output ended too early."""


def _read(
    lines: Iterable[bytes], cases: Sequence[Case], on_value: Callable[[], None]
) -> tuple[PeerEngine, dict[str, list[float]]]:
    by_name = {case.name: case for case in cases}
    values: dict[str, list[float]] = {case.name: [] for case in cases}
    about: PeerEngine | None = None
    for line in lines:
        if about is None:
            about = msgspec.json.decode(line, type=PeerEngine)
            continue
        repetition = msgspec.json.decode(line, type=_Repetition)
        case = by_name.get(repetition.case)
        if case is None:
            raise ImpossibleTimes(f"it measured {repetition.case!r}, which it was not asked for")
        values[case.name].append(value_of(case, round_of(case, repetition.times)))
        on_value()
    missing = [name for name, found in values.items() if len(found) < by_name[name].repeats]
    if about is None or missing:
        raise _Silent(f"its output ended without {', '.join(missing) or 'a word'}")
    return about, values
