"""Every launch that serving may make compiles for sm_80 and sm_90, within the limits that its table row states; what is
launched on 8.6 and 8.9 fits into their smaller shared memory, and is compiled for them where their form is their own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from triolet.kernels.gpu.compiling import SHARED_LIMIT, MachineCode, Specialisation, faults

from .conftest import Compiled

KERNEL = SimpleNamespace(fn=SimpleNamespace(__name__="kernel"))
ROW = Specialisation(KERNEL, {}, {}, num_warps=4, num_stages=3, uses={90: ("HGMMA",)})
CODE = MachineCode(registers=90, spills=0, shared=1000, warps=4, instructions=Counter(HGMMA=2, HMMA=4))


def test_every_row_compiles_within_its_limits(compiled: list[Compiled]) -> None:
    wrong = [(row["operation"], row["kernel"], row["capability"], row["constants"], row["faults"]) for row in compiled]
    assert [entry for entry in wrong if entry[-1]] == []
    assert {row["capability"] for row in compiled} == {80, 86, 89, 90}


def test_a_sound_row_has_no_faults() -> None:
    assert faults(ROW, 90, CODE) == []
    assert faults(ROW, 80, replace(CODE, instructions=Counter())) == []


def test_a_form_must_fit_every_device_that_it_serves() -> None:
    large = replace(CODE, shared=SHARED_LIMIT[86] + 1)
    assert [fault.split("sm_")[1][:2] for fault in faults(ROW, 80, large)] == ["86", "89"]
    assert faults(replace(ROW, serves=(80,)), 80, large) == []
    assert faults(ROW, 90, large) == []


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (replace(CODE, spills=1), "spill"),
        (replace(CODE, shared=SHARED_LIMIT[90] + 1), "shared memory"),
        (replace(CODE, instructions=Counter(HMMA=4)), "no HGMMA"),
    ],
)
def test_a_planted_fault_is_named(code: MachineCode, fault: str) -> None:
    (found,) = faults(ROW, 90, code)
    assert fault in found
