"""Time the dot products that the kernels are made of, on pinned threads: the rate that no step can pass.

A turn multiplies SIDE vectors of weights by SIDE words of activations, all of them in the L1 cache. The sums stay in
registers, with as many of them as hide an instruction's latency.
"""

from __future__ import annotations

import time
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from ..kernels.compile_cache import compiled
from ..kernels.simd import dot
from ..kernels.simd.formats import TAGS, Tag
from ..kernels.simd.functions import Values, loop, written_kernel
from ..kernels.simd.lanes import LANES, VECTOR_BYTES, VI, at, i32, int64, load, scaled, store
from ..kernels.simd.target import has, wide_registers
from ..kernels.threads.pool import WorkerPool
from ..kernels.threads.shares import NOTHING, Crew, end_job, stage_before, take, wait_for_job
from ..kernels.threads.waiting import NO_JOB

UnitFormat = Literal["int8", "bfloat16", "float32"]
UNIT_FORMATS: Final[tuple[UnitFormat, ...]] = ("int8", "bfloat16", "float32")
SIDE: Final = 4 if wide_registers() else 2  # 16 sums in 32 registers, or 4 sums of two registers each in 16
TURNS: Final = 250_000  # a millisecond
ROUNDS: Final = 41  # so short that some meet no other program
_PLACES: Final = 8  # a turn takes the next of so many, or the compiler would take the products out of the loop
_WORD_BYTES: Final = 8  # of activations: a word, and for pairs of bfloat16 that are widened a second one
_WORDS: Final = _PLACES * SIDE * VECTOR_BYTES
_SUMS: Final = _WORDS + _PLACES * SIDE * _WORD_BYTES
_THREAD_BYTES: Final = 8192
_ONES: Final[dict[UnitFormat, int]] = {"int8": 0x01010101, "bfloat16": 0x3F803F80, "float32": 0x3F800000}


def _write(b: ir.IRBuilder, weight_format: str, address: ir.Value, turns: ir.Value) -> None:
    broadcast = dot.broadcast_format(weight_format)
    parts = dot.K_PER_STEP[weight_format] // dot.K_PER_STEP[broadcast]

    def turn(index: ir.Value, totals: Values) -> Values:
        place, sums = b.and_(index, int64(_PLACES - 1)), list[ir.Value]()
        words = at(b, scaled(b, address, place, SIDE * _WORD_BYTES), _WORDS)
        xs = [
            [load(b, at(b, words, row * _WORD_BYTES + part * 4), i32) for part in range(parts)] for row in range(SIDE)
        ]
        for number in range(SIDE):
            own = totals[number * SIDE : (number + 1) * SIDE]
            w = load(b, at(b, scaled(b, address, place, SIDE * VECTOR_BYTES), number * VECTOR_BYTES), VI, 64)
            if weight_format == "int8":
                for total, row in zip(own, xs, strict=True):  # each by itself: not in pairs of rows
                    sums += dot.code_steps(b, [total], [w], [row], 8)
                continue
            for part in range(parts):
                value = w if parts == 1 else dot.half_of(b, w, part)
                own = [dot.step(b, broadcast, total, value, x[part]) for total, x in zip(own, xs, strict=True)]
            sums += own
        return sums

    totals = loop(b, turns, [dot.zero(weight_format)] * SIDE**2, turn)
    for number, total in enumerate(totals):
        store(b, total, at(b, address, _SUMS + number * VECTOR_BYTES))


_products = written_kernel("dot_speed", "ii", _write)


@compiled
def multiply(tag: Tag, crew: Crew, address: int, turns: int) -> None:
    """A worker's body: every job is so many turns, on operands of its own."""
    job, part = int(NO_JOB), int(NOTHING)
    while True:
        job = wait_for_job(crew, job)
        if job < 0:
            return
        stage = stage_before(job, 0) + 1
        while True:
            part = take(crew, stage, crew.threads, part)
            if part < 0:
                break
            _products(tag, address + part * _THREAD_BYTES, turns)
        end_job(crew, job, stage, 0)


class Multiplier:
    """Multiplies ones in one format; a job is `operations`, over all threads."""

    def __init__(self, weight_format: UnitFormat, threads: int, turns: int = TURNS) -> None:
        memory = np.zeros(threads * _THREAD_BYTES + 64, np.uint8)
        self.values: npt.NDArray[np.uint8] = memory[-memory.ctypes.data % 64 :][: threads * _THREAD_BYTES]
        self.values.view(np.int32)[:] = _ONES[weight_format]
        self.operations = 2 * threads * turns * SIDE**2 * LANES * dot.K_PER_STEP[weight_format]
        tag, address = TAGS[weight_format], self.values.ctypes.data

        def body(crew: Crew) -> None:
            multiply(tag, crew, address, turns)

        self._pool = WorkerPool(threads, body)
        self.run, self.close = self._pool.run, self._pool.close

    def sums(self) -> npt.NDArray[np.int32]:
        """[threads, SIDE², LANES] after a job: its results, as the format has them."""
        size = SIDE**2 * VECTOR_BYTES
        return self.values.reshape(-1, _THREAD_BYTES)[:, _SUMS : _SUMS + size].copy().view(np.int32)


def operations_per_second(weight_format: UnitFormat, threads: int, turns: int = TURNS, rounds: int = ROUNDS) -> float:
    """The best of the rounds: others on the machine only slow it down. A multiplication and an addition are two."""
    multiplier = Multiplier(weight_format, threads, turns)
    multiplier.run()  # compiles, and meets threads that do not run yet
    times: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        multiplier.run()
        times.append(time.perf_counter() - start)
    multiplier.close()
    return multiplier.operations / min(times)


def instruction(weight_format: UnitFormat) -> str:
    """What the kernels multiply this format with here, as kernels/simd/dot.py chooses it."""
    width = "512 bits" if wide_registers() else "256 bits"
    if has("neon"):
        bytes_product = "USDOT" if has("i8mm") else "SDOT" if has("dotprod") else "SADDLP"
        pairs_product = "BFDOT" if weight_format == "bfloat16" and dot.multiplies_pairs() else "FMLA"
        return f"{bytes_product if weight_format == 'int8' else pairs_product}, 128 bits"
    if weight_format == "int8":
        if has("avx512vnni") and wide_registers():
            return "VPDPBUSD, 512 bits"
        if has("avxvnni"):
            return "VPDPBUSD, 256 bits"
        return "VPMADDWD, 256 bits" if has("avx2") else "no vector of bytes"
    if weight_format == "bfloat16" and dot.multiplies_pairs():
        return "VDPBF16PS, 512 bits"
    return f"VFMADD231PS, {width}" if has("fma") else "multiply and add"
