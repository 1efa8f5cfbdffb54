"""AArch64 as seen from here: which features are found, and what LLVM makes of products. `make test-arm64` runs them."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from llvmlite import binding as llvm
from llvmlite import ir

from triolet.kernels.gemm.tile import _emit_rows
from triolet.kernels.gemm.tile_int4 import _emit_rows as emit_int4
from triolet.kernels.simd import target
from triolet.kernels.simd.arm_features import completed

ROWS, QUARTERS, UNROLLED = 4, 4, 8
QUADS = 8  # of a group of 32 inputs
NEON = frozenset({"neon"})


def test_the_kernel_completes_the_list_of_features() -> None:
    """Words with all of Armv8.2, then with i8mm, then with what AArch64 has always."""
    first = 0x10FFFF | 1 << 20
    assert completed("+neon,-sve,+lse", first, 0) == "-sve,+neon,+lse,+fullfp16,+dotprod"
    assert completed("", first, 1 << 13).endswith("+dotprod,+i8mm")
    assert completed("+neon,-sve", 1 << 1, 0) == "-sve,+neon"


def assembly(features: frozenset[str], weight_format: str, rows: int = ROWS) -> str:
    """A tile of so many rows, compiled for such a CPU."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = ir.Module("tile")
    module.triple = "aarch64-linux-gnu"
    int4 = weight_format == "int4"
    tile = emit_int4(module, range(rows, rows + 1)) if int4 else _emit_rows(module, weight_format, rows)
    tile.linkage = "external"
    flags = ",".join(f"+{name}" for name in sorted(features))
    machine = llvm.Target.from_triple(module.triple).create_target_machine(cpu="generic", features=flags, opt=3)
    parsed = llvm.parse_assembly(str(module))
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(parsed, passes)
    return str(machine.emit_assembly(parsed))


def inner_loop(code: str) -> str:
    """The longest block that jumps back to its own start."""
    blocks = re.split(r"^(\.L\w+):", code, flags=re.MULTILINE)
    pairs = zip(blocks[1::2], blocks[2::2], strict=True)
    return max((block for label, block in pairs if re.search(rf"\tb\.\w+\t{label}\b", block)), key=len)


@pytest.mark.parametrize(
    ("more", "instructions", "each"),
    [({"dotprod"}, {"sdot"}, 1), (set[str](), {"saddlp", "sadalp"}, 2)],
)
def test_products_of_bytes_take_the_best_instructions(
    more: set[str], instructions: set[str], each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "features", lambda: NEON | more)
    code = assembly(NEON | more, "int8")
    found = re.findall(r"^\t(usdot|sdot|saddlp|sadalp)\t", code, re.MULTILINE)
    fewest = each * ROWS * QUARTERS * UNROLLED
    assert set(found) <= instructions
    assert fewest <= len(found) <= fewest + each * QUARTERS  # with those of the wide quads
    assert set(re.findall(r"^\tbl\t(\S+)", code, re.MULTILINE)) == {"triolet_gemm_wide"}


@pytest.mark.parametrize(
    ("weight_format", "features", "one", "two"),
    [("int8", NEON | {"dotprod", "i8mm"}, "usdot", "usmmla"), ("bfloat16", NEON | {"bf16"}, "bfdot", "bfmmla")],
)
def test_two_rows_are_multiplied_at_once(
    weight_format: str, features: frozenset[str], one: str, two: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row alone has no partner; three are two pairs. No sum has to leave its register."""
    monkeypatch.setattr(target, "features", lambda: features)
    for rows, (alone, at_once) in {1: (1, 0), 2: (0, 1), 3: (0, 2), 4: (0, 2)}.items():
        loop = inner_loop(assembly(features, weight_format, rows))
        found = Counter(re.findall(r"^\t([a-z]\w*)\t", loop, re.MULTILINE))
        assert (found[one], found[two]) == (alone * QUARTERS * UNROLLED, at_once * QUARTERS * UNROLLED)
        assert found["zip1"] + found["zip2"] == (QUARTERS * UNROLLED if at_once else 0)
        assert found["fmla"] == found["sdot"] == 0
        assert "[sp" not in loop


def test_four_bits_are_multiplied_by_two_rows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interleaved before they are unpacked: that takes half as many instructions. Words of rows are loaded by twos."""
    features = NEON | {"dotprod", "i8mm"}
    monkeypatch.setattr(target, "features", lambda: features)
    loop = inner_loop(assembly(features, "int4"))
    found = Counter(re.findall(r"^\t([a-z]\w*)\t", loop, re.MULTILINE))
    assert (found["usdot"], found["usmmla"]) == (0, ROWS // 2 * QUARTERS * QUADS)
    assert found["zip1"] + found["zip2"] == QUARTERS * QUADS // 2
    assert found["ld1"] == ROWS // 2 * QUADS // 2


def test_floats_are_multiplied_and_added_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "features", lambda: NEON)
    code = assembly(NEON, "float32")
    assert len(re.findall(r"^\tfmla\t", code, re.MULTILINE)) == ROWS * QUARTERS * UNROLLED
    assert not re.search(r"^\tbl\t", code, re.MULTILINE)  # libm's, a lane at a time
