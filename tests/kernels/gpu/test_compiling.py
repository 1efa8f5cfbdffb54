"""Every launch of the catalogue compiles for sm_80 and sm_90, within the limits that its table row states; what is
launched on 8.6 and 8.9 fits into their smaller shared memory, and is compiled for them where their form is their own.
Two forms compile for AMD's gfx942.
Each run draws a form of every tile of a product and two of every other kernel; `make kernels` compiles all.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from triolet.kernels.gpu import compiling
from triolet.kernels.gpu.compiling import (
    SHARED_LIMIT,
    MachineCode,
    Specialisation,
    faults,
    product_loops,
    read_machine_code,
)
from triolet.kernels.gpu.launches import KernelForm
from triolet.loadtest.device.compile_amd import GFX942, for_amd, in_ptx, summary

from .conftest import Compiled

FORM = KernelForm(None, "kernel", (), (), frozenset(), num_warps=4, num_stages=3, fuses=True)
ROW = Specialisation(FORM, 90, (90,), uses=("HGMMA",), avoids=("QMMA",))
AMPERE = Specialisation(FORM, 80, (80, 86, 89))
CODE = MachineCode(registers=90, spills=0, shared=1000, warps=4, instructions=Counter(HGMMA=2, HMMA=4))
KERNELS = Path(compiling.__file__).parent.parent


def test_every_form_compiles_within_its_limits(compiled: list[Compiled]) -> None:
    wrong = [(row["operation"], row["kernel"], row["capability"], row["constants"], row["faults"]) for row in compiled]
    assert [entry for entry in wrong if entry[-1]] == []
    assert {80, 89, 90, GFX942} <= {row["capability"] for row in compiled} <= {80, 86, 89, 90, GFX942}


def test_every_kernel_is_compiled(compiled: list[Compiled]) -> None:
    written = {
        (path.parent.name, name)
        for path in KERNELS.rglob("gpu*.py")
        for name in re.findall(r"^def (\w+_kernel)\(", path.read_text(), re.M)
    }
    assert len(written) > 20
    assert {(row["operation"], row["kernel"]) for row in compiled} == written


def test_a_sound_row_has_no_faults() -> None:
    assert faults(ROW, CODE) == []
    assert faults(AMPERE, replace(CODE, instructions=Counter())) == []


def test_a_form_must_fit_every_device_that_it_serves() -> None:
    large = replace(CODE, shared=SHARED_LIMIT[86] + 1)
    assert [fault.split("sm_")[1][:2] for fault in faults(AMPERE, large)] == ["86", "89"]
    assert faults(replace(AMPERE, serves=(80,)), large) == []
    assert faults(ROW, large) == []


def test_what_is_in_ptx_is_left_out_for_amd() -> None:
    name = "triolet.kernels.gemm.gpu_x.{}".format
    plain = replace(AMPERE, form=replace(FORM, name=name("wide_gemm_kernel")), uses=("HMMA",))
    packed = replace(AMPERE, form=replace(FORM, name=name("w4_gemm_kernel")))
    codes = replace(AMPERE, form=replace(FORM, name=name("decode_kernel"), constants=(("CODE", "int8"),)))
    (one,) = for_amd([plain, packed, codes, replace(plain, capability=90), replace(plain, capability=86)])
    assert (one.form, one.capability, one.uses) == (plain.form, GFX942, ("MFMA",))
    assert [bool(in_ptx(other.form)) for other in (plain, packed, codes)] == [False, True, True]
    row = {"kernel": "wide_gemm_kernel", "capability": GFX942, "shared": 65_537}
    assert summary([row], [plain, packed, codes]) == [
        "gfx942: 1 kinds of the forms of sm_80 compiled, nothing more. Left out:",
        "  decode_kernel: unpacks an 8-bit cache in PTX (1 forms)",
        "  w4_gemm_kernel: unpacks weights in PTX (1 forms)",
        "  wide_gemm_kernel: compiles, but takes more than the 64 KB of a block there (1 forms)",
    ]
    assert summary([], [packed]) == []


def test_files_with_assembly_are_known() -> None:
    """The kernels that use one more would have to be named in compile_amd.py."""
    holders = {
        path.relative_to(KERNELS).as_posix()
        for path in KERNELS.rglob("*.py")
        if "tl.inline_asm_elementwise(" in path.read_text()
    }
    assert holders == {"gemm/gpu_fragment.py", "gpu/prefetch.py", "paged_attention/gpu_codes.py"}


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (replace(CODE, spills=1), "spill"),
        (replace(CODE, shared=SHARED_LIMIT[90] + 1), "shared memory"),
        (replace(CODE, instructions=Counter(HMMA=4)), "no HGMMA"),
        (replace(CODE, instructions=Counter(HGMMA=2, QMMA=1)), "1 QMMA"),  # as float32 would have in TF32
    ],
)
def test_a_planted_fault_is_named(code: MachineCode, fault: str) -> None:
    (found,) = faults(ROW, code)
    assert fault in found


def test_the_same_machine_code_is_disassembled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[bytes] = []

    def disassemble(option: str, cubin: bytes) -> str:
        asked.append(cubin)
        return " HMMA.16816 R0; HMMA.16816 R4; STL [R1]; IADD R2" if cubin == b"one" else ""

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiling, "_cuobjdump", disassemble)
    for _ in range(2):
        assert read_machine_code(b"one") == (Counter(HMMA=2, STL=1), ())
        assert read_machine_code(b"other") == (Counter(), ())
    assert asked == [b"one", b"other"]
    monkeypatch.setattr(compiling, "WATCHED", re.compile(r"\bIADD\b"))
    assert read_machine_code(b"one") == (Counter(IADD=1), ())


def test_loops_of_products_are_counted() -> None:
    code = [
        "IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28]", "LDG.E R2, [R4.64+0x10]", "@!P0 BRA 0x10",  # a loop without products
        "HMMA.16816.F32.BF16 R8, R4, R2, R8", "@P1 LDGSTS.E [R3], [R6.64]", "@P1 BRA 0x30",
        "FADD R1, R2, R3", "HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], RZ", "@!UP1 BRA 0x70", "@P2 BRA 0x10",
        "HMMA.16816.F32.BF16 R8, R4, R2, R8", "BRA 0xb0", "EXIT",
    ]  # fmt: skip
    listing = "\n".join(f"        /*{16 * at:04x}*/                   {line} ;" for at, line in enumerate(code))
    assert product_loops(listing) == (3, 2)
