"""`make test-arm64`: the CPU engine on AArch64, on three generations of CPUs that QEMU emulates.

Each continues prompts with the bundled model in int8: the tokens must be those of this machine. Then each runs tests of
kernels. QEMU gives a CPU the instructions that it has and no others, so a wrong choice ends in an illegal one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer

from .greedy import MODEL

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv-arm64"
KERNELS = ROOT / "tests" / "kernels"
# QEMU's names, and what the products must choose there
CPUS = {"max": {"dotprod", "i8mm", "bf16"}, "neoverse-n1": {"dotprod"}, "cortex-a72": set[str]()}
# The tests of bytes' products run on all three, the others on the first. Those that start sys.executable are left out:
# it is not a program of this machine.
PRODUCTS = ("test_gemm.py", "test_gemm_stored.py", "test_paged_attention.py")
OTHERS = ("test_bfdot.py", "test_rows.py", "test_latent_tile.py", "test_rope.py", "test_threads.py")
CHOSEN = {
    "max": (*PRODUCTS, *OTHERS, "-k", "not interpreter and not interrupt and not forked"),
    "neoverse-n1": (*PRODUCTS, "-k", "int or codes or layouts or bound"),
}
CHOSEN["cortex-a72"] = CHOSEN["neoverse-n1"]
TEXTS = ("Once upon a time there was a little fox who", "What is 17 + 25?", "Say hello.")
ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": str(FOLDER / "home"),  # with the cache of compiled kernels
    "QEMU_LD_PREFIX": str(FOLDER / "root"),
    "PYTHONDONTWRITEBYTECODE": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


def emulated(cpu: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments on such a CPU."""
    qemu = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if qemu is None:
        sys.exit("there is no QEMU here: apt-get install qemu-user-static")
    paths = (ROOT / ".typing", ROOT, FOLDER / "site")  # in the first is the package `triolet`
    own = ENVIRONMENT | {"QEMU_CPU": cpu, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [qemu, str(FOLDER / "root" / "usr" / "bin" / "python3.11"), "-P", *arguments]
    return subprocess.run(command, env=own, cwd=ROOT, capture_output=True, text=True)


def check(prompts: str, native: dict[str, object], cpu: str) -> str:
    """What went wrong on such a CPU; empty if nothing did."""
    began = time.monotonic()
    ran = emulated(cpu, "-m", "tests.arm64.greedy", prompts)
    if ran.returncode:
        return f"{cpu}: the bundled model did not run\n{ran.stderr[-3000:]}"
    found = json.loads(ran.stdout)
    if found["tokens"] != native["tokens"]:
        return f"{cpu}: the model says {found['tokens']}, on this machine {native['tokens']}"
    if (chosen := set(found["features"]) & CPUS["max"]) != CPUS[cpu]:
        return f"{cpu}: chose {chosen} instead of {CPUS[cpu]}"
    bits = "the same bits" if found["logits"] == native["logits"] else "other last bits of the logits"
    print(f"{cpu}: the bundled model says the same, with {bits} ({time.monotonic() - began:.0f} s)", flush=True)
    files = [str(KERNELS / name) if name.endswith(".py") else name for name in CHOSEN[cpu]]
    ran = emulated(cpu, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files)
    if ran.returncode:
        return f"{cpu}: kernel tests failed\n{ran.stdout[-5000:]}{ran.stderr[-1000:]}"
    print(f"{cpu}: {ran.stdout.splitlines()[-1]}", flush=True)
    return ""


def main() -> None:
    (FOLDER / "home").mkdir(mode=0o700, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    prompts = json.dumps([tokenizer.encode(text).ids for text in TEXTS])
    command = [sys.executable, "-m", "tests.arm64.greedy", prompts]
    native = json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
    cpus = sys.argv[1:] or list(CPUS)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        faults = list(filter(None, threads.map(partial(check, prompts, native), cpus)))
    sys.exit("\n\n".join(faults) if faults else 0)


main()
