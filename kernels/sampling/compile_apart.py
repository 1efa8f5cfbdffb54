"""On the first start on a machine, compiles the sampler in its own process, in parallel with the decoder's step.

numba compiles under one lock, so a second thread would wait, and both take about as long. The process leaves its result
in the folder that the caller reads. If it fails, the caller only takes longer.

    python -m triolet.kernels.sampling.compile_apart FOLDER
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ..compile_cache import prepare_compile_cache, use_cache_folder
from .launch import CpuSampler

_PR_SET_PDEATHSIG: Final = 1


@contextmanager
def sampler_compiled_apart() -> Generator[bool]:
    """A block during which the sampler is compiled, unless the cache has it. Yields whether it is being compiled.

    The end of the block waits for the process; a block that raises ends the process.
    """
    process = _compiling(prepare_compile_cache())
    try:
        yield process is not None
    except BaseException:
        if process is not None:
            process.kill()
        raise
    finally:
        if process is not None:
            process.wait()


def _compiling(folder: Path) -> subprocess.Popen[bytes] | None:
    if any(folder.rglob("*sample_rows*.nbi")):
        return None
    command = [sys.executable, "-P", "-m", __name__, str(folder)]
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, stderr=subprocess.DEVNULL)
    except OSError:  # no memory or process available: the caller compiles it itself
        return None


def main() -> None:
    if sys.platform == "linux":  # the waiting process may be killed
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    use_cache_folder(Path(sys.argv[1]))
    CpuSampler(64).warm_up()


if __name__ == "__main__":
    main()
