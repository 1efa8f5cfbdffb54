r"""Feeds a reader of a model's files with mutated ones: whatever a file says, it is read or refused.

    pip install atheris; mkdir -p /tmp/new
    python -m tests.models.checkpoint.fuzz gguf -max_total_time=3600 -artifact_prefix=/tmp/ \
        /tmp/new tests/models/checkpoint/gguf/corpus

What reaches further goes to /tmp/new, what goes wrong to /tmp. A target is a folder beside this file, or one level up:
`cases.py` reads an input, `corpus` has small files that reach far, and inputs that once went wrong; test_fuzz.py reads
them all. Only a CheckpointError is a refusal. An input that takes longer or more memory than it may, or makes Python
run something, counts as a failure too.
"""

import logging
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from time import process_time
from typing import Final

from triolet.models.errors import CheckpointError

from .fuzz_json import JsonMutator

TARGETS: Final = (
    *("adapter", "config_file", "folder", "gguf", "gguf/parts", "pytorch", "quantised", "safetensors_file"),
    *("text/folder_files", "text/sentencepiece_file", "text/tekken_file", "text/tiktoken_file"),
    *("cpu/kept_file", "encoder", "hub"),
)
MOST_SECONDS: Final = 2.0  # of CPU time: a fuzzer may run at idle priority
MOST_BYTES: Final = 64 << 20
# Of Python's audit events: whatever would run a file's content, or something outside.
_RUN: Final = (
    "compile",
    "exec",
    "import",
    "marshal.",
    "os.exec",
    "os.posix_spawn",
    "os.system",
    "pickle.",
    "subprocess.",
)

ReadInput = Callable[[Path, bytes], bool]


def _folder_of(target: str) -> Path:
    here = Path(__file__).parent
    return here / target if (here / target).is_dir() else here.parent / target


def corpus_of(target: str) -> list[Path]:
    return sorted((_folder_of(target) / "corpus").iterdir())


def reader_of(target: str) -> ReadInput:
    """Whether the input is a whole file of its kind; a folder to write it into comes first."""
    place = _folder_of(target).relative_to(Path(__file__).parents[3])
    read: ReadInput = import_module(".".join((*place.parts, "cases"))).read_input

    def read_input(folder: Path, data: bytes) -> bool:
        try:
            return read(folder, data)
        except CheckpointError:
            return False

    return read_input


def write_parts(folder: Path, data: bytes, *names: str) -> None:
    """A line for each file, and the rest for the last. Where there is nothing, there is no file."""
    parts = data.split(b"\n", len(names) - 1)
    for name, part in zip(names, [*parts, *[b""] * len(names)], strict=False):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if part:
            path.write_bytes(part)
        else:
            path.unlink(missing_ok=True)


def warm_up(target: str, folder: Path) -> None:
    """Imports what is imported late. What goes wrong here does so again when it is watched."""
    for path in corpus_of(target):
        with suppress(Exception):
            reader_of(target)(folder, path.read_bytes())


class Watched:
    """Reads, and raises where an input costs too much, or runs anything. Python keeps its hook for good: one is enough.

    To be made after warming up.
    """

    def __init__(self) -> None:
        self._reading = False
        sys.addaudithook(self._audit)

    def __call__(self, read_input: ReadInput, folder: Path, data: bytes) -> bool:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is from here on
        before, began = _peak_bytes(), process_time()
        self._reading = True
        try:
            found = read_input(folder, data)
        finally:
            self._reading = False
        seconds, more = process_time() - began, _peak_bytes() - before
        if seconds > MOST_SECONDS or more > MOST_BYTES:
            raise AssertionError(f"the input takes {seconds:.1f} s and {more} bytes")
        return found

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if self._reading and event.startswith(_RUN):
            raise AssertionError(f"a file made Python run something: {event} {arguments!r:.200}")


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def options(target: str, given: list[str]) -> list[str]:
    """The fuzzer's, whose own limit of an input's length would cut seeds."""
    longest = max(path.stat().st_size for path in corpus_of(target))
    return given if any(one.startswith("-max_len=") for one in given) else [*given, f"-max_len={longest}"]


def main() -> None:
    program, target, *given = sys.argv
    logging.disable()
    fuzzer = import_module("atheris")  # not among the tests' packages
    with fuzzer.instrument_imports(include=["triolet.models"]):
        read_input = reader_of(target)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:  # in memory: five times as many inputs a second
        warm_up(target, Path(folder))
        watched = Watched()

        def one_input(data: bytes) -> None:
            watched(read_input, Path(folder), data)

        def mutate(data: bytes, most: int, seed: int) -> bytes:
            found = in_json.mutated(data, seed) if seed % 2 else None
            return fuzzer.Mutate(data, most) if found is None or len(found) > most else found

        in_json = JsonMutator(path.read_bytes() for path in corpus_of(target))
        fuzzer.Setup([program, *options(target, given)], one_input, custom_mutator=mutate)
        fuzzer.Fuzz()


if __name__ == "__main__":
    main()
