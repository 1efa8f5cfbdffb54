"""What a run begins with: it ends early where a kernel is wrong, takes its minute, and tells the machine."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from triolet.loadtest.device import gpu_attention as attention
from triolet.loadtest.device import gpu_smoke as smoke
from triolet.loadtest.device.gpu_case import Finding, GpuMachine, Skip, Status, Wrong
from triolet.loadtest.device.gpu_crew import TimedOut, Worker
from triolet.loadtest.device.gpu_journal import Journal
from triolet.loadtest.device.gpu_ragged import Ragged
from triolet.loadtest.device.gpu_run import Times, run_parts

MACHINE = GpuMachine("cpu", 90, "a machine", {"torch": "2"}, multiprocessors=2)
GPU = GpuMachine("cuda", 90, "a machine", {"torch": "2"})
PARTS = ["smoke", "correctness"]


@dataclass
class StandIn:
    """A worker whose every case takes so many seconds of a clock of its own, and is right unless it is named."""

    seconds: float = 1.0
    wrong: str = ""
    now: float = 0.0
    ran: list[str] = field(default_factory=list)

    def ask(self, question: dict[str, Any], seconds: float) -> dict[str, Any]:  # Any: JSON
        if "list" in question:
            shared = ["attention bf16", "gemm w4"]
            return {"names": [f"{question['list']}/{name}" for name in (*shared, f"{question['list']} alone")]}
        if self.seconds > seconds:
            self.now += seconds
            raise TimedOut("did not end")
        self.now += self.seconds
        name: str = question["run"]
        self.ran.append(name)
        status: Status = "wrong" if name == self.wrong else "right"
        return {"finding": Finding(name, status, self.seconds, note="off by 3" if name == self.wrong else "").as_json()}

    def run(self, folder: Path, *parts: str, keep_going: bool = False) -> int:
        times = Times(0.0, 9.0, shared=False, clock=lambda: self.now)
        crew = [cast("Worker", self)]
        return run_parts([*parts] or PARTS, crew, Journal(folder, MACHINE), times, dry=False, keep_going=keep_going)


def test_what_the_smoke_has_checked_is_not_checked_again(tmp_path: Path) -> None:
    worker = StandIn()
    assert worker.run(tmp_path) == 0
    assert worker.ran == [
        "smoke/attention bf16", "smoke/gemm w4", "smoke/smoke alone", "correctness/correctness alone"
    ]  # fmt: skip


def test_a_wrong_kernel_ends_the_run_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    worker = StandIn(wrong="smoke/gemm w4")
    worker.run(tmp_path)
    assert worker.ran == ["smoke/attention bf16", "smoke/gemm w4", "smoke/smoke alone"]
    assert "\nsmoke/gemm w4 wrong (off by 3)\nnothing else is run" in capsys.readouterr().out
    worker.run(tmp_path, keep_going=True)  # the same folder: it goes on
    assert worker.ran[3:] == ["correctness/correctness alone"]


def test_the_smoke_takes_a_minute_and_leaves_the_rest_to_correctness(tmp_path: Path) -> None:
    worker = StandIn(seconds=40.0)
    assert worker.run(tmp_path) == 0
    assert worker.ran == [
        "smoke/attention bf16", "correctness/gemm w4", "correctness/correctness alone"
    ]  # fmt: skip
    assert worker.now == 60 + 2 * 40
    assert StandIn(seconds=40.0).run(tmp_path / "other", "smoke") == 2  # nobody has them


TOLD = """echo '{"finding": {"name": "one", "status": "right"}}'"""


@pytest.mark.parametrize(
    ("does", "error", "said"),
    [
        (f"{TOLD}; echo '========= RACECHECK SUMMARY: 0 hazards displayed'", None, ""),
        (
            "echo '========= RACECHECK SUMMARY: 2 hazards displayed'; exit 9",
            Wrong,
            "decode_kernel: RACECHECK SUMMARY: 2",
        ),
        (f"{TOLD}; echo '========= Error: no such driver'; exit 1", Skip, "does not run here: status 1"),
        ("echo '========= RACECHECK SUMMARY: 0 hazards displayed'", Skip, "does not run here: status 0"),  # no answer
    ],
)
def test_races_are_what_the_tool_says(
    does: str, error: type[Exception] | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool, given = tmp_path / "compute-sanitizer", tmp_path / "given"
    tool.write_text(f'#!/bin/sh\n(echo "$*"; cat) > "{given}"\n{does}\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    if error is None:
        assert smoke.races(GPU) == {"summary": "RACECHECK SUMMARY: 0 hazards displayed"}
    else:
        with pytest.raises(error, match=said):
            smoke.races(GPU)
    options, question = given.read_text().splitlines()
    assert "--tool racecheck --kernel-name kns=decode_kernel --error-exitcode 9" in options
    assert '"smoke/attention bf16"' in question
    with pytest.raises(Skip, match="needs a GPU"):
        smoke.races(MACHINE)


@pytest.mark.parametrize("dry", [True, False])
def test_every_kind_of_kernel_is_in_the_smoke(dry: bool) -> None:
    names = [case.name for case in smoke.smoke(dry)]
    assert len(set(names)) == len(names)
    assert smoke.RACES_IN[1].removeprefix("smoke/") in names
    for file, firsts in smoke.FIRST.items():
        for first in firsts:
            assert any(name.startswith(first) for name in names), (file, first)


def test_versions_are_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, says in (
        ("one", "Cuda tools, release 13.0, V13.0.88"),
        ("two", "two (Debian 12.2.0-14) 12.2.0"),
        ("three", "?"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{says}'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = [smoke.version_of(tool) for tool in ("one", "two", "three", "four")]
    assert found == ["13.0.88", "12.2.0", "unknown", "none"]


def test_other_bits_by_tma_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Ragged.attend

    def attend(batch: Ragged, launch: Any, plan: torch.Tensor, workspace: torch.Tensor) -> torch.Tensor:
        out = plain(batch, launch, plan, workspace)
        if launch.prefill.descriptors:
            out[2, 0, 0] += 0.01 * out[2, 0, 0].abs() + 1e-3  # of the prompt in SMALL
        return out

    assert attention.check_descriptors(attention.TINY, attention.SMALL, MACHINE) == {"rows": 8}
    monkeypatch.setattr(Ragged, "attend", attend)
    with pytest.raises(Wrong, match="attention by TMA differs"):
        attention.check_descriptors(attention.TINY, attention.SMALL, MACHINE)
    with pytest.raises(Skip, match="no TMA"):
        attention.check_descriptors(attention.TINY, attention.SMALL, GpuMachine("cpu", 80, "older", {}))
