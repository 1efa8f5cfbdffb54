"""What of the kernels compiles for AMD's gfx942 (MI300), with no such GPU. It compiles, nothing more: nothing launches
there, and nothing was run or tuned.

Taken are the forms that sm_80 launches: its rows of the launch tables read by pointers and not by TMA, and launches do
not overlap (programmatic dependent launch), for which a GPU has to be NVIDIA's from 9.0 on. What is written in PTX
cannot be compiled, and the compiler of Triton 3.6 ends the process over it, so it is known by name.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from triolet.kernels.gpu.compiling import MachineCode, Specialisation, compiled_kernel
from triolet.kernels.gpu.launches import KernelForm
from triolet.loadtest.device.kernel_counts import kind_of

GFX942: Final = 942  # in the place of a capability
SHARED_OF_GFX942: Final = 65_536  # bytes that one block may use
ANY: Final = 1 << 20  # spills: nobody has looked at them
IN_PTX: Final = {
    "w4_gemm_kernel": "unpacks weights in PTX",
    "w8_gemm_kernel": "unpacks weights in PTX",
    "w4_experts_kernel": "unpacks weights in PTX",
    "w8_experts_kernel": "unpacks weights in PTX",
    "w4_dequantise_kernel": "unpacks weights in PTX",
    "w8_dequantise_kernel": "unpacks weights in PTX",
    "narrow_gemm_kernel": "asks for lines of L2 in PTX",
}


def in_ptx(form: KernelForm) -> str:
    """What of a form is PTX; empty if nothing is."""
    if form.values.get("CODE") is not None:
        return "unpacks an 8-bit cache in PTX"
    return IN_PTX.get(kernel_of(form), "")


def kernel_of(form: KernelForm) -> str:
    return form.name.rpartition(".")[2]


def for_amd(known: Iterable[Specialisation]) -> list[Specialisation]:
    """One form of each kind that sm_80 launches and that holds no PTX."""
    found = dict[str, Specialisation]()
    for one in known:
        if one.capability == 80 and not in_ptx(one.form):
            constants = {name: str(value) for name, value in one.form.constants}
            row = {"kernel": kernel_of(one.form), "capability": GFX942, "types": one.form.types, "constants": constants}
            uses = ("MFMA",) if "HMMA" in one.uses else ()
            amd = replace(one, capability=GFX942, serves=(), uses=uses, avoids=(), max_spills=ANY)
            found.setdefault(kind_of(row), amd)
    return list(found.values())


def sample_of(amd: list[Specialisation]) -> list[Specialisation]:
    """One with matrix products and one without, drawn anew; prefill takes longest."""
    with_products = [one for one in amd if one.uses and kernel_of(one.form) != "prefill_kernel"]
    return [random.choice(some) for some in (with_products, [one for one in amd if not one.uses]) if some]


def compile_for_amd(form: KernelForm) -> MachineCode:
    """Raises Triton's errors if it does not compile."""
    from triton.backends.compiler import GPUTarget

    compiled = compiled_kernel(form, GPUTarget("hip", "gfx942", 64))
    assert "inline_asm" not in compiled.asm["ttir"], "it holds PTX that compile_amd.py does not know"
    code: str = compiled.asm["amdgcn"]

    def count(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", code)
        assert found is not None, name
        return int(found[1])

    return MachineCode(
        registers=count("vgpr_count"),
        spills=count("vgpr_spill_count"),
        shared=int(compiled.metadata.shared),
        warps=int(compiled.metadata.num_warps),
        instructions=Counter(MFMA=len(re.findall(r"\bv_mfma_", code))),
    )


def summary(rows: Iterable[Mapping[str, Any]], known: Iterable[Specialisation]) -> list[str]:
    """Of the forms that sm_80 launches: how many kinds compile, and why others are left out. Any: a JSON object."""
    of_amd = [row for row in rows if row["capability"] == GFX942]
    if not of_amd:
        return []
    left_out = Counter(
        f"{kernel_of(one.form)}: {why}" for one in known if one.capability == 80 and (why := in_ptx(one.form))
    )
    for row in of_amd:
        if row.get("shared", 0) > SHARED_OF_GFX942:
            left_out[f"{row['kernel']}: compiles, but takes more than the 64 KB of a block there"] += 1
    return [
        f"gfx942: {len(of_amd)} kinds of the forms of sm_80 compiled, nothing more. Left out:",
        *(f"  {why} ({count} forms)" for why, count in sorted(left_out.items())),
    ]
