"""Runs a decoder on the CPU: packed weights, a paged KV cache, pinned threads, one compiled function per step.

Its interface is numpy arrays, no torch. A row's logits are bitwise the same whatever else is in the batch, however its
prompt was chunked, and for any number of threads and any blocks.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ...kernels.compile_cache import telling_compilations
from ...kernels.decoder_step.cpu import work
from ...kernels.decoder_step.shape import WINDOW
from ...kernels.decoder_step.stage import (
    BAD_BLOCK,
    BAD_LOGIT_ROW,
    BAD_POSITION,
    BAD_STARTS,
    BAD_TOKEN,
    OK,
    stage_adapters,
    stage_batch,
)
from ...kernels.embedding.cpu import BFLOAT16_TABLE, FLOAT32_TABLE, STORED_TABLE
from ...kernels.gemm.pack import padded
from ...kernels.gemm.tile import PANEL
from ...kernels.simd.formats import CACHE_TAGS, TAGS, WeightFormat
from ...kernels.threads.pool import WorkerPool
from ...kernels.threads.shares import Crew, state_bytes
from ...kernels.threads.waiting import stop_workers
from ...protocol.steps import LoadProgress, ReportProgress, ignore_progress
from ..checkpoint.adapter import AdapterWeights
from ..checkpoint.spec import ModelSpec
from ..checkpoint.stored import StoredMatrix, Weight
from ..checkpoint.weights import DecoderWeights
from .adapters import AdapterMemory, PackedAdapter, adapter_bytes, adapter_format
from .kept import KeptWeights
from .memory import NO_WINDOW, CpuSizes, RunnerMemory, make_shape
from .rotation import fill_rotations
from .rows import Batch
from .weights import PackedWeights

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]
BATCH_ARRAYS = ("tokens", "positions", "starts", "block_tables", "logit_rows")
FIRST_START = "compiling CPU kernels for this machine, once"
FAULTS = {
    BAD_STARTS: "starts must begin with 0, ascend strictly and end with the number of tokens",
    BAD_TOKEN: "tokens must be ids of the vocabulary",
    BAD_POSITION: "positions must be consecutive within a chunk and below max_model_len",
    BAD_BLOCK: "block_tables must have a block id below num_blocks for every position in use",
    BAD_LOGIT_ROW: "logit_rows must be indices into tokens",
}


class CpuRunner:
    """Only one thread at a time may call `forward` and `copy_blocks`."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: DecoderWeights,
        sizes: CpuSizes,
        report: ReportProgress = ignore_progress,
        kept: KeptWeights | None = None,
    ) -> None:
        for name in ("max_step_tokens", "max_logit_rows", "max_model_len", "threads", "num_blocks"):
            value: int = getattr(sizes, name)
            if value < 1:
                raise ValueError(f"{name} = {value}: must be at least 1")
        self.spec, self.sizes = spec, sizes
        shape = make_shape(spec, sizes, _embedding_kind(weights.embedding))
        held = RunnerMemory(spec, shape, sizes)
        fill_rotations(spec, held.rotation, held.weight_table)
        for row, layer in zip(held.weight_table, spec.layers, strict=False):  # the last row is the head's
            row[WINDOW] = layer.window or NO_WINDOW
        packed = PackedWeights(
            spec, shape, weights, sizes.weight_format, held, report, sizes.first_threads or sizes.threads, kept
        )
        memory = held.memory(packed.embedding)
        self._shape, self._memory = shape, held
        latent = None if held.latent is None else held.latent.memory
        tag, cache_tag = TAGS[sizes.weight_format], CACHE_TAGS[sizes.kv_format] if latent is None else None
        self._adapter_format: WeightFormat = adapter_format(sizes.weight_format)
        self._adapter_memory = AdapterMemory(shape, self._adapter_format, sizes.threads, held.staged.job)
        adapter_tag = TAGS[self._adapter_format] if sizes.adapters else None
        experts = None if held.experts is None else held.experts.memory

        def body(crew: Crew, _keep_alive: object = (packed, held)) -> None:
            work(tag, adapter_tag, cache_tag, crew, shape, memory, experts, latent, held.staged)

        def report_compilation(done: int, total: int) -> None:
            report(LoadProgress(stage=FIRST_START, done=done, total=total))

        report(LoadProgress(stage="loading kernels", done=0, total=1))
        with telling_compilations(report_compilation):
            run_stopped(body)  # compiles, or loads from the disk cache
        self._logits = held.logits[:0, : shape.vocab_size]
        self._pool = WorkerPool(0, body)
        self._warm_up()
        self._pool = pool = WorkerPool(sizes.threads, body, sizes.first_threads)
        self._close = weakref.finalize(self, pool.close)  # also when the runner is dropped, and at interpreter exit
        held.populate(pool.idle_seconds)
        report(LoadProgress(stage="loading kernels", done=1, total=1))

    def forward(self, batch: Batch) -> FloatArray:
        """Run one step; returns float32 logits [S, vocab], a view that the next step overwrites."""
        tokens, rows = batch.tokens.shape[0], batch.logit_rows.shape[0]
        if not 1 <= tokens <= self.sizes.max_step_tokens:
            raise ValueError(f"tokens: {tokens} in one step; from 1 to max_step_tokens = {self.sizes.max_step_tokens}")
        if rows > self.sizes.max_logit_rows:
            raise ValueError(f"logit_rows: {rows}, more than max_logit_rows = {self.sizes.max_logit_rows}")
        chunks = batch.starts.shape[0] - 1
        if batch.positions.shape[0] != tokens or not 1 <= chunks == batch.block_tables.shape[0]:
            raise ValueError("positions must be as long as tokens, starts one longer than block_tables")
        arrays = [_checked(batch, name) for name in BATCH_ARRAYS]
        fault, index = stage_batch(self._shape, self._memory.staged, *arrays)
        if fault != OK:
            raise ValueError(f"{FAULTS[fault]} (at index {index})")
        if batch.adapters is not None:
            if batch.adapters.shape != (chunks,):
                raise ValueError("adapters must be as long as block_tables")
            stage_adapters(self._memory.staged, batch.adapters)
        self._pool.run()
        if len(self._logits) != rows:  # otherwise the same object, which `CpuSampler.greedy` need not check again
            self._logits = self._memory.logits[:rows, : self._shape.vocab_size]
        return self._logits

    def hidden_states(self, rows: int) -> FloatArray:
        """[rows, hidden] of the last step's tokens, before the last norm: a view that the next step overwrites."""
        hidden = self._memory.arrays["hidden"].view(np.float32).reshape(-1, self._shape.hidden_padded)
        return hidden[:rows, : self._shape.hidden]

    def copy_blocks(self, sources: IntArray, targets: IntArray) -> None:
        """Copy KV blocks in every layer: targets[i] gets the content that sources[i] had before the call."""
        cache = self._memory.cache
        cache[:, targets] = cache[:, sources]

    def adapter_bytes(self, weights: AdapterWeights) -> int:
        """What loading this adapter would take, including working memory."""
        rank = padded(weights.rank, PANEL)
        packed = adapter_bytes(self._shape, weights, self._adapter_format)
        return packed + self._adapter_memory.bytes_for(rank)

    def pack_adapter(self, weights: AdapterWeights) -> PackedAdapter:
        """Also while a step runs. Raises ValueError if the runner's sizes say that there are no adapters."""
        if not self.sizes.adapters:
            raise ValueError("this runner was compiled without adapters: set `adapters` of its sizes")
        return PackedAdapter(self.spec, self._shape, weights, self._adapter_format)

    def add_adapter(self, packed: PackedAdapter) -> None:
        """Not while a step runs. Batches may then name its address as long as the object lives."""
        self._adapter_memory.hold(packed.rank)

    def use_threads(self, threads: int) -> None:
        """In the steps from now on; at most `threads` of the sizes. Not while a step runs. See WorkerPool.use."""
        self._pool.use(threads)

    def progress(self) -> int:
        """Grows while `forward` runs; for any thread."""
        return self._pool.progress()

    def close(self) -> None:
        """Stop the threads. Idempotent; not while a step runs."""
        self._close()

    def _warm_up(self) -> None:
        """Stage a step of one token, to compile what is left. No thread computes it: that would read all weights."""
        zero = np.zeros(1, np.int32)
        self.forward(
            Batch(
                tokens=zero,
                positions=zero,
                starts=np.array([0, 1], np.int32),
                block_tables=np.zeros((1, self._shape.table_width), np.int32),
                logit_rows=zero,
                adapters=np.zeros(1, np.int64) if self.sizes.adapters else None,
            )
        )


def _embedding_kind(embedding: Weight) -> int:
    if isinstance(embedding, StoredMatrix):
        return STORED_TABLE
    return BFLOAT16_TABLE if embedding.dtype == np.uint16 else FLOAT32_TABLE


def _checked(batch: Batch, name: str) -> IntArray:
    """The array in the type and layout of the compiled code: for any other, numba would compile a variant."""
    array: IntArray = getattr(batch, name)
    if array.dtype != np.int32 or array.ndim != (2 if name == "block_tables" else 1):
        raise ValueError(f"{name} is {array.ndim}-dimensional {array.dtype}; must be int32, as Batch describes it")
    flags = array.flags
    return array if flags.c_contiguous and flags.writeable and flags.aligned else array.copy()


def run_stopped(body: Callable[[Crew], None]) -> None:
    """Call a worker's body on a closing pool: it returns at once, but compiled, and so is the closing itself."""
    state = np.zeros(state_bytes(1) // 8, np.int64)
    stop_workers(state.ctypes.data)
    body(Crew(state=state.ctypes.data, thread=0, threads=1))
