"""`--kernels interpret` in a process of its own: the GPU's code path, worker and all, gives the CPU's words."""

import os
import subprocess
import sys
from pathlib import Path

TRIOLET = str(Path(sys.executable).with_name("triolet"))
PROMPT = ["complete", "The capital of France is", "--temperature", "0", "--max-tokens", "3"]
# Every shape is captured before the worker is ready, so few shapes keep this short.
SMALL = ["--max-running", "1", "--max-step-tokens", "8", "--max-model-len", "64", "--dtype", "bfloat16"]


def completed(*options: str) -> str:
    # The tests' own process interprets; a user's decides by the flag alone.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [TRIOLET, *PROMPT, *SMALL, *options]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_flag_alone_runs_the_gpus_code_without_a_gpu() -> None:
    assert completed("--device", "cuda", "--kernels", "interpret") == completed("--device", "cpu")
