"""What the compiler makes of kernels is compared with what it made before; the docs show what that was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from triolet.loadtest.device import kernel_counts
from triolet.loadtest.device.compile_kernels import main
from triolet.loadtest.device.kernel_counts import PAGE, keep, kind_of, known_counts, most_of_kinds, page, worse

ROOT = Path(__file__).parents[3]
ROW: dict[str, Any] = {
    "kernel": "decode_kernel",
    "capability": 90,
    "constants": {"HEAD_DIM": "128", "ROPE_DIM": "0", "WINDOWED": "True", "SOFT_CAPPED": "False", "HEADS": "32"},
    "types": {"keys": "tensordesc<bf16[64, 128]>", "scales": "constexpr"},
    "registers": 100,
    "spills": 0,
    "shared": 1000,
    "stages": 3,
    "loops": [200, 300],
}  # fmt: skip


def test_a_kind_is_a_kernel_with_its_tile() -> None:
    assert kind_of(ROW) == "decode_kernel sm_90 bf16 HEAD_DIM=128 WINDOWED"
    constants = {"BLOCK_M": "16", "GROUPS": "2"}
    row = ROW | {"kernel": "w4_gemm_kernel", "constants": constants, "types": {"w": "*u8", "offsets": "*bf16"}}
    assert kind_of(row) == "w4_gemm_kernel sm_90 u8 GROUPS=2 BLOCK_M=16 offsets=bf16"


def test_the_most_of_all_forms_is_known() -> None:
    known = most_of_kinds([ROW, ROW | {"registers": 90, "loops": [210, 290], "stages": 2}, ROW | {"loops": []}])
    assert known == {kind_of(ROW): {"registers": 100, "spills": 0, "shared": 1000, "stages": 2, "loops": [210, 300]}}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, []),
        ({"registers": 105, "loops": [210, 315], "stages": 4}, []),
        ({"registers": 106}, ["106 registers, 100 were known"]),
        ({"spills": 1}, ["1 spills, 0 were known"]),
        ({"shared": 1051}, ["1051 shared, 1000 were known"]),
        ({"loops": [200, 316]}, ["316 instructions of a loop, 300 were known"]),
        ({"loops": [200]}, ["1 loops with products, 2 were known"]),
        ({"stages": 2}, ["2 stages, 3 were known"]),
        ({"capability": 80}, ["decode_kernel sm_80 bf16 HEAD_DIM=128 WINDOWED is not in kernel_counts.json"]),
        ({"loops": []}, ["0 loops with products, 2 were known"]),
        ({"loops": [], "kernel": "norm_kernel"}, []),
        ({"loops": None, "registers": 900}, []),
    ],
)
def test_what_is_more_than_a_twentieth_worse_is_named(change: dict[str, Any], found: list[str]) -> None:
    told = worse(ROW | change, most_of_kinds([ROW]), every=True)
    assert [line.partition(": add")[0] for line in told] == found


def test_a_sample_may_hold_kinds_that_are_not_known() -> None:
    assert worse(ROW, {}, every=False) == []


def test_kinds_are_kept_by_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernel_counts, "FILE", tmp_path / "counts.json")
    assert known_counts("3.9.0") == {}
    keep("3.9.0", [ROW, ROW | {"capability": 80}])
    keep("3.6.0", [ROW])
    keep("3.9.0", [ROW | {"registers": 50}])
    assert known_counts("3.9.0") == most_of_kinds([ROW | {"registers": 50}])
    assert known_counts("3.6.0") == most_of_kinds([ROW])
    row = next(line for line in page().splitlines() if line.startswith(f"| `{kind_of(ROW)}`"))
    assert row.split(" | ")[1:] == ["200, 300", "100", "0", "1", "3", "200, 300", "50", "0", "1", "3 |"]


@pytest.mark.parametrize("sample", [["--quick"], ["--capability", "90"]])
def test_a_sample_is_not_kept(
    sample: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["compile_kernels", "--keep", *sample])
    with pytest.raises(SystemExit):
        main()
    assert "--keep needs every form" in capsys.readouterr().err


def test_the_docs_show_what_is_known() -> None:
    assert (ROOT / PAGE).read_text() == page(), f"write it anew: python -m {kernel_counts.__name__} > {PAGE}"
