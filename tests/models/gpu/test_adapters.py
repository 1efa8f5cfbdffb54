"""LoRA adapters on the rehearsal device: the log probabilities of merged weights, row by row, in one batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace

from triolet.loadtest.device.gpu_model_values import OF_FLOAT32, OF_WEIGHTS, log_probabilities, small_weights
from triolet.loadtest.device.random_adapter import merged, random_adapter, scaled
from triolet.models.checkpoint.adapter import AdapterWeights, module_sizes
from triolet.models.checkpoint.spec import alike
from triolet.models.errors import DoesNotFit, UnsupportedModel
from triolet.models.gpu.device import Growth
from triolet.models.gpu.gpu import GpuModel
from triolet.models.gpu.stepper import GpuStepper
from triolet.models.gpu.stored import FLOAT32
from triolet.protocol.settings import AdapterPlaces
from triolet.protocol.steps import Chunk

from ..adapter_cases import write_adapter
from .gpu_house import SPEC, Driver, make_gpu_model, prompt_of, record

PROMPT = prompt_of(8, 50)
PART = 4  # tokens of a step
TOLERANCE = OF_WEIGHTS["none"]
# Rows of q and k have another order on the device; an MLP without a gate is one module fewer.
TURNED = replace(
    SPEC, layers=alike(1), rotary_dim=32, interleaved_rotary=True, gated=False, activation="gelu_tanh"
)  # fmt: skip
# By number; the second one leaves most matrices alone.
ADAPTERS = {4: random_adapter(SPEC, 1, rank=5), 9: random_adapter(SPEC, 2, rank=3, modules=("k_proj", "up_proj"))}


@pytest.fixture(scope="module")
def model() -> GpuModel:
    return make_gpu_model(adapters=AdapterPlaces(count=len(ADAPTERS), rank=5))


@pytest.fixture(scope="module")
def gpu(model: GpuModel, folder: Path) -> Iterator[GpuStepper]:
    stepper = GpuStepper(model)
    for number in ADAPTERS:
        stepper.read_adapter(number, str(folder / str(number)))()
    yield stepper
    stepper.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("adapters")
    for number, adapter in ADAPTERS.items():
        write_adapter(path / str(number), adapter)
    return path


def test_log_probabilities_are_those_of_merged_weights(model: GpuModel, gpu: GpuStepper) -> None:
    """Of three rows in one batch, one without an adapter. Half of an adapter's scale is rejected, and another's too."""
    driver, adapters = Driver(gpu, ahead=True), (0, *ADAPTERS)
    new = [record(1 + n, PROMPT, prompt_logprobs=1, adapter=n) for n in adapters]
    driver.step(*(chunk_of(n, 0, PART, blocks=(n,)) for n in adapters), new=new)
    driver.step(*(chunk_of(n, PART, PART) for n in adapters))
    driver.step(*(chunk_of(n, 2 * PART, 1) for n in adapters))
    driver.step(chunk_of(0, 2 * PART + 1, 1), dropped=[1 + n for n in ADAPTERS])  # by the graph without adapters
    driver.step(dropped=[1])
    rows = [row for step in driver.drain() for row in step]
    found = {
        n: np.array([score.logprob for row in rows if row.sequence == 1 + n for score in row.prompt_logprobs])
        for n in adapters
    }
    base = small_weights(SPEC)
    wanted = {n: log_probabilities(SPEC, merged(base, adapter), PROMPT) for n, adapter in ADAPTERS.items()}
    wanted[0] = log_probabilities(SPEC, base, PROMPT)
    halves = {n: log_probabilities(SPEC, merged(base, scaled(adapter, 0.5)), PROMPT) for n, adapter in ADAPTERS.items()}
    for n in adapters:
        for other in adapters:
            assert (apart(found[n], wanted[other]) < TOLERANCE) == (n == other), (n, other)
        assert n not in halves or apart(found[n], halves[n]) > TOLERANCE
    assert model.device.growth() == Growth(0, 0)


@pytest.mark.parametrize(("quantize", "cache"), [("none", "bfloat16"), (FLOAT32, FLOAT32)])
def test_rows_of_q_and_k_are_in_the_order_of_the_models(quantize: str, cache: str, tmp_path: Path) -> None:
    adapter = random_adapter(TURNED, 3, rank=5, modules=tuple(module_sizes(TURNED)))
    base, places = small_weights(TURNED), AdapterPlaces(count=1, rank=5)
    model = make_gpu_model(
        spec=TURNED, weights=base, adapters=places, max_running=1, max_tokens=8, quantize=quantize, kv_cache_dtype=cache
    )
    gpu = GpuStepper(model)
    gpu.read_adapter(4, str(write_adapter(tmp_path / "adapter", adapter)))()
    driver = Driver(gpu)
    new = [record(5, PROMPT, prompt_logprobs=1, adapter=4)]
    driver.step(chunk_of(4, 0, len(PROMPT), blocks=(1,)), new=new)
    found = np.array([score.logprob for step in driver.drain() for row in step for score in row.prompt_logprobs])
    gpu.close()

    def distance(merged_adapter: AdapterWeights) -> float:
        return apart(found, log_probabilities(TURNED, merged(base, merged_adapter), PROMPT))

    order = np.argsort(TURNED.rotary_order)  # what the device would do to rows that it left as they are
    (layer,) = adapter.layers
    unturned = {
        module: replace(part, b=part.b.reshape(-1, TURNED.head_dim, part.rank)[:, order].reshape(part.b.shape))
        if module in ("q_proj", "k_proj")
        else part
        for module, part in layer.items()
    }
    tolerance = OF_FLOAT32 if quantize == FLOAT32 else TOLERANCE
    assert distance(adapter) < tolerance < distance(AdapterWeights((unturned,)))
    assert quantize == "none" or distance(scaled(adapter, 1.001)) > tolerance


def chunk_of(adapter: int, start: int, count: int, blocks: tuple[int, ...] = ()) -> Chunk:
    ends = start + count >= len(PROMPT)
    scored = start < len(PROMPT)
    return Chunk(sequence=1 + adapter, start=start, count=count, blocks=blocks, sample=ends, prompt_logprobs=scored)


def apart(found: npt.NDArray[np.float64], wanted: npt.NDArray[np.float64]) -> float:
    return float(np.abs(found - wanted).mean())


def test_an_adapter_takes_the_place_of_another_behind_the_steps_that_use_it(gpu: GpuStepper, folder: Path) -> None:
    """It is added while such a step is under way."""

    def drawn(driver: Driver, sequence: int) -> float | None:
        (score,) = (score for step in driver.drain() for row in step if row.sequence == sequence
                    for score in row.logprobs)  # fmt: skip
        return score.logprob

    def begin(driver: Driver, sequence: int, adapter: int) -> None:
        new = [record(sequence, PROMPT[:2], logit_bias=[(7, 400.0)], logprobs=0, adapter=adapter)]
        driver.step(Chunk(sequence=sequence, start=0, count=2, blocks=(sequence - 20,), sample=True), new=new)

    alone = dict[int, float | None]()
    for number in ADAPTERS:
        driver = Driver(gpu)
        begin(driver, 20 + number, number)
        alone[number] = drawn(driver, 20 + number)
    driver = Driver(gpu, ahead=True)
    begin(driver, 21, 4)
    gpu.forget_adapter(4)
    gpu.read_adapter(5, str(folder / "9"))()
    begin(driver, 22, 5)
    assert (drawn(driver, 21), drawn(driver, 22)) == (alone[4], alone[9])
    assert alone[4] != alone[9]
    with pytest.raises(DoesNotFit, match="room for 2 adapters, all of it taken: raise --max-loras"):
        gpu.read_adapter(6, str(folder / "4"))()
    driver.drop(24, 29, 21, 22)


def test_what_there_is_no_room_for_is_refused(gpu: GpuStepper, tmp_path: Path) -> None:
    large = str(write_adapter(tmp_path / "large", random_adapter(SPEC, 3, rank=6)))
    with pytest.raises(UnsupportedModel, match="r = 6: there is room for ranks up to 5; pass --max-lora-rank 6"):
        gpu.read_adapter(6, large)
