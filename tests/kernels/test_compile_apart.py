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
from triolet.kernels.sampling.compile_apart import SAMPLER
from triolet.kernels.sampling.launch import CpuSampler
SAMPLER.begin()
began = SAMPLER.running
CpuSampler(100).warm_up()
print(began, SAMPLER.running, compilations())
"""


def run(folder: Path) -> str:
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=True, env=os.environ).stdout


def test_compiles_once_apart_and_never_again(tmp_path: Path) -> None:
    assert run(tmp_path) == "True False 0\n"
    assert run(tmp_path) == "False False 0\n"
