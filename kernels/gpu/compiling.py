"""Compile a Triton kernel ahead of time, for a GPU that need not be there, and read what the machine code uses.

Works with no driver: Triton's wheel carries ptxas and cuobjdump. Registers and spills are not in the compiler's
metadata (they are filled in by loading on a device), so they are read from the cubin.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Bytes of shared memory that one block may use. Of these, GPUs of one major version may run the same form.
SHARED_LIMIT = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448}
WATCHED = re.compile(r"\b(HGMMA|QGMMA|QMMA|IGMMA|HMMA|IMMA|UTMALDG|LDGSTS|USETMAXREG|STL|LDL|LDG|PRMT)\b")


@dataclass(frozen=True, slots=True)
class Specialisation:
    """One compiled form of a kernel: the types of its arguments, its constants and launch options.

    `signature` maps every argument to a Triton type: "*bf16", "i32", "fp32", "tensordesc<bf16[128,64]>" or "constexpr".
    Pointers and i32 arguments are taken to be divisible by 16, as the launcher's are, but for those in `unaligned`.
    The last four fields are what a compile check holds the machine code to.
    """

    kernel: Any  # Any: what triton.jit returns
    signature: Mapping[str, str]
    constants: Mapping[str, Any]  # Any: whatever a constexpr may be
    num_warps: int
    num_stages: int
    unaligned: frozenset[str] = field(default_factory=frozenset)
    fuses: bool = True  # may a product and a sum become one rounding
    capabilities: tuple[int, ...] = (80, 90)  # compiled for these
    uses: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # instructions that must be there, by capability
    max_spills: int = 0  # more only with the evidence, beside the row, that it still wins
    serves: tuple[int, ...] = tuple(SHARED_LIMIT)  # GPUs whose launch table chooses this form

    @property
    def name(self) -> str:
        return str(self.kernel.fn.__name__)


@dataclass(frozen=True, slots=True)
class MachineCode:
    """What one specialisation became on one target."""

    registers: int
    spills: int  # instructions that move a register to local memory or back (local arrays count too)
    shared: int  # bytes
    warps: int  # after warp specialisation
    instructions: Counter[str]  # of WATCHED


def faults(specialisation: Specialisation, capability: int, code: MachineCode) -> list[str]:
    """Where the machine code falls short of what the specialisation promises."""
    found: list[str] = []
    if code.spills > specialisation.max_spills:
        found.append(f"{code.spills} spill instructions, at most {specialisation.max_spills} are allowed")
    served = [device for device in specialisation.serves if device // 10 == capability // 10]
    found += [
        f"{code.shared} bytes of shared memory, sm_{device} has {SHARED_LIMIT[device]}"
        for device in served
        if code.shared > SHARED_LIMIT[device]
    ]
    meant = specialisation.uses.get(capability, ())
    return found + [f"no {instruction} instruction" for instruction in meant if not code.instructions[instruction]]


def compiled_kernel(specialisation: Specialisation, capability: int) -> Any:  # Any: Triton's own object
    """What Triton makes of it for a capability such as 80: every stage is in `asm`. Raises what Triton raises."""
    from triton import compile as compile_kernel
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, (name, kind) in enumerate(specialisation.signature.items())
        if (kind.startswith("*") or kind == "i32") and name not in specialisation.unaligned
    }
    source = ASTSource(
        fn=specialisation.kernel,
        signature=dict(specialisation.signature),
        constexprs=dict(specialisation.constants),
        attrs=aligned,
    )
    options = {
        "num_warps": specialisation.num_warps,
        "num_stages": specialisation.num_stages,
        "enable_fp_fusion": specialisation.fuses,
    }
    return compile_kernel(source, target=GPUTarget("cuda", capability, 32), options=options)


def compile_for(specialisation: Specialisation, capability: int) -> MachineCode:
    """Compile for a capability and read the machine code. Raises what Triton raises where it does not compile."""
    compiled = compiled_kernel(specialisation, capability)
    usage, assembly = _disassembled(compiled.asm["cubin"])
    watched = Counter(WATCHED.findall(assembly))
    found = re.search(r"REG:(\d+)", usage)
    assert found is not None
    return MachineCode(
        registers=int(found[1]),
        spills=watched["STL"] + watched["LDL"],
        shared=int(compiled.metadata.shared),
        warps=int(compiled.metadata.num_warps),
        instructions=watched,
    )


def _disassembled(cubin: bytes) -> tuple[str, str]:
    """Resource usage and assembly, as cuobjdump prints them."""
    import triton

    program = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    handle, name = tempfile.mkstemp(suffix=".cubin")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(cubin)
        return _output(program, "--dump-resource-usage", name), _output(program, "--dump-sass", name)
    finally:
        os.unlink(name)


def _output(program: Path, *arguments: str) -> str:
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=True).stdout
