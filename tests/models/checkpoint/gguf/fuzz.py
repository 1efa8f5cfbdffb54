"""Feeds the reader of GGUF files with mutated ones: whatever a file says, it is read or refused with a CheckpointError.

    pip install atheris && python -m tests.models.checkpoint.gguf.fuzz -max_len=4096 tests/models/checkpoint/gguf/corpus

The corpus are small files that reach far, and inputs that once went wrong; test_fuzz.py reads them all.
"""

import sys
import tempfile
from importlib import import_module
from pathlib import Path


def main() -> None:
    fuzzer = import_module("atheris")  # not among the tests' packages
    with fuzzer.instrument_imports(include=["triolet.models.checkpoint"]):
        read_all = import_module("tests.models.checkpoint.gguf.cases").read_all
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzz.gguf"

        def one_input(data: bytes) -> None:
            path.write_bytes(data)
            read_all(path)

        fuzzer.Setup(sys.argv, one_input)
        fuzzer.Fuzz()


if __name__ == "__main__":
    main()
