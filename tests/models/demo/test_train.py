"""The trainer as a person runs it: two processes, a stop, and a second run that goes on from the first."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from triolet.models.demo.training.train import rate

CHECKPOINT = Path(__file__).parents[3] / "models" / "demo" / "checkpoint"


def trained(work: Path, minutes: float) -> str:
    command = [
        sys.executable,
        "-m",
        "triolet.models.demo.training.train",
        "--work",
        str(work),
        "--export",
        str(work / "out"),
    ]
    options = ["--minutes", str(minutes), "--batch", "2", "--context", "32", "--eager"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_second_run_goes_on_from_the_first(tmp_path: Path) -> None:
    shutil.copy(CHECKPOINT / "tokenizer.json", tmp_path / "tokenizer.json")
    assert "going on" not in trained(tmp_path, 0.001)
    again = trained(tmp_path, 0.002)
    assert re.search(r"going on after \d+\.\d minutes", again)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["MistralForCausalLM"]
    exported = {path.name for path in (tmp_path / "out").iterdir()}
    assert exported == {path.name for path in CHECKPOINT.iterdir()}


@pytest.mark.parametrize(("minutes", "expected"), [(0.0, 1.0), (59.0, 1.0), (80.0, 0.5), (100.0, 0.02), (200.0, 0.02)])
def test_the_rate_is_constant_then_falls(minutes: float, expected: float) -> None:
    assert rate(minutes, 100.0, 0.4) == pytest.approx(expected)
