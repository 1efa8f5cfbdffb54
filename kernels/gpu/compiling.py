"""Compile a Triton kernel ahead of time, without the target GPU, and read the resources of its machine code.

Works with no driver: Triton's wheel carries ptxas and cuobjdump. Registers and spills are not in the compiler's
metadata (they are filled in by loading on a device), so they are read from the cubin.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from .launches import KernelForm

# Bytes of shared memory that one block may use. Of these, GPUs of one major version may run the same form.
SHARED_LIMIT = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448}
WATCHED = re.compile(r"\b(HGMMA|QGMMA|QMMA|IGMMA|HMMA|IMMA|UTMALDG|LDGSTS|USETMAXREG|STL|LDL|LDG|PRMT)\b")
# An instruction of a listing, such as `/*0a10*/ @P0 BRA 0x970 ;`.
INSTRUCTION = re.compile(
    r"/\*(?P<at>[0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?(?P<name>[A-Z][A-Z0-9_]*)[^;]*?(?:0x(?P<target>[0-9a-f]+)\s*)?;"
)
STAGED = re.compile(r"ttg\.local_alloc : \(\) -> !ttg\.memdesc<(\d+)x\d+x\d+x")  # in Triton's GPU dialect


@dataclass(frozen=True, slots=True)
class Specialisation:
    """A form on a device, and the requirements that a check applies to its machine code."""

    form: KernelForm
    capability: int  # the target; the oldest of those it serves
    serves: tuple[int, ...]  # GPUs of that major version that launch this form
    uses: tuple[str, ...] = ()  # instructions that must be present
    max_spills: int = 0  # more only with the evidence, beside the row, that it still wins
    avoids: tuple[str, ...] = ()  # instructions that must not be there


@dataclass(frozen=True, slots=True)
class MachineCode:
    """The result of one specialisation on one target."""

    registers: int
    spills: int  # instructions that move a register to local memory or back (local arrays count too)
    shared: int  # bytes
    warps: int  # after warp specialisation
    instructions: Counter[str]  # of WATCHED
    # Instructions of each innermost loop with matrix products, by their places. None: they were not counted.
    loops: tuple[int, ...] | None = None
    stages: int = 0  # buffers that a loop's loads are copied into, one ahead of the other


def faults(specialisation: Specialisation, code: MachineCode) -> list[str]:
    """The requirements of the specialisation that the machine code does not meet."""
    found: list[str] = []
    if code.spills > specialisation.max_spills:
        found.append(f"{code.spills} spill instructions, at most {specialisation.max_spills} are allowed")
    found += [
        f"{code.shared} bytes of shared memory, sm_{device} has {SHARED_LIMIT[device]}"
        for device in specialisation.serves
        if code.shared > SHARED_LIMIT[device]
    ]
    found += [f"{code.instructions[name]} {name}" for name in specialisation.avoids if code.instructions[name]]
    return found + [f"no {name} instruction" for name in specialisation.uses if not code.instructions[name]]


def compiled_kernel(form: KernelForm, target: Any) -> Any:  # Any: Triton's own object, and a target of its own
    """Triton's result for a capability such as 80, or for another target, with every stage in `asm`. Raises Triton's
    errors.
    """
    from triton import compiler
    from triton.backends.compiler import GPUTarget

    aligned = {
        (index,): [["tt.divisibility", 16]] for index, (name, _) in enumerate(form.signature) if name in form.aligned
    }
    source = compiler.ASTSource(fn=form.kernel, signature=form.types, constexprs=form.values, attrs=aligned)
    place = GPUTarget("cuda", target, 32) if isinstance(target, int) else target
    options = {"num_warps": form.num_warps, "num_stages": form.num_stages, "enable_fp_fusion": form.fuses}
    return cast("Any", compiler.compile(source, target=place, options=options))


def compile_for(form: KernelForm, capability: int, *, count_always: bool = True) -> MachineCode:
    """Compile for a capability and read the machine code. Raises Triton's errors if it does not compile.

    Without `count_always`, a kernel that has no local memory, so none to spill to, is not disassembled, and its
    `instructions` are empty.
    """
    compiled = compiled_kernel(form, capability)
    cubin: bytes = compiled.asm["cubin"]
    usage = _cuobjdump("--dump-resource-usage", cubin)
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", usage)
    assert found is not None, usage
    counted = count_always or found[2] != "0" or found[3] != "0"
    watched, loops = read_machine_code(cubin) if counted else (Counter[str](), None)
    return MachineCode(
        registers=int(found[1]),
        spills=watched["STL"] + watched["LDL"],
        shared=int(compiled.metadata.shared),
        warps=int(compiled.metadata.num_warps),
        instructions=watched,
        loops=loops,
        stages=max(map(int, STAGED.findall(compiled.asm["ttgir"])), default=0),
    )


def read_machine_code(cubin: bytes) -> tuple[Counter[str], tuple[int, ...]]:
    """How often each of WATCHED is in it, and its `product_loops`.

    Kept in Triton's cache: disassembling takes ten times as long as all else does for a kernel that is there already.
    """
    import triton
    from triton.runtime import cache

    key = hashlib.sha256(f"{triton.__version__} {WATCHED.pattern} {INSTRUCTION.pattern} ".encode() + cubin).hexdigest()
    place, name = cache.get_cache_manager(key), "machine_code.json"
    if (known := place.get_file(name)) is not None:
        watched, loops = json.loads(Path(known).read_bytes())
        return Counter(watched), tuple(loops)
    text = _cuobjdump("--dump-sass", cubin)
    found = Counter(WATCHED.findall(text)), product_loops(text)
    place.put(json.dumps(found), name)
    return found


def product_loops(sass: str) -> tuple[int, ...]:
    """Of disassembled code: how many instructions each innermost loop has that holds a tensor core's instruction."""
    code = [(int(found["at"], 16), found["name"], found["target"]) for found in INSTRUCTION.finditer(sass)]
    loops = {(int(target, 16), at) for at, name, target in code if name == "BRA" and target and int(target, 16) < at}
    innermost = [
        (begin, end)
        for begin, end in sorted(loops)
        if not any((begin, end) != inner and begin <= inner[0] and inner[1] <= end for inner in loops)
    ]
    bodies = [[name for at, name, _ in code if begin <= at <= end] for begin, end in innermost]
    return tuple(len(names) for names in bodies if any(name.endswith("MMA") for name in names))


def _cuobjdump(option: str, cubin: bytes) -> str:
    import triton

    program = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([program, option, file.name], capture_output=True, text=True, check=True).stdout
