"""A model on a device, stepped as the worker steps it: two steps in flight, token ids never waited for."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from msgspec.structs import replace

from triolet.loadtest.device.gpu_case import Figures
from triolet.loadtest.device.gpu_check import require
from triolet.loadtest.device.random_model import random_weights
from triolet.models.checkpoint.adapter import AdapterWeights
from triolet.models.checkpoint.spec import ModelSpec
from triolet.models.checkpoint.weights import DecoderWeights
from triolet.models.gpu.buckets import Buckets, GpuSizes
from triolet.models.gpu.device import Device
from triolet.models.gpu.gpu import GpuModel
from triolet.models.gpu.memory import plan_on_gpu
from triolet.models.gpu.stepper import GpuStepper
from triolet.models.stepper import PendingStep
from triolet.protocol.sampling import Sampling
from triolet.protocol.settings import BLOCK_SIZE, AdapterPlaces
from triolet.protocol.steps import BlockCopy, Chunk, LoadProgress, MemoryPlan, Row, SequenceRecord, Step

IN_FLIGHT = 2
GREEDY = Sampling(temperature=0.0)
Heard = Callable[[Row], object]


def _no_one(_result: Row) -> None:
    """Hears it."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a loaded model."""

    max_running: int
    max_step_tokens: int
    max_model_len: int
    kv_bytes: int


class LoadedGpuModel:
    """A model with its stepper, and the seconds its start took. Its weights are random where none are given."""

    def __init__(
        self, device: Device, spec: ModelSpec, quantize: str, sizes: Sizes, kv_cache_dtype: str = "bfloat16",
        weights: DecoderWeights | None = None, adapters: int = 0,
    ) -> None:  # fmt: skip
        began = time.perf_counter()
        weights = weights or random_weights(spec)
        made = time.perf_counter()
        rows = min(sizes.max_step_tokens, max(sizes.max_running, 256))
        buckets = Buckets(
            max_tokens=sizes.max_step_tokens, max_chunks=sizes.max_running, max_rows=rows, adapters=adapters > 0
        )
        made_for = GpuSizes(
            quantize=quantize, kv_cache_dtype=kv_cache_dtype, max_model_len=sizes.max_model_len, buckets=buckets,
            adapters=AdapterPlaces(count=adapters),
        )  # fmt: skip
        self.plan: MemoryPlan = plan_on_gpu(device, spec, made_for, kv_cache_memory=sizes.kv_bytes)
        stages: dict[str, float] = {}
        free: dict[str, int] = {}  # bytes, when each stage began

        def note(progress: LoadProgress) -> None:
            if progress.stage not in stages:
                free[progress.stage] = device.free_memory()[0]
            stages[progress.stage] = time.perf_counter() - made  # when it last reported: near its end

        made_for = replace(made_for, num_blocks=self.plan.num_blocks)
        self.model = GpuModel(device, spec, weights, made_for, note)
        self.stepper = GpuStepper(self.model)
        self.spec, self.quantize = spec, quantize
        self.cold_start: Figures = {
            "made_weights_s": made - began,
            **{f"{stage} done_s": seconds for stage, seconds in stages.items()},
            "ready_s": time.perf_counter() - made,
            "graphs": buckets.graph_count,
            # Of the device's memory: modules and libraries, and graphs. The plan only estimates their sum.
            "kernels_gb": (free["compiling kernels"] - free["capturing graphs"]) / 1e9,
            "graphs_gb": (free["capturing graphs"] - device.free_memory()[0]) / 1e9,
        }
        self._next = self._steps = 0
        self._pending: deque[tuple[PendingStep, Heard]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stepper.close()

    def add_adapters(self, adapters: Sequence[AdapterWeights]) -> None:
        """By the numbers 1, 2, …; the same object several times is packed once."""
        places = self.model.adapters
        assert places is not None
        packed = {id(adapter): places.pack(adapter) for adapter in adapters}
        for number, adapter in enumerate(adapters, 1):
            self.stepper.add_adapter(number, places, packed[id(adapter)])

    def growth(self) -> Figures:
        """Raises Wrong where anything was allocated or compiled after the start."""
        allocations, compilations = self.model.device.growth()
        require(allocations == compilations == 0, f"{allocations} allocations and {compilations} compilations since")
        return {"allocations": allocations, "compilations": compilations}

    def decode(
        self, batch: int, prompt: int, warm_up: int, steps: int, *, adapted: bool = False
    ) -> tuple[float, float]:
        """Seconds of a decode step, and of the prompts before; `batch` sequences with prompts of `prompt` tokens.

        `adapted`: the first has adapter 1, the second adapter 2, …
        """
        began = time.perf_counter()
        names, total = self._prefill(batch, prompt, warm_up + steps, adapted=adapted)
        prefilled = time.perf_counter() - began
        # Made ahead: what the scheduler takes for this is not measured here.
        made = [
            [Chunk(sequence=name, start=prompt + step, count=1, sample=True) for name in names]
            for step in range(warm_up + steps)
        ]
        for chunks in made[:warm_up]:
            self.begin(chunks)
        self.drain()
        began = time.perf_counter()
        for chunks in made[warm_up:]:
            self.begin(chunks)
        self.drain()
        seconds = (time.perf_counter() - began) / steps
        self.drop(names)
        assert total <= self.plan.num_blocks
        return seconds, prefilled

    def prefill_seconds(self, tokens: int) -> float:
        """Of one prompt in one step, from order to answer."""
        began = time.perf_counter()
        names, _ = self._prefill(1, tokens, 1)
        seconds = time.perf_counter() - began
        self.drop(names)
        return seconds

    def _prefill(self, batch: int, prompt: int, more: int, *, adapted: bool = False) -> tuple[range, int]:
        """Sequence numbers, and the blocks given; whole prompts, as many in a step as fit."""
        each = -(-(prompt + more + 1) // BLOCK_SIZE)
        names = self.new_names(batch)
        at_once = max(1, self.model.buckets.tokens[-1] // prompt)
        ids = np.random.default_rng(prompt).integers(0, self.spec.vocab_size, prompt).tolist()
        for first in range(0, batch, at_once):
            some = range(first, min(batch, first + at_once))
            records = [
                SequenceRecord(
                    sequence=names[index], tokens=tuple(ids), prompt_tokens=prompt, sampling=GREEDY, stop_token_ids=(),
                    adapter=1 + index if adapted else 0,
                )
                for index in some
            ]  # fmt: skip
            chunks = [
                Chunk(
                    sequence=names[index], start=0, count=prompt, sample=True,
                    blocks=tuple(range(index * each, (index + 1) * each)),
                )
                for index in some
            ]  # fmt: skip
            self.begin(chunks, records)
        self.drain()
        return names, batch * each

    def new_names(self, count: int) -> range:
        """Sequence numbers that nobody has."""
        self._next += count
        return range(self._next - count, self._next)

    def drop(self, names: Iterable[int]) -> None:
        self.begin([], dropped=tuple(names))
        self.drain()

    def begin(
        self, chunks: Sequence[Chunk], new: Sequence[SequenceRecord] = (), dropped: tuple[int, ...] = (),
        copies: tuple[BlockCopy, ...] = (), heard: Heard = _no_one,
    ) -> None:  # fmt: skip
        """Launch a step; `heard` gets its results when it is finished. Raises Wrong where one before it failed."""
        self._steps += 1
        step = Step(step=self._steps, chunks=tuple(chunks), new=tuple(new), dropped=dropped, copies=copies)
        if len(self._pending) == IN_FLIGHT:
            self._finish()
        self._pending.append((self.stepper.begin_step(step), heard))

    def drain(self) -> None:
        while self._pending:
            self._finish()

    def _finish(self) -> None:
        pending, heard = self._pending.popleft()
        rows = pending.wait().rows
        faults = {row.error for row in rows if row.error}
        require(not faults, f"a step failed: {', '.join(faults)}")
        for row in rows:
            heard(row)
