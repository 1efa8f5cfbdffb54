"""On a first start the sampler is compiled by a process apart; the one that asked loads what it left."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from pathlib import Path
from triolet.kernels.compile_cache import compilations, use_cache_folder
use_cache_folder(Path(sys.argv[1]))
from triolet.kernels.sampling.compile_apart import sampler_compiled_apart
from triolet.kernels.sampling.launch import CpuSampler
with sampler_compiled_apart() as began:
    pass
CpuSampler(100).warm_up()
print(began, compilations())
"""


FAILING = """
import sys
from pathlib import Path
from triolet.kernels.compile_cache import use_cache_folder
use_cache_folder(Path(sys.argv[1]))
from triolet.kernels.sampling.compile_apart import sampler_compiled_apart
try:
    with sampler_compiled_apart() as began:
        raise ValueError
except ValueError:
    print(began, not any(Path(sys.argv[1]).rglob("*sample_rows*.nbi")))
"""


def run(folder: Path, program: str = PROGRAM) -> str:
    command = [sys.executable, "-c", program, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=True, env=os.environ).stdout


def test_compiles_once_apart_and_never_again(tmp_path: Path) -> None:
    assert run(tmp_path) == "True 0\n"
    assert run(tmp_path) == "False 0\n"


def test_a_load_that_fails_does_not_wait_for_it(tmp_path: Path) -> None:
    assert run(tmp_path, FAILING) == "True True\n"
