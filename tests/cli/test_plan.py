"""`triolet plan` and `triolet models`, through the command line."""

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from triolet.cli.calibrated import keep_measured, rates_here
from triolet.cli.main import main
from triolet.cli.options import BUNDLED_MODEL
from triolet.cli.report import Terminal, report_model
from triolet.protocol.settings import EngineSettings
from triolet.protocol.steps import MemoryPlan, Ready, TokenWork

MEMORY = MemoryPlan(
    weights_bytes=1000, workspace_bytes=1, kv_bytes=6400, num_blocks=100, block_size=64, sequences_at_full_length=2.0
)
READY = Ready(
    model="m", architecture="llama", parameters=5, device="cpu", dtype="bfloat16", quantize="int8", context_length=64,
    vocab_size=9, eos_token_ids=(), max_step_tokens=8, max_running=4, memory=MEMORY, sampling_defaults={}, versions={},
    pid=1, work=TokenWork(weight_bytes=936, all_weight_bytes=936, kv_bytes=1, operations=10, prompt_operations=8),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _own_folders(no_settings_elsewhere: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


def _run(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def _cached(hub: Path, commit: str = "a" * 40) -> Path:
    place = hub / "models--org--small"
    (place / "snapshots").mkdir(parents=True)
    (place / "blobs").mkdir()
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(commit)
    for file in BUNDLED_MODEL.iterdir():
        shutil.copy(file, place / "blobs" / f"{file.name}-blob")
        (place / "snapshots" / commit).mkdir(exist_ok=True)
        (place / "snapshots" / commit / file.name).symlink_to(f"../../blobs/{file.name}-blob")
    return place


def test_a_plan_says_memory_and_speed_of_each_precision() -> None:
    said = _run("plan", "--device", "cpu-16g", "--price", "0.5")
    assert "triolet-demo: mistral, 4.8 M parameters, context 8,192; cpu-16g with 14.4 GiB free" in said
    for words in ("bfloat16", "int8", "int4", "one answer, tokens/s", "cost of 1 M tokens", "Speeds are bounds from"):
        assert words in said
    (plan,) = json.loads(_run("plan", "--json", "--quantize", "int4", str(BUNDLED_MODEL)))
    assert [each["weights"] for each in plan["precisions"]] == ["int4"]
    assert plan["precisions"][0]["memory"]["weights_bytes"] > 0
    result = CliRunner().invoke(main, ["plan", "no/such/folder"])
    assert result.exit_code == 2
    assert "no folder no/such/folder" in result.output


def test_the_cache_is_listed_with_what_runs_and_a_model_is_removed(tmp_path: Path) -> None:
    assert "There are no models in" in _run("models")
    place = _cached(tmp_path / "hub")
    other = tmp_path / "t5"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "t5"}')
    said = _run("models", str(other))
    assert "org/small" in said
    assert "yes" in said
    assert f"{other}: architectures = None: expected one of" in said
    small, refused = json.loads(_run("models", "--json", str(other)))
    assert small["name"] == "org/small"
    assert small["family"] == "mistral"
    assert small["memory"]["int4"] < small["memory"]["int8"] < small["memory"]["none"]
    assert small["disk"] == sum(file.stat().st_size for file in BUNDLED_MODEL.iterdir())
    assert refused["problem"]
    result = CliRunner().invoke(main, ["models", "--remove", "org/smal"])
    assert "there is no such model" in result.output
    assert CliRunner().invoke(main, ["models", "--remove", "org/small"], input="n\n").exit_code == 1
    assert place.exists()
    assert "Removed org/small" in _run("models", "--remove", "org/small", "--yes")
    assert not list((place.parent).glob("models--*/snapshots/*"))


def test_the_start_report_has_the_speed_once_it_was_measured() -> None:
    lines: list[str] = []

    class Report(Terminal):
        def __init__(self) -> None:
            self.is_terminal, self._dim, self._plain = False, "", ""

        def line(self, text: str) -> None:
            lines.append(text)

    engine = EngineSettings(model="m", quantize="int8", threads=3)
    report_model(Report(), READY, engine, "m")
    assert not any("tokens/s" in line for line in lines)
    keep_measured(READY, 3, decode=10.0, prefill=100.0, context=64, batch=1)
    assert rates_here("cpu", "int8", 3).bandwidth == 10 * (936 + 64)
    report_model(Report(), READY, engine, "m")
    assert lines[-1].endswith("100 tokens/s of prompts, 10.0 of one answer, 18.8 of 2, all at full length (predicted)")
    keep_measured(replace(READY, work=None), 1, decode=1.0, prefill=1.0, context=1, batch=1)
    assert rates_here("cpu", "int8", 1).bandwidth is None
    assert msgspec.json.decode(msgspec.json.encode(READY), type=Ready) == READY
