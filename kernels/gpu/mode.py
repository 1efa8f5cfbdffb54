"""Whether this process runs Triton kernels on a GPU or interprets them on the CPU. Imports neither Triton nor torch."""

import os
import sys


def interpret_kernels() -> None:
    """Interpret Triton kernels in this process: slow, exact, no GPU. Call it before Triton is imported.

    Triton reads the variable when it is imported (its own library is decorated then), so a later change would leave
    half of the functions compiled.

    Raises RuntimeError if Triton was already imported for compiling.
    """
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("Triton was imported before interpret_kernels(): call it first thing in the process")
    os.environ["TRITON_INTERPRET"] = "1"
