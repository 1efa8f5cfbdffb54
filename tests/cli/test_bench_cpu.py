"""`triolet bench cpu`: from end to end with tiny sizes, and what it says of a made-up machine."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from triolet.cli.bench_cpu import cpu
from triolet.cli.bench_cpu_page import CpuReport, StepFigures, ceiling_rows, chart, meaning, page, remarks, step_rows
from triolet.loadtest.machine import Machine
from triolet.loadtest.serve.plots import svg
from triolet.models.plan.roofline import Ceilings, MemoryLevel, StepLoad, StepWork, Unit

TRIOLET = str(Path(sys.executable).with_name("triolet"))
READING = StepFigures(
    name="1 row", load=StepLoad(sequences=1, tokens=1, context=9), rounds=3, milliseconds=20.0, best_milliseconds=16.0,
    model_milliseconds=19.0, work=StepWork(bytes=10**8, products=10**8, attention=10**8), roof_milliseconds=8.0,
    reached=0.4, limit="memory",
)  # fmt: skip
COMPUTING = replace(READING, name="prompt 512", limit="arithmetic", reached=0.8, work=StepWork(
    bytes=10**8, products=10**11, attention=0))  # fmt: skip
REPORT = CpuReport(
    model="m<1>", weights="int8", kv_cache_dtype="bfloat16", units=("int8", "bfloat16"), context=9, busy=0.0,
    machine=Machine(cpu="a CPU", instructions=(), cores=2, memory_gib=1.0, system="Linux"), versions={}, left_out=(),
    ceilings=Ceilings(
        threads=2,
        levels=(MemoryLevel(name="L3", read_bytes=1 << 24, one_thread=6e10, all_threads=1e11),
                MemoryLevel(name="memory", read_bytes=10**9, one_thread=1e10, all_threads=1.25e10)),
        units=(Unit(format="int8", instruction="VPDPBUSD", one_thread=5e11, all_threads=1e12),
               Unit(format="bfloat16", instruction="VDPBF16PS", one_thread=2e11, all_threads=4e11)),
    ),
    steps=(READING, COMPUTING),
)  # fmt: skip


def test_a_tiny_run_has_every_ceiling_and_every_step(tmp_path: Path) -> None:
    out = tmp_path / "cpu.html"
    steps = ("--rows", "3", "--rows", "1", "--context", "20", "--prompt-tokens", "18", "--rounds", "2")
    command = [
        TRIOLET,
        "bench",
        "cpu",
        *steps,
        "--quantize",
        "int8",
        "--read-size",
        "64MiB",
        "--json",
        "--out",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["model"] == "triolet-demo"
    assert (found["weights"], found["units"]) == ("int8", ["int8", "bfloat16"])
    assert [unit["format"] for unit in found["ceilings"]["units"]] == ["int8", "bfloat16", "float32"]
    assert found["ceilings"]["levels"][-1]["name"] == "memory"
    for each in (*found["ceilings"]["levels"], *found["ceilings"]["units"]):
        assert each["one_thread"] > 0
        assert each["all_threads"] > 0
    assert [step["name"] for step in found["steps"]] == ["1 row", "3 rows", "prompt 18"]
    for step in found["steps"]:
        assert step["rounds"] == 2
        assert step["milliseconds"] >= step["best_milliseconds"] > 0
        assert step["reached"] == pytest.approx(step["roof_milliseconds"] / step["milliseconds"])
    one, three, prompt = (step["work"] for step in found["steps"])
    assert three["products"] == 3 * one["products"]
    assert one["bytes"] < three["bytes"]
    assert prompt["products"] > 5 * one["products"]
    assert out.read_text().count("<svg") == 1


def test_it_refuses_what_it_cannot_measure() -> None:
    for arguments, words in (
        (["--device", "cuda"], "measures the CPU"),
        (["--out", "picture.png"], "FILE.html"),
        (["--out", "no/such/folder/cpu.html"], "no folder"),
        (["--read-size", "100"], "at least"),
    ):
        done = CliRunner().invoke(cpu, arguments)
        assert done.exit_code == 2
        assert words in done.output


def test_the_tables_have_units() -> None:
    assert [row[2:] for row in ceiling_rows(REPORT)[1:]] == [
        ("60.0 GB/s", "100.0 GB/s"),
        ("10.0 GB/s", "12.5 GB/s"),
        ("0.500 TOPS", "1.000 TOPS"),
        ("0.200 TFLOPS", "0.400 TFLOPS"),
    ]
    assert step_rows(REPORT)[1] == ("1 row", "100.0 MB", "0.200 G", "8.000 ms", "memory", "20.00 ms", "40–50%")
    same = replace(READING, best_milliseconds=20.0)
    assert step_rows(replace(REPORT, steps=(same,)))[1][-1] == "40%"


def test_the_sentences_name_what_decides_and_what_is_far_from_its_roof() -> None:
    reading, computing, worst = meaning(REPORT)
    assert reading.startswith("Reading is the limit of 1 row:")
    assert computing.startswith("Arithmetic is the limit of prompt 512:")
    assert "1 row, 40% (50% at best)" in worst
    (only, near) = meaning(replace(REPORT, steps=(COMPUTING,)))
    assert only.startswith("Arithmetic")
    assert near.startswith("All steps reach 80%")


def test_a_busy_machine_and_loads_that_do_not_fit_are_remarked() -> None:
    assert remarks(REPORT) == []
    said = remarks(replace(REPORT, busy=0.43, left_out=("64 rows",), steps=(replace(READING, reached=1.2),)))
    assert [words in line for words, line in zip(("43%", "above its roof", "64 rows"), said, strict=True)] == [True] * 3


def test_the_picture_has_a_roof_for_each_level_and_a_named_point_for_each_step() -> None:
    memory, cache, steps = chart(REPORT).lines
    assert (memory.xs[1], memory.ys[1]) == (80.0, 1.0)  # 10¹² a second by 12.5 GB a second
    assert cache.xs[1] == 10.0
    assert memory.ys[0] == memory.xs[0] * 0.0125
    assert (steps.xs, steps.ys) == ((2.0, 1000.0), (0.01, 5.0))
    drawing = ElementTree.fromstring(svg(chart(REPORT)))
    assert [text.text for text in drawing.iter("text")].count("prompt 512") == 1
    assert "m&lt;1&gt;" in page(REPORT)
