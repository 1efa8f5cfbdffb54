"""Feeds a reader of a model's files with mutated ones: whatever a file says, it is read or refused with a LoadError.

    pip install atheris && python -m tests.models.checkpoint.fuzz gguf -max_len=4096 CORPUS

A target is a folder beside this file: `cases.py` reads an input, `corpus` has small files that reach far, and inputs
that once went wrong; test_fuzz.py reads them all. An input that takes longer or more memory than it may, or makes
Python run something, counts as a failure too.
"""

import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from time import process_time
from typing import Final

TARGETS: Final = (
    *("adapter", "gguf", "pytorch", "quantised", "safetensors_file"),
    *("text/sentencepiece_file", "text/tekken_file", "text/tiktoken_file"),
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


def corpus_of(target: str) -> list[Path]:
    return sorted((Path(__file__).parent / target / "corpus").iterdir())


def reader_of(target: str) -> ReadInput:
    """Whether the input is a whole file of its kind; a folder to write it into comes first."""
    cases = import_module(f"tests.models.checkpoint.{target.replace('/', '.')}.cases")
    read_input: ReadInput = cases.read_input
    return read_input


class Watched:
    """A reader that raises where an input costs too much, or runs anything."""

    def __init__(self, read_input: ReadInput) -> None:
        self._read_input, self._reading = read_input, False
        sys.addaudithook(self._audit)

    def __call__(self, folder: Path, data: bytes) -> bool:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is from here on
        before, began = _peak_bytes(), process_time()
        self._reading = True
        try:
            found = self._read_input(folder, data)
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


def main() -> None:
    target = sys.argv.pop(1)
    fuzzer = import_module("atheris")  # not among the tests' packages
    with fuzzer.instrument_imports(include=["triolet.models.checkpoint"]):
        read_input = reader_of(target)
    with tempfile.TemporaryDirectory() as folder:
        for path in corpus_of(target):  # imports what is imported late
            read_input(Path(folder), path.read_bytes())
        watched = Watched(read_input)

        def one_input(data: bytes) -> None:
            watched(Path(folder), data)

        fuzzer.Setup(sys.argv, one_input)
        fuzzer.Fuzz()


if __name__ == "__main__":
    main()
