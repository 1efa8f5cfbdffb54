"""Feeds the reader of quantised layers with mutated settings and tensors: they are read, or refused with an error.

    pip install atheris && python -m tests.models.checkpoint.quantised.fuzz -max_len=4096 CORPUS

The folder `corpus` has one small layer of each method, and inputs that once went wrong;
test_fuzz.py reads them all.
"""

import sys
from importlib import import_module


def main() -> None:
    fuzzer = import_module("atheris")  # not among the tests' packages
    with fuzzer.instrument_imports(include=["triolet.models.checkpoint"]):
        read_all = import_module("tests.models.checkpoint.quantised.cases").read_all

    def one_input(data: bytes) -> None:
        read_all(data)

    fuzzer.Setup(sys.argv, one_input)
    fuzzer.Fuzz()


if __name__ == "__main__":
    main()
