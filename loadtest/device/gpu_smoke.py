"""What a run begins with: the machine, one check of every kind of kernel, a model's graphs, and a search for races.

The checks are those of the other files, which are not done again. Adapters' kernels come with the models.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

from triolet.loadtest.device.gpu_case import HERE, NEEDS_DEVICE, Figures, GpuCase, GpuMachine, Skip, Wrong, cases_in

# Of a file's checks, the first whose name begins so. What takes longest is begun first.
FIRST: dict[str, tuple[str, ...]] = {
    "gpu_models": ("smallest model",),
    "gpu_attention": ("attention bf16", "attention by TMA", "attention latent"),
    "gpu_gemm": ("gemm w4", "gemm w8", "gemm int8", "gemm fp8", "gemm bf16", "gemm logits"),
    "gpu_experts": ("experts route", "experts group", "experts bf16", "experts w4", "experts combine"),
    "gpu_rows": ("rms_norm", "layer_norm", "silu_mul", "quantise", "gather", "caps of logits"),
    "gpu_rope": ("rope",),
    "gpu_sampling": ("sampling",),
    "gpu_step_inputs": ("step inputs",),
}
RACES_IN = "decode_kernel", "smoke/attention bf16"  # the kernel with the most synchronisation, and a case of it
RACE_SECONDS = 40
RACES = 9  # exit status
TOOLS = ("gcc", "nvcc", "compute-sanitizer")  # Triton builds its launchers with the first


def this_machine(machine: GpuMachine) -> Figures:
    """What a run elsewhere may differ in. `triton_key` is what Triton's cache depends on."""
    from triton.runtime.cache import triton_key

    figures: Figures = dict(machine.versions)
    figures["triton_key"] = hashlib.sha256(triton_key().encode()).hexdigest()[:16]
    figures["python_h"] = Path(sysconfig.get_path("include"), "Python.h").exists()
    for tool in TOOLS:
        figures[tool] = version_of(tool)
    if not machine.dry:
        import torch

        free, total = torch.cuda.mem_get_info()
        figures |= {"cuda": torch.version.cuda, "free_gb": free / 1e9, "total_gb": total / 1e9}
    return figures


def version_of(tool: str) -> str:
    """The numbers that it tells of itself, or "none"."""
    if (path := shutil.which(tool)) is None:
        return "none"
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    numbers = [word.strip(",V") for word in said.split() if word.strip(",V")[:1].isdigit() and "." in word]
    return numbers[-1] if numbers else "unknown"


def races(machine: GpuMachine) -> Figures:
    """The smallest decode in a worker of its own, under NVIDIA's tool."""
    kernel, case = RACES_IN
    if (tool := shutil.which("compute-sanitizer")) is None:
        raise Skip("compute-sanitizer is not installed here")
    if machine.dry:
        raise Skip(NEEDS_DEVICE)
    command = [tool, "--tool", "racecheck", "--kernel-name", f"kns={kernel}", "--error-exitcode", str(RACES)]
    with subprocess.Popen(
        [*command, sys.executable, "-m", f"{HERE}.gpu_worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, process_group=0,
    ) as process:  # fmt: skip
        try:
            said, _ = process.communicate(json.dumps({"run": case, "known": {}}) + "\n", RACE_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise Skip(f"compute-sanitizer was not done after {RACE_SECONDS} s") from error
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the worker, too, that the tool started
    print(said, file=sys.stderr)
    summary = [line.strip("= ") for line in said.splitlines() if "RACECHECK SUMMARY" in line]
    if process.returncode == RACES:
        raise Wrong(f"{kernel}: {'; '.join(summary) or 'compute-sanitizer found something'}; see log.txt")
    if not summary or '"status": "right"' not in said:
        raise Skip(f"compute-sanitizer does not run here: status {process.returncode}; see log.txt")
    return {"summary": summary[-1]}


def smoke(dry: bool) -> list[GpuCase]:
    found = [GpuCase("this machine", this_machine), GpuCase(f"races in {RACES_IN[0]}", races, checks=True)]
    for file, names in FIRST.items():
        cases = cases_in(file, "checks", dry)
        chosen = [next((case for case in cases if case.name.startswith(name)), cases[0]) for name in names]
        found += dict.fromkeys(chosen)  # where a file cannot be used, its only case says why
    return found
