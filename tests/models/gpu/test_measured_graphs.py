"""The KV cache takes what is left beside graphs as they were measured, and the graphs that serve are those of that
cache.
"""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest

from triolet.loadtest.device.gpu_model_values import small_weights
from triolet.models.errors import DoesNotFit
from triolet.models.gpu.device import Graph, Growth, Work
from triolet.models.gpu.gpu import GpuModel
from triolet.models.gpu.load import load_on_gpu, sizes_of
from triolet.models.gpu.memory import plan_on_gpu
from triolet.models.gpu.rehearsal import RehearsalDevice
from triolet.models.gpu.stepper import GpuStepper
from triolet.protocol.settings import MIB, EngineSettings
from triolet.protocol.steps import Chunk, MemoryPlan, ignore_progress

from ..checkpoint.test_fused import mxfp4, write
from .gpu_house import SPEC, Driver, clear_prompt, make_gpu_model, record

BLOCKS = 5


class Filled(RehearsalDevice):
    """Each of its graphs takes memory as long as it is there."""

    def __init__(self, memory: int = 256 * MIB, of_graph: int = MIB) -> None:
        super().__init__(memory)
        self._of_graph, self.captured = of_graph, 0

    def capture(self, work: Work) -> Graph:
        graph = super().capture(work)
        self.captured += 1
        self._memory -= self._of_graph
        weakref.finalize(graph, self._give_back)
        return graph

    def _give_back(self) -> None:
        self._memory += self._of_graph


def test_graphs_are_captured_anew_over_the_cache_that_serves() -> None:
    device, measured = Filled(), list[int]()
    plain = make_gpu_model(max_running=1, max_tokens=8)

    def blocks_beside(graphs: int) -> int:
        measured.append(graphs)
        return BLOCKS

    model = GpuModel(device, SPEC, small_weights(SPEC), plain.sizes, blocks_beside=blocks_beside)
    graphs = model.buckets.graph_count
    assert measured == [graphs * MIB]
    assert device.captured == 2 * graphs
    assert device.free_memory()[0] == (256 - graphs) * MIB  # of the first, nothing is left
    assert len(model.caches[0].keys) == BLOCKS
    prompt = clear_prompt(5, 1, 3)
    assert drawn(model, prompt) == drawn(plain, prompt)
    assert model.device.growth() == Growth(0, 0)


def drawn(model: GpuModel, prompt: tuple[int, ...]) -> list[int]:
    driver = Driver(GpuStepper(model))
    chunk = Chunk(sequence=1, start=0, count=len(prompt), blocks=(BLOCKS - 1,), sample=True)
    driver.step(chunk, new=[record(1, prompt)])
    for position in range(len(prompt), len(prompt) + 2):
        driver.step(Chunk(sequence=1, start=position, count=1, sample=True))
    return driver.tokens(1)


def test_the_plan_of_a_worker_holds_what_was_measured(tmp_path: Path) -> None:
    file = write(tmp_path / "model", mxfp4())
    settings = EngineSettings(model="", max_model_len=64, max_running=1, max_step_tokens=2)
    before, guessed = Filled().free_memory(), plan_on_gpu(Filled(), file.spec, sizes_of(file, settings, Filled()))
    plans = dict[int, MemoryPlan]()
    for of_graph in (MIB, 2 * MIB):
        device = Filled(of_graph=of_graph)
        loaded = load_on_gpu(file, settings, device, ignore_progress)
        loaded.stepper.close()
        plans[of_graph] = loaded.memory
    graphs = sizes_of(file, settings, Filled()).buckets.graph_count
    one, two = plans[MIB], plans[2 * MIB]
    assert two.workspace_bytes - one.workspace_bytes == graphs * MIB
    assert one.workspace_bytes != guessed.workspace_bytes
    of_block = one.kv_bytes // one.num_blocks
    for found in (one, two):
        left = int(0.9 * before[0]) - found.weights_bytes - found.workspace_bytes - found.kv_bytes
        assert 0 <= left < of_block
    with pytest.raises(DoesNotFit, match=r"one sequence of 64 tokens needs .* of KV cache"):
        load_on_gpu(file, settings, Filled(of_graph=30 * MIB), ignore_progress)


def test_a_cache_of_a_given_size_needs_no_measurement(tmp_path: Path) -> None:
    file, device = write(tmp_path / "model", mxfp4()), Filled()
    settings = EngineSettings(model="", max_model_len=64, max_running=1, max_step_tokens=2, kv_cache_memory=MIB)
    load_on_gpu(file, settings, device, ignore_progress).stepper.close()
    assert device.captured == sizes_of(file, settings, device).buckets.graph_count
