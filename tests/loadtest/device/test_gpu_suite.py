"""The GPU suite on a machine without one: every correctness case interpreted, a cut run resumed, goals judged."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from triolet.loadtest.device.gpu_case import (
    PARTS,
    Figures,
    Finding,
    Goal,
    GpuCase,
    GpuMachine,
    Skip,
    Status,
    SuitePart,
    Wrong,
    begin_until,
    cases_of,
    chosen_parts,
)
from triolet.loadtest.device.gpu_journal import ATTEMPTS, Journal
from triolet.loadtest.device.gpu_report import long_lines, plain_table, row_of, write_report
from triolet.loadtest.device.gpu_run import known_figures
from triolet.loadtest.device.gpu_smoke import FIRST
from triolet.loadtest.device.gpu_suite import main
from triolet.loadtest.device.gpu_triton_cache import pack, unpack
from triolet.loadtest.device.gpu_worker import run_case

SUITE = (sys.executable, "-m", "triolet.loadtest.device.gpu_suite")
MACHINE = GpuMachine("cpu", 90, "a machine", {"torch": "2"})
FINDING = Finding("kernels/one", "floor", 0.5, {"speedup": 1.8, "us": 3.0}, goal=Goal("speedup", 1.7, 3.3))


def test_the_dry_run_checks_every_kernel_and_notices_planted_faults(tmp_path: Path) -> None:
    """Given three times: its time is up before it begins, it is ended from outside, and it goes on to the end."""
    entry = tmp_path / "other/KEY"
    entry.mkdir(parents=True)
    (entry / "one.cubin").write_bytes(b"machine code")
    pack(tmp_path / "other", carried := tmp_path / "carried.tar.gz")
    command = [*SUITE, "--out", str(tmp_path), "--dry-run", "--triton-cache", str(carried)]
    cut = subprocess.run([*command, "--budget", "0.001"], capture_output=True, text=True, check=False)
    assert cut.returncode == 0, cut.stdout[-3000:] + cut.stderr[-3000:]
    assert "give the same command again" in cut.stdout
    command = command[:-2]  # it goes on from what it kept itself
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()  # the first finding
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate()
    assert process.returncode == 1
    assert "ended by a signal" in told
    assert (tmp_path / "table.txt").exists()
    first = Journal(tmp_path, machine_of(tmp_path)).findings
    assert first
    assert "crashed" not in {finding.status for finding in first.values()}
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads((tmp_path / "results.json").read_text())
    by_name = {case["name"]: case for case in result["cases"]}
    parts = {part: [name for name in by_name if name.startswith(f"{part}/")] for part in ("smoke", "correctness")}
    unchecked = {"smoke/this machine": "measured", "smoke/races in decode_kernel": "skipped"}
    assert {name: by_name[name]["status"] for name in unchecked} == unchecked
    checked = {name.partition("/")[2] for names in parts.values() for name in names if name not in unchecked}
    assert {by_name[name]["status"] for names in parts.values() for name in {*names} - unchecked.keys()} == {"right"}
    assert len(checked) == sum(map(len, parts.values())) - len(unchecked)  # nothing was checked twice
    assert re.fullmatch("[0-9a-f]{16}", by_name["smoke/this machine"]["figures"]["triton_key"])
    for operation in (
        "attention", "attention by TMA", "gemm", "gemm as Q4_K", "experts route", "experts group", "experts Q4_K",
        "experts combine", "rms_norm", "layer_norm", "sampling", "rope", "silu_mul", "silu_mul clamped", "quantise",
        "caps of logits", "gather", "step inputs", "small model",
    ):  # fmt: skip
        assert any(name.startswith(operation) for name in checked), operation
    smoked = {name.partition("/")[2] for name in parts["smoke"]}
    for names in FIRST.values():
        assert all(any(title.startswith(name) for title in smoked) for name in names), names
    refused = [case["note"] for name, case in by_name.items() if "planted" in name]
    assert len(refused) >= 5
    assert all(note.startswith("refused: ") for note in refused)
    on_device = [name for name, part in PARTS.items() if not part.dry]
    for name in on_device:
        assert by_name[f"{name}/*"]["note"] == "needs a GPU"
    timeline = by_name["models/tiny int4 kernels of one stream"]["figures"]
    assert timeline["launches"] == sum(row["count"] for row in timeline["timeline"]) > 20
    assert {row["kernel"]: row["count"] for row in timeline["timeline"]}["decode_kernel"] == 1
    assert json.loads((tmp_path / "timelines.json").read_text()) == {
        "models/tiny int4 kernels of one stream": timeline["timeline"]
    }
    served = by_name["serving/tiny over SSE"]
    assert served["status"] == "measured", served["note"]
    assert served["figures"]["2:tokens_s"] > 0
    variant, tuned = (by_name[f"tuning/{name}"]["figures"] for name in ("variant: decode tiny", "rms_norm"))
    assert variant["by pointers_gain"] == variant["us"] / variant["by pointers_us"]
    assert tuned["paste"].startswith("LaunchRow(")
    assert by_name["compiling/variant: decode tiny"]["figures"]["forms"] == 2
    assert " 0 left out for want of time" in done.stdout
    assert "triton-cache.tar.gz: 1 entries of Triton's cache" in done.stdout
    unpack(tmp_path / "triton-cache.tar.gz", tmp_path / "again")
    assert (tmp_path / "again/KEY/one.cubin").read_bytes() == b"machine code"
    begun = [line for line in (tmp_path / "cases.jsonl").read_text().splitlines() if '"begun"' in line]
    assert len(set(begun)) == len(by_name) - len(on_device)  # all but those that need a GPU
    assert len(begun) - len(set(begun)) <= 1  # the one that was cut began again


def machine_of(folder: Path) -> GpuMachine:
    header = json.loads((folder / "cases.jsonl").read_text().splitlines()[0])
    return GpuMachine("cpu", header["capability"], header["machine"], header["versions"])


def found(figures: Figures, _machine: GpuMachine) -> Figures:
    return figures


def raises(error: Exception, _machine: GpuMachine) -> Figures:
    raise error


@pytest.mark.parametrize(
    ("case", "status"),
    [
        (GpuCase("a", partial(found, {}), checks=True), "right"),
        (GpuCase("a", partial(raises, Wrong("off by one")), checks=True), "wrong"),
        (GpuCase("a", partial(raises, Wrong("off by one")), checks=True, planted=True), "right"),
        (GpuCase("a", partial(found, {}), checks=True, planted=True), "wrong"),
        (GpuCase("a", partial(raises, Skip("no float8"))), "skipped"),
        (GpuCase("a", partial(raises, OSError("gone"))), "failed"),
        (GpuCase("a", partial(raises, OSError("gone")), checks=True, planted=True), "failed"),
        (GpuCase("a", partial(found, {"us": 3.0})), "measured"),
        (GpuCase("a", partial(found, {"x": 1.6}), Goal("x", 1.7, 3.3)), "missed"),
        (GpuCase("a", partial(found, {"x": 1.7}), Goal("x", 1.7, 3.3)), "floor"),
        (GpuCase("a", partial(found, {"x": 3.3}), Goal("x", 1.7, 3.3)), "target"),
        (GpuCase("a", partial(found, {"x": 0.61}), Goal("x", 0.60, 0.52, less=True)), "missed"),
        (GpuCase("a", partial(found, {"x": 0.52}), Goal("x", 0.60, 0.52, less=True)), "target"),
        (GpuCase("a", partial(found, {"x": float("nan")}), Goal("x", 1.7, 3.3)), "missed"),
        (GpuCase("a", partial(found, {"us": 3.0}), Goal("speedup", 1.7, 3.3)), "measured"),  # no rival ran
    ],
)
def test_what_a_case_does_is_its_status(case: GpuCase, status: str) -> None:
    assert run_case(case, MACHINE)[0] == status


def test_a_limit_that_was_not_measured_skips_what_needs_it() -> None:
    case = GpuCase("a", lambda machine: {"x": machine.limit("copy_gb_s")})
    assert run_case(case, MACHINE)[::2] == ("skipped", "the limit copy_gb_s was not measured: its case did not finish")


def test_a_cut_run_goes_on(tmp_path: Path) -> None:
    first = Journal(tmp_path, MACHINE)
    assert first.begin("kernels/one")
    first.finish(FINDING)
    assert first.begin("kernels/two")
    with (tmp_path / "cases.jsonl").open("a") as file:
        file.write('{"name": "kernels/tw')  # the cut
    second = Journal(tmp_path, MACHINE)
    assert second.findings == {"kernels/one": FINDING}
    assert second.begin("kernels/two")
    second.finish(Finding("kernels/two", "right", 0.1))
    assert set(Journal(tmp_path, MACHINE).findings) == {"kernels/one", "kernels/two"}


def test_a_case_that_takes_the_whole_run_with_it_is_a_crash(tmp_path: Path) -> None:
    for _ in range(ATTEMPTS):
        assert Journal(tmp_path, MACHINE).begin("kernels/one")
    last = Journal(tmp_path, MACHINE)
    last.cut("kernels/one")  # by the clock, so that one did not count
    assert last.begin("kernels/one")
    last = Journal(tmp_path, MACHINE)
    assert not last.begin("kernels/one")
    assert last.findings["kernels/one"].status == "crashed"


def test_another_machines_folder_is_refused(tmp_path: Path) -> None:
    Journal(tmp_path, MACHINE)
    with pytest.raises(ValueError, match="name another folder"):
        Journal(tmp_path, GpuMachine("cuda", 90, "NVIDIA H200", {"torch": "2"}))


@pytest.mark.parametrize("text", ["", '{"mach', '{"begun": "kernels/one"}\n'])
def test_a_folder_whose_machine_nobody_knows_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "cases.jsonl").write_text(text)
    with pytest.raises(ValueError, match="does not begin with its machine: name another folder"):
        Journal(tmp_path, MACHINE)


def test_the_report_has_a_table_numbers_and_lines_to_paste(tmp_path: Path) -> None:
    paste = 'Row(16, Few(block_m=16), "' + "measured " * 12 + '"),'
    findings = [FINDING, Finding("tuning/one", "measured", 1.0, {"us": 2.0, "paste": paste})]
    write_report(tmp_path, MACHINE, findings)
    assert json.loads((tmp_path / "results.json").read_text())["cases"][0]["figures"] == FINDING.figures
    text = (tmp_path / "table.txt").read_text()
    assert "speedup 1.8 us 3" in text
    assert "speedup >= 1.7, 3.3" in text
    assert paste in text
    assert paste not in plain_table([row_of(finding) for finding in findings])
    assert len(long_lines(findings)) == 1
    picture = (tmp_path / "goals.svg").read_text()
    assert picture.count("<text") == 2  # the one case with a goal, and its share
    assert ">55%</text>" in picture


def test_a_timeline_stands_above_the_table(tmp_path: Path) -> None:
    rows: list[Figures] = [{"kernel": f"kernel {place}", "count": 2, "us": 9.5} for place in range(30)]
    write_report(tmp_path, MACHINE, [Finding("models/one", "measured", 1.0, {"launches": 60, "timeline": rows})])
    text = (tmp_path / "table.txt").read_text()
    table = text.index("launches 60")
    assert "models/one, the first 20 of 30 kernels:" in text[:table]
    assert "kernel 19  2      9.5  -" in text[:table]
    assert "kernel 20" not in text
    assert json.loads((tmp_path / "timelines.json").read_text()) == {"models/one": rows}


def test_what_needs_a_look_ends_the_table(tmp_path: Path) -> None:
    named: list[tuple[str, Status]] = [
        ("wrong", "wrong"), ("slow", "missed"), ("lost", "crashed"), ("fine", "target"), ("none", "skipped")
    ]  # fmt: skip
    write_report(tmp_path, MACHINE, [Finding(name, status, 1.0) for name, status in named])
    lines = (tmp_path / "table.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines if line and line.split()[0] in dict(named)] == [
        "fine", "none", "slow", "lost", "wrong",
    ]  # fmt: skip
    assert [case["name"] for case in json.loads((tmp_path / "results.json").read_text())["cases"]] == list(dict(named))


def test_fractions_take_their_limits_along() -> None:
    assert chosen_parts(["tuning", "kernels"]) == ["limits", "kernels", "compiling", "tuning"]
    assert chosen_parts(["correctness", "smoke"]) == ["smoke", "correctness"]


def test_every_part_gets_its_share_of_the_time() -> None:
    assert [begin_until(part, 1000.0, 10.0, shared=True) for part in PARTS] == pytest.approx(
        [1600, 1180, 1600, 1330, 1450, 1510, 1570, 1600]
    )
    assert begin_until("kernels", 1000.0, 10.0, shared=False) == 1600


def test_later_cases_know_the_limits_and_the_offline_rates(tmp_path: Path) -> None:
    journal = Journal(tmp_path, MACHINE)
    journal.finish(Finding("limits/copy", "measured", 1.0, {"copy_gb_s": 4000.0, "shape": "8x8"}))
    journal.finish(Finding("models/tiny batch 64", "target", 1.0, {"tokens_s": 9.0, "step_us": 7.0}))
    assert known_figures(journal) == {"copy_gb_s": 4000.0, "tiny batch 64 tokens_s": 9.0}


def limits_of(*stages: tuple[str, ...]) -> SuitePart:
    return replace(PARTS["limits"], stages=stages)


def test_a_missing_package_skips_what_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PARTS, "limits", limits_of(("gpu_nowhere",)))
    (case,) = cases_of("limits", False)
    assert run_case(case, MACHINE)[0] == "failed"  # a module of ours is no package that may be missing
    monkeypatch.setattr("triolet.loadtest.device.gpu_case.HERE", "elsewhere")
    (case,) = cases_of("limits", False)
    assert run_case(case, MACHINE)[::2] == ("skipped", "elsewhere is not installed here")


def test_a_module_that_breaks_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(dry: bool) -> list[GpuCase]:
        raise AttributeError(f"torch has no such thing, dry or not ({dry})")

    monkeypatch.setattr("triolet.loadtest.device.gpu_gemm.checks", broken)
    statuses = [run_case(case, MACHINE)[::2] for case in cases_of("correctness", True) if "cannot be used" in case.name]
    assert statuses == [("failed", "AttributeError: torch has no such thing, dry or not (True)")]
    assert sum(1 for _ in cases_of("correctness", True)) > 10


def test_a_part_that_is_cut_short_has_seen_something_of_every_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(names: list[str], dry: bool) -> list[GpuCase]:
        return [GpuCase(f"{name}{dry}", partial(found, {})) for name in names]

    cases = {"gpu_one": ["a", "b", "c"], "gpu_two": ["d"], "gpu_three": ["e", "f"]}
    for file, names in cases.items():
        module = ModuleType(file)
        vars(module)["times"] = partial(made, names)
        monkeypatch.setitem(sys.modules, f"triolet.loadtest.device.{file}", module)
    monkeypatch.setitem(PARTS, "limits", limits_of(tuple(cases)))
    assert [case.name for case in cases_of("limits", True)] == [f"{name}True" for name in "adebfc"]
    monkeypatch.setitem(PARTS, "limits", limits_of(("gpu_three", "gpu_two"), ("gpu_one",)))
    assert [case.name for case in cases_of("limits", True)] == [f"{name}True" for name in "edfabc"]


def test_options_are_explained_and_checked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert all(
        word in shown for word in ("--dry-run", "--only", "--budget", "--wheels", "--triton-cache", "goes on", *PARTS)
    )
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path), "--budget", "0"])
    assert "give minutes above 0" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path), "--wheels", str(tmp_path / "nowhere")])
    assert "there is no such folder" in capsys.readouterr().err
