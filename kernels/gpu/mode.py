"""Whether this process runs Triton kernels on a GPU or interprets them on the CPU. Imports neither Triton nor torch."""

import os
import sys


def interpret_kernels() -> None:
    """Interpret Triton kernels in this process: slow, exact, no GPU. Call it before Triton is imported.

    Triton reads the variable when it is imported (its own library is decorated then), so a later change would leave
    half of the functions compiled.

    A tile is multiplied by numpy's OpenBLAS, whose kernels for AVX2 round a row by its place in the tile, which no GPU
    does. Its plain ones do not. It chooses when numpy is imported, so numpy comes after this call, too.

    Raises RuntimeError if Triton was already imported for compiling.
    """
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("Triton was imported before interpret_kernels(): call it first thing in the process")
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ.setdefault("OPENBLAS_CORETYPE", "Nehalem")
