"""Feeds the reader of torch.save's files with mutated ones: whatever a file says, it is read or refused.

    pip install atheris && python -m tests.models.checkpoint.pytorch.fuzz -max_len=4096 CORPUS

An input may be a pickle alone, which is put into a sound archive: mutations of a whole file break its archive first.
The folder `corpus` has small files that reach far, and inputs that once went wrong; test_fuzz.py reads them all.
"""

import sys
import tempfile
from importlib import import_module
from pathlib import Path


def main() -> None:
    fuzzer = import_module("atheris")  # not among the tests' packages
    with fuzzer.instrument_imports(include=["triolet.models.checkpoint"]):
        read_input = import_module("tests.models.checkpoint.pytorch.cases").read_input
    with tempfile.TemporaryDirectory() as folder:

        def one_input(data: bytes) -> None:
            read_input(Path(folder), data)

        fuzzer.Setup(sys.argv, one_input)
        fuzzer.Fuzz()


if __name__ == "__main__":
    main()
