"""Plans from headers, and that they are what a load then takes."""

import os
import shutil
from math import prod
from pathlib import Path

import pytest
from msgspec import structs

from triolet.models.checkpoint.open import open_checkpoint
from triolet.models.load import load_model
from triolet.models.plan.calibration import calibration_file, keep_rates, key_of, read_rates
from triolet.models.plan.devices import DEVICES
from triolet.models.plan.plan import plan_for, plan_here
from triolet.models.plan.speed import Rates
from triolet.protocol.settings import MIB, EngineSettings

DEMO = Path(__file__).resolve().parents[3] / "models" / "demo" / "checkpoint"
SETTINGS = EngineSettings(model=str(DEMO), device="cpu", kv_cache_memory=16 * MIB, threads=1, max_step_tokens=64)
RATES = Rates(bandwidth=1e10, operations=1e12, measured=True)


def rates(weights: str, threads: int) -> Rates:
    return RATES if (weights, threads) == ("int8", 1) else Rates(bandwidth=None, operations=None)


def test_the_plan_is_what_the_load_takes() -> None:
    plan = plan_here(open_checkpoint(DEMO), SETTINGS, 1 << 40, rates, price=1.0)
    planned = {each.quantize: each for each in plan.precisions}
    for quantize in ("none", "int8"):
        stepper, ready = load_model(structs.replace(SETTINGS, quantize=quantize))
        stepper.close()
        assert ready.memory == planned[quantize].memory
        assert ready.work == planned[quantize].work
        assert ready.context_length == planned[quantize].context_length
        assert ready.parameters == plan.parameters
    assert planned["none"].speeds is not None
    assert planned["none"].speeds.decode is None
    assert planned["int8"].speeds is not None
    assert planned["int8"].speeds.measured
    assert planned["int8"].costs is not None
    assert planned["int8"].costs.generated_alone == pytest.approx(1e6 / 3600 / (planned["int8"].speeds.decode or 0))


def test_weights_that_are_not_there_are_planned_by_their_headers(tmp_path: Path) -> None:
    """And counted: bytes of weights in bfloat16 are the parameters' but for padding and the packed vectors."""
    folder = tmp_path / "m"
    shutil.copytree(DEMO, folder)
    whole = (folder / "model.safetensors").read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    (folder / "model.safetensors").write_bytes(whole[:end])
    os.truncate(folder / "model.safetensors", len(whole))
    hollow, real = (plan_here(open_checkpoint(each), SETTINGS, 1 << 40, rates) for each in (folder, DEMO))
    assert hollow.precisions == real.precisions
    whole_model = open_checkpoint(DEMO)
    count = sum(prod(whole_model.tensor_shape(name)) for name in whole_model.tensor_names)
    assert real.parameters == count
    memory = real.precisions[0].memory
    assert memory is not None
    assert 2 * count <= memory.weights_bytes <= 2 * count * 1.25


def test_a_model_that_does_not_fit_says_why() -> None:
    plan = plan_here(open_checkpoint(DEMO), SETTINGS, 1 * MIB, rates)
    assert all("only 1024KiB are available" in each.problem and each.memory is None for each in plan.precisions)


@pytest.mark.parametrize("name", ["h100", "a100-80g", "cpu-16g"])
def test_machines_of_the_table(name: str) -> None:
    figures = DEVICES[name]
    plan = plan_for(open_checkpoint(DEMO), EngineSettings(model=str(DEMO)), figures)
    assert plan.device == name
    by_format = {each.quantize: each for each in plan.precisions}
    assert set(by_format) == ({"none", "fp8", "int8", "int4"} if figures.is_gpu else {"none", "int8", "int4"})
    for each in plan.precisions:
        if (each.quantize, name) == ("fp8", "a100-80g"):
            assert "multiplies no float8" in each.problem
            continue
        assert each.memory is not None
        assert each.speeds is not None
        assert not each.speeds.measured
        assert (each.speeds.prefill is None) is not figures.is_gpu
        assert sum((each.memory.weights_bytes, each.memory.workspace_bytes, each.memory.kv_bytes)) <= figures.memory
    only = plan_for(open_checkpoint(DEMO), EngineSettings(model=str(DEMO), quantize="int8"), figures)
    assert [each.weights for each in only.precisions] == ["int8"]


def test_the_table_has_a_source_for_every_row() -> None:
    for name, row in DEVICES.items():
        assert name == row.name
        assert row.source
        assert row.memory > 1 << 30
        assert 1e10 < row.bandwidth < 1e13
        assert ("bfloat16" in row.operations) is row.is_gpu


def test_measured_rates_are_kept_for_this_machine_and_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    key = key_of("cpu", "int8", 2)
    assert read_rates(key, "this", "1") is None
    keep_rates(key, RATES, "this", "1")
    assert read_rates(key, "this", "1") == RATES
    keep_rates(key, Rates(bandwidth=None, operations=2e12, measured=True), "this", "1")
    assert read_rates(key, "this", "1") == Rates(bandwidth=1e10, operations=2e12, measured=True)
    assert read_rates(key_of("cpu", "int8", 1), "this", "1") is None
    assert read_rates(key, "other", "1") is None
    assert read_rates(key, "this", "2") is None
    calibration_file().write_text("{")
    assert read_rates(key, "this", "1") is None
