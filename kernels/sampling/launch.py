"""The sampler's interface: checks, owns the scratch memory, launches the compiled kernel.

A greedy row takes a few microseconds, a drawn one up to 80. So drawn rows are split into ranges for several threads,
each of which calls the same compiled function, which holds no lock. A row's token does not depend on the split. As in
the kernels' pool, the threads are pinned and the caller sleeps: unpinned, a woken thread lands on its waker's core.
"""

import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ..threads.cores import own_cores
from .numbers import GREEDY_BELOW
from .rows import MAX_TOP, ROW, Float32Array, Sampled, SamplingRows, mask_words

ROWS_WORTH_A_THREAD = 2  # drawn rows, 160 us: several times the cost of waking a thread and waiting for it


class _Flat:
    """Rows of logits as one flat array, and the same memory as int32. A runner's address is the same in every step."""

    def __init__(self, logits: Float32Array) -> None:
        count, width = logits.shape
        self.stride = logits.strides[0] // 4
        self.values = as_strided(logits, ((count - 1) * self.stride + width,), (4,))
        self.bits = self.values.view(np.int32)
        self._shape, self._strides, self._data = logits.shape, logits.strides, logits.__array_interface__["data"]

    def is_of(self, logits: Float32Array) -> bool:
        """Whether these are its rows. `values` keeps its memory alive, so the same address is the same array."""
        same = logits.shape == self._shape and logits.strides == self._strides
        return same and logits.__array_interface__["data"] == self._data


class _Scratch:
    """The working memory of one thread, for one row."""

    def __init__(self, vocab_size: int) -> None:
        row = np.empty(vocab_size, np.float32)
        weights, candidates, held = (np.empty(vocab_size, np.int32) for _ in range(3))
        self.arrays = (
            row, row.view(np.int32), weights, candidates, held, np.empty(256, np.uint32), np.empty((4, 64), np.uint32)
        )  # fmt: skip


class _SamplerThread:
    """A thread that runs one job after another. A daemon: the interpreter can exit at any time."""

    def __init__(self, core: int | None) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._ends: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        threading.Thread(target=_work, args=(self._jobs, self._ends, core), name="triolet-sampler", daemon=True).start()

    def start(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def wait(self) -> BaseException | None:
        """Wait until the last job has ended; returns what it raised."""
        return self._ends.get()


def _work(
    jobs: "queue.SimpleQueue[Callable[[], None]]", ends: "queue.SimpleQueue[BaseException | None]", core: int | None
) -> None:
    if core is not None:
        with suppress(OSError):  # the process has just lost this core
            os.sched_setaffinity(0, {core})
    while True:
        try:
            jobs.get()()
        except BaseException as error:
            ends.put(error)
        else:
            ends.put(None)


def _room_for(count: int) -> Sampled:
    return Sampled(
        tokens=np.zeros(count, np.int32),
        status=np.zeros(count, np.uint8),
        logprobs=np.zeros(count, np.float32),
        ranks=np.zeros(count, np.int32),
        top_tokens=np.zeros((count, MAX_TOP), np.int32),
        top_logprobs=np.zeros((count, MAX_TOP), np.float32),
    )


class CpuSampler:
    """Samples rows of logits of one vocabulary size, with a limited number of threads. One caller at a time."""

    def __init__(self, vocab_size: int, threads: int = 1) -> None:
        self.vocab_size = vocab_size
        self.threads = threads  # may change between calls
        self._scratch = [_Scratch(vocab_size)]
        self._workers: list[_SamplerThread] = []  # made on first use
        self._process = os.getpid()
        self._flat = _Flat(np.zeros((1, vocab_size), np.float32))
        self._greedy_rows: Callable[..., None] | None = None  # compiles or loads from the cache on first use
        self._greedy_of = np.zeros((0, vocab_size), np.float32)
        self._greedy_flat, self._greedy = self._flat, _room_for(0)

    def sample(self, logits: Float32Array, batch: SamplingRows) -> Sampled:
        """Draw one token per row of `logits` [S, vocab]; `reference.py` is the definition. The logits are only read.

        Rows may be further apart than `vocab` (a runner pads them), but each must be contiguous.
        """
        self._check(logits, count := len(batch.rows))
        if batch.mask_lines.size and batch.masks.shape[1] != mask_words(self.vocab_size):
            raise ValueError(f"expected masks of {mask_words(self.vocab_size)} words, got {batch.masks.shape}")
        result = _room_for(count)
        if count == 0:
            return result
        if not self._flat.is_of(logits):
            self._flat = _Flat(logits)
        parts = self._parts(batch.rows)
        if parts == 1:
            self._run(batch, result, 0, 0, count)
            return result
        cuts = [count * part // parts for part in range(parts + 1)]
        workers = self._workers[:parts]
        for part, worker in enumerate(workers):
            worker.start(partial(self._run, batch, result, part, cuts[part], cuts[part + 1]))
        errors = [error for worker in workers if (error := worker.wait())]  # wait for all: they write into the result
        if errors:
            raise errors[0]
        return result

    def greedy(self, logits: Float32Array) -> Sampled:
        """`sample` for rows that are all greedy, without penalties, bias, bans, masks or scores.

        If called with the same array again, it skips its checks and overwrites its last answer.
        """
        if logits is not self._greedy_of or self._greedy_rows is None:
            from . import cpu

            self._check(logits, count := len(logits))
            if not count:
                return _room_for(0)
            self._greedy_rows = cpu.greedy_rows
            self._greedy_of, self._greedy_flat, self._greedy = logits, _Flat(logits), _room_for(count)
        flat, result = self._greedy_flat, self._greedy
        self._greedy_rows(flat.bits, flat.stride, self.vocab_size, result.tokens, result.status)
        return result

    def _check(self, logits: Float32Array, count: int) -> None:
        if logits.shape != (count, self.vocab_size) or logits.dtype != np.float32 or logits.strides[1] != 4:
            raise ValueError(f"expected float32 logits [{count}, {self.vocab_size}], got {logits.dtype} {logits.shape}")

    def _parts(self, rows: np.ndarray) -> int:
        """How many ranges the rows are split into; makes workers for them."""
        if self.threads == 1 or len(rows) < 2 * ROWS_WORTH_A_THREAD:
            return 1
        costly = np.count_nonzero((rows["temperature"] >= GREEDY_BELOW) | (rows["top"] >= 0))
        parts = min(self.threads, int(costly) // ROWS_WORTH_A_THREAD)
        if parts <= 1:
            return 1
        if self._process != os.getpid():  # a forked child has none of its parent's threads
            self._workers, self._process = [], os.getpid()
        cores = own_cores() if len(self._workers) < parts else []
        while len(self._workers) < parts:
            self._workers.append(_SamplerThread(cores[len(self._workers)] if self.threads <= len(cores) else None))
        while len(self._scratch) < parts:
            self._scratch.append(_Scratch(self.vocab_size))
        return parts

    def _run(self, batch: SamplingRows, result: Sampled, part: int, first: int, last: int) -> None:
        """Sample rows [first, last) with the memory of one thread."""
        from . import cpu  # compiles or loads from the cache on first use: see warm_up

        flat, rows = self._flat, slice(first, last)
        start = first * flat.stride
        cpu.sample_rows(
            flat.values[start:], flat.bits[start:], flat.stride, self.vocab_size, batch.rows[rows],
            batch.seen_starts[first:], batch.seen_tokens, batch.seen_counts,
            batch.bias_starts[first:], batch.bias_tokens, batch.bias_values,
            batch.banned_starts[first:], batch.banned_tokens, batch.mask_lines[first:], batch.masks,
            *self._scratch[part].arrays,
            result.tokens[rows], result.status[rows], result.logprobs[rows], result.ranks[rows],
            result.top_tokens[rows], result.top_logprobs[rows],
        )  # fmt: skip

    def warm_up(self) -> None:
        """Compile the kernels, or load them from the disk cache: nothing compiles after this."""
        logits = np.zeros((1, self.vocab_size), np.float32)
        self.sample(logits, SamplingRows(np.zeros(1, ROW)))
        self.greedy(logits)
