"""Runs a decoder on the CPU: packed weights, a paged KV cache, pinned threads, one compiled function per step.

numpy arrays at the border, no torch. A row's logits are bitwise the same whatever else is in the batch, however its
prompt was chunked, for any number of threads and any blocks.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from ...kernels.compile_cache import telling_compilations
from ...kernels.decoder_step.cpu import work
from ...kernels.decoder_step.stage import (
    BAD_BLOCK,
    BAD_LOGIT_ROW,
    BAD_POSITION,
    BAD_STARTS,
    BAD_TOKEN,
    OK,
    stage_batch,
)
from ...kernels.rope.cpu import head_positions
from ...kernels.simd.formats import CACHE_TAGS, TAGS, CacheFormat, WeightFormat, default_cache_format
from ...kernels.threads.pool import WorkerPool
from ...kernels.threads.waiting import STATE_BYTES, stop_workers
from ..checkpoint.spec import ModelSpec
from ..checkpoint.weights import DecoderWeights
from ..rope import rope_tables
from ..steps.batch import Batch
from .memory import Limits, MemoryPlan, Workspace, check_block_size, make_shape, memory_plan
from .weights import PackedWeights

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]
FIRST_START = "compiling CPU kernels for this machine, once"
FAULTS = {
    BAD_STARTS: "starts must begin with 0, ascend strictly and end with the number of tokens",
    BAD_TOKEN: "tokens must be ids of the vocabulary",
    BAD_POSITION: "positions must be consecutive within a chunk and below max_model_len",
    BAD_BLOCK: "block_tables must have a block id below num_blocks for every position in use",
    BAD_LOGIT_ROW: "logit_rows must be indices into tokens",
}

__all__ = ["CpuRunner", "MemoryPlan", "memory_plan"]


class CpuRunner:
    """`forward` and `copy_blocks` are for one thread at a time."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: DecoderWeights,
        *,
        weight_format: WeightFormat,
        cache_format: CacheFormat | None = None,
        num_blocks: int,
        block_size: int = 64,
        max_step_tokens: int,
        max_logit_rows: int,
        max_model_len: int,
        threads: int,
        on_progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        check_block_size(block_size)
        limits = Limits(max_step_tokens, max_logit_rows, max_model_len, threads, num_blocks)
        for name, value in limits._asdict().items():
            if value < 1:
                raise ValueError(f"{name} = {value}: must be at least 1")
        self._limits = limits
        embedding = np.ascontiguousarray(weights.embedding)
        cache_format = cache_format or default_cache_format(weight_format)
        in_bfloat16 = embedding.dtype == np.uint16
        shape = make_shape(spec, weight_format, cache_format, limits, embedding_is_bfloat16=in_bfloat16)
        workspace = Workspace(shape, limits)
        _fill_rotation(workspace.rotation, rope_tables(spec, max_model_len), shape.head_dim)
        progress = on_progress or _ignore
        packing = partial(progress, "packing weights")
        packed = PackedWeights(shape, weights, weight_format, workspace.weight_table, packing)
        memory = workspace.memory(embedding.ctypes.data)
        self._shape, self._workspace = shape, workspace
        tag, cache_tag = TAGS[weight_format], CACHE_TAGS[cache_format]

        def body(thread: int, threads: int, state: int, _keep_alive: object = (packed, embedding, workspace)) -> None:
            work(tag, cache_tag, thread, threads, state, shape, memory, workspace.staged)

        progress("loading kernels", 0, 1)
        with telling_compilations(partial(progress, FIRST_START)):
            _run_stopped(body)  # compiles, or loads from the disk cache
        pool = WorkerPool(threads, body)
        self._pool = pool
        self._logits = workspace.logits[:0, : shape.vocab_size]
        self._close = weakref.finalize(self, pool.close)  # also when the runner is dropped, and at interpreter exit
        workspace.populate()
        self._warm_up()
        progress("loading kernels", 1, 1)

    memory_plan = staticmethod(memory_plan)

    def forward(self, batch: Batch) -> FloatArray:
        """Run one step; float32 logits [S, vocab], a view that the next step overwrites."""
        tokens, rows = batch.tokens.shape[0], batch.logit_rows.shape[0]
        if not 1 <= tokens <= self._limits.step_tokens:
            raise ValueError(f"tokens: {tokens} in one step; from 1 to max_step_tokens = {self._limits.step_tokens}")
        if rows > self._limits.logit_rows:
            raise ValueError(f"logit_rows: {rows}, more than max_logit_rows = {self._limits.logit_rows}")
        chunks = batch.starts.shape[0] - 1
        if batch.positions.shape[0] != tokens or not 1 <= chunks == batch.block_tables.shape[0]:
            raise ValueError("positions must be as long as tokens, starts one longer than block_tables")
        arrays = [_checked(batch, name) for name in batch.__struct_fields__]
        fault, index = stage_batch(self._shape, self._workspace.staged, *arrays)
        if fault != OK:
            raise ValueError(f"{FAULTS[fault]} (at index {index})")
        self._pool.run()
        if len(self._logits) != rows:  # else the same object: whoever knows it need not look at it again
            self._logits = self._workspace.logits[:rows, : self._shape.vocab_size]
        return self._logits

    def copy_blocks(self, sources: IntArray, targets: IntArray) -> None:
        """Copy KV blocks, in every layer: targets[i] becomes what sources[i] was before the call."""
        cache = self._workspace.cache
        cache[:, targets] = cache[:, sources]

    def close(self) -> None:
        """Stop the threads. Idempotent; not while a step runs."""
        self._close()

    def _warm_up(self) -> None:
        """One step of one token: compiles what is left. What it writes into block 0 is never read."""
        zero = np.zeros(1, np.int32)
        self.forward(
            Batch(
                tokens=zero,
                positions=zero,
                starts=np.array([0, 1], np.int32),
                block_tables=np.zeros((1, self._shape.table_width), np.int32),
                logit_rows=zero,
            )
        )


def _checked(batch: Batch, name: str) -> IntArray:
    """The array as the compiled code knows it: another type or layout would make numba compile a new variant."""
    array: IntArray = getattr(batch, name)
    if array.dtype != np.int32 or array.ndim != (2 if name == "block_tables" else 1):
        raise ValueError(f"{name} is {array.ndim}-dimensional {array.dtype}; must be int32, as Batch describes it")
    flags = array.flags
    return array if flags.c_contiguous and flags.writeable and flags.aligned else array.copy()


def _run_stopped(body: Callable[[int, int, int], None]) -> None:
    """Call a worker's body on a pool that is closing already: it returns at once, compiled; so is what closes it."""
    state = np.zeros(STATE_BYTES // 8, np.int64)
    stop_workers(state.ctypes.data)
    body(0, 1, state.ctypes.data)


def _fill_rotation(target: FloatArray, tables: FloatArray, head_dim: int) -> None:
    """Spread cosines and sines to the padded halves of a head; the padding stays zero."""
    target[:, head_positions(head_dim)] = tables


def _ignore(stage: str, done: int, total: int) -> None:
    pass
