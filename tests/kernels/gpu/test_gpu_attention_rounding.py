"""Prefill must round alike in its loop over whole pages and in masked ones, or bits would tell how a prompt was cut.

The interpreter fuses nothing, so this reads what the compiler made: every weight's exponent comes from a multiply-add
that the kernel wrote out. Compiled in a process of its own: this one interprets.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

COUNT_EXPONENTS = r"""
import collections, json, re, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from mutants import mutated
from triolet.kernels.gpu.compiling import compiled_kernel
from triolet.kernels.gpu.launches import recording
from triolet.kernels.paged_attention import gpu_launch, gpu_prefill
from triolet.loadtest.device import compile_unreached

for name, old, new in json.loads(sys.argv[3]):
    setattr(gpu_prefill, name, mutated(getattr(gpu_prefill, name), old, new, Path(sys.argv[2])))
setattr(gpu_launch, "prefill_kernel", gpu_prefill.prefill_kernel)
forms = []
with recording(forms.append):
    compile_unreached.attend(compile_unreached.Attention(128), 90, 132)
(form,) = (form for form in forms if form.kernel is gpu_prefill.prefill_kernel)
made, exponents = {}, collections.Counter()
for line in compiled_kernel(form, 90).asm["ptx"].splitlines():
    if found := re.match(r"\s*([a-z0-9_.]+)\s+(%[a-z]+[0-9]+),\s*(.*);", line):
        operation, result, operands = found.groups()
        if operation.startswith("ex2."):
            exponents[made[operands].split(".")[0]] += 1
        made[result] = operation
print(json.dumps(exponents))
"""
WEIGHTS = 2 * 128 * 64 // 256  # of a thread, in two loops: rows times keys of a page over 8 warps
DECAYS = 2 * 2


# As one would write it: scores times their factor, then the mask, then minus the maximum.
LEFT_TO_THE_COMPILER = [
    ("page_scores", "    return scores", "    return scores * factor"),
    ("absorb", "tl.fma(scores, factor, -raised[:, None])", "scores - raised[:, None]"),
]


def exponents(folder: Path, edits: list[tuple[str, str, str]]) -> dict[str, int]:
    """The operations whose results are exponents, and how many."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COUNT_EXPONENTS, str(Path(__file__).parent), str(folder), json.dumps(edits)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_every_weight_is_rounded_once(tmp_path: Path) -> None:
    assert exponents(tmp_path, []) == {"fma": WEIGHTS, "sub": DECAYS}


def test_one_loop_alone_would_be_fused(tmp_path: Path) -> None:
    assert exponents(tmp_path, LEFT_TO_THE_COMPILER) == {"fma": WEIGHTS // 2, "sub": WEIGHTS // 2 + DECAYS}
