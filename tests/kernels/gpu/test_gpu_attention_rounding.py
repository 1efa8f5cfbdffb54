"""Prefill must round alike in its loop over whole pages and in masked ones, or bits would tell how a prompt was cut.

The interpreter fuses nothing, so this reads what the compiler made: every weight's exponent comes from a multiply-add
that the kernel wrote out. Compiled in a process of its own: this one interprets.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

COUNT_EXPONENTS = r"""
import collections, json, re, sys
from contextlib import ExitStack
from triolet.kernels.gpu.compiling import compiled_kernel
from triolet.kernels.gpu.launches import recording
from triolet.kernels.paged_attention import gpu_prefill
from triolet.loadtest.device import compile_unreached
from triolet.loadtest.device.gpu_check import fault

forms = []
with ExitStack() as stack, recording(forms.append):
    for edit in json.loads(sys.argv[1]):
        stack.enter_context(fault(gpu_prefill, *edit))
    compile_unreached.attend(compile_unreached.Attention(128), 90, 132)
    (form,) = (form for form in forms if form.kernel is gpu_prefill.prefill_kernel)
    ptx = compiled_kernel(form, 90).asm["ptx"]
made, exponents = {}, collections.Counter()
for line in ptx.splitlines():
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


def exponents(edits: list[tuple[str, str, str]]) -> dict[str, int]:
    """The operations whose results are exponents, and how many."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COUNT_EXPONENTS, json.dumps(edits)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_every_weight_is_rounded_once() -> None:
    assert exponents([]) == {"fma": WEIGHTS, "sub": DECAYS}


def test_one_loop_alone_would_be_fused() -> None:
    assert exponents(LEFT_TO_THE_COMPILER) == {"fma": WEIGHTS // 2, "sub": WEIGHTS // 2 + DECAYS}
