"""The first start on a machine: the sampler is compiled in a process of its own, beside the decoder's step.

numba compiles under one lock, so a second thread would wait, and both take about as long. The process leaves its result
in the folder that the caller reads from; whether it succeeds matters only to how long the caller then needs.

    python -m triolet.kernels.sampling.compile_apart FOLDER
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from ..compile_cache import prepare_compile_cache, use_cache_folder

_PR_SET_PDEATHSIG: Final = 1


class ApartCompilation:
    """The process, while there is one."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None

    def begin(self) -> None:
        """Start it, unless the folder holds a compiled sampler already."""
        folder = prepare_compile_cache()
        if self._process is None and not any(folder.rglob("*sample_rows*.nbi")):
            command = [sys.executable, "-P", "-m", __name__, str(folder)]
            try:
                self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, stderr=subprocess.DEVNULL)
            except OSError:  # no memory or process to be had: the caller compiles it itself
                self._process = None

    def wait(self) -> None:
        if self._process is not None:
            self._process.wait()
            self._process = None


SAMPLER: Final = ApartCompilation()


def main() -> None:
    if sys.platform == "linux":  # whoever waits for this may be killed
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    use_cache_folder(Path(sys.argv[1]))
    from .launch import CpuSampler

    CpuSampler(64).warm_up()


if __name__ == "__main__":
    main()
