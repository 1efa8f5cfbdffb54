"""Corrects Bochs 3.0 where it does other than Intel's manual says, and adds what Linux asks for before it allows AMX.

python tests/amx/correct_bochs.py FOLDER      with its source
"""

import sys
from pathlib import Path

TILE_DATA = "BX_XCR0_XTILEDATA_MASK"
DISABLED = f"(BX_CPU_THIS_PTR msr.ia32_xfd & {TILE_DATA}) != 0"

TILE, ROWS = "BX_CPU_THIS_PTR amx->tilecfg[n]", "for (unsigned row=0; row < "
SIGNED = {"DPBDSS": "xy", "DPBDSU": "x", "DPBDUS": "y"}  # products of bytes: the operands that are signed
REPLACED = {
    # The upper half of a conversion of two vectors read behind the end of one.
    "cpu/avx/avx512_bf16.cc": [
        (
            "n++)\n    dst.vmm16u(n) = convert_ne_fp32_to_bfloat16(op1.vmm32u(n))",
            "n++)\n    dst.vmm16u(n) = convert_ne_fp32_to_bfloat16(op1.vmm32u(n - DWORD_ELEMENTS(len)))",
        )
    ],
    # A thread's state: rows and bytes of a row were mixed up, and only half of each tile's rows were saved.
    "cpu/xsave.cc": [
        ("vmm16u(8+n)    = BX_CPU_THIS_PTR amx->tilecfg[n].rows", f"vmm16u(8+n)    = {TILE}.bytes_per_row"),
        ("vmmubyte(48+n) = BX_CPU_THIS_PTR amx->tilecfg[n].bytes_per_row", f"vmmubyte(48+n) = {TILE}.rows"),
        (f"{ROWS}BX_TILE_REGISTERS; row++) {{\n      write", f"{ROWS}BX_TILE_MAX_ROWS; row++) {{\n      write"),
        (f"{ROWS}BX_TILE_REGISTERS; row++) {{\n      read", f"{ROWS}BX_TILE_MAX_ROWS; row++) {{\n      read"),
    ],
    # Extended feature disable (XFD): the first use of tiles is an exception, on which Linux makes room for them.
    "cpu/cpu.h": [("  Bit64u ia32_xss;\n", "  Bit64u ia32_xss, ia32_xfd, ia32_xfd_err;\n")],
    "cpu/init.cc": [
        ("msr.ia32_xss = 0;", "msr.ia32_xss = BX_CPU_THIS_PTR msr.ia32_xfd = BX_CPU_THIS_PTR msr.ia32_xfd_err = 0;")
    ],
    "cpu/msr.h": [("  BX_MSR_XSS = ", "  BX_MSR_XFD = 0x1C4, BX_MSR_XFD_ERR = 0x1C5,\n  BX_MSR_XSS = ")],
    "cpu/msr.cc": [
        (
            "  msr_desc[BX_MSR_XSS] =",
            '  msr_desc[BX_MSR_XFD] = new MSR_Descriptor("MSR_IA32_XFD", BX_ISA_AMX);\n'
            '  msr_desc[BX_MSR_XFD_ERR] = new MSR_Descriptor("MSR_IA32_XFD_ERR", BX_ISA_AMX);\n'
            "  msr_desc[BX_MSR_XSS] =",
        ),
        (
            "    case BX_MSR_XSS:\n      if",
            "    case BX_MSR_XFD: val64 = BX_CPU_THIS_PTR msr.ia32_xfd; break;\n"
            "    case BX_MSR_XFD_ERR: val64 = BX_CPU_THIS_PTR msr.ia32_xfd_err; break;\n"
            "    case BX_MSR_XSS:\n      if",
        ),
        (
            "    case BX_MSR_XSS:\n      {",
            "    case BX_MSR_XFD: BX_CPU_THIS_PTR msr.ia32_xfd = val_64; handleAvxModeChange(); break;\n"
            "    case BX_MSR_XFD_ERR: BX_CPU_THIS_PTR msr.ia32_xfd_err = val_64; break;\n"
            "    case BX_MSR_XSS:\n      {",
        ),
    ],
    "cpu/cpuid.cc": [
        (
            "      leaf->eax |= (1<<3);\n\n    // EBX",
            "      leaf->eax |= (1<<3) | is_cpu_extension_supported(BX_ISA_AMX) << 4;\n\n    // EBX",
        ),
        (
            "      leaf->ecx = (cpu->ia32_xss_suppmask",
            "      leaf->ecx = (subfunction == xcr0_t::BX_XCR0_XTILEDATA_BIT) << 2 | (cpu->ia32_xss_suppmask",
        ),
    ],
    "cpu/proc_ctrl.cc": [
        (f"{TILE_DATA})) != 0)\n    clear_amx_ok", f"{TILE_DATA})) != 0 || {DISABLED})\n    clear_amx_ok"),
        (
            f"BX_XCR0_XTILECFG_MASK | {TILE_DATA}))\n    exception(BX_UD_EXCEPTION, 0);\n",
            f"BX_XCR0_XTILECFG_MASK | {TILE_DATA}))\n    exception(BX_UD_EXCEPTION, 0);\n\n"
            f"  if ({DISABLED}) {{\n    BX_CPU_THIS_PTR msr.ia32_xfd_err |= {TILE_DATA};\n"
            "    exception(BX_NM_EXCEPTION, 0);\n  }\n",
        ),
    ],
}


def main() -> None:
    folder = Path(sys.argv[1])
    for name, changes in REPLACED.items():
        text = (folder / name).read_text("latin-1")
        for old, new in changes:
            if text.count(old) != 1:
                sys.exit(f"{name} has {text.count(old)} times what should be replaced: {old!r}")
            text = text.replace(old, new)
        (folder / name).write_text(text, "latin-1")
    products = folder / "cpu/avx/amx.cc"
    parts = products.read_text("latin-1").split("BX_CPP_INLINE Bit32u ")
    for place, part in enumerate(parts):
        for operand in SIGNED.get(part.split("(")[0], ""):
            line = next(line for line in part.splitlines() if f"{operand}byte[4]" in line)
            parts[place] = parts[place].replace(line, line.replace("Bit8u", "Bit8s"))
    products.write_text("BX_CPP_INLINE Bit32u ".join(parts), "latin-1")


main()
