"""Steps on a GPU: `begin` launches one, its answer is waited for elsewhere, so the next is launched meanwhile.

Nothing of a step waits for the one before: drawn tokens stay on the device and are read there. At most `STEPS_AHEAD`
answers are outstanding; `begin` then waits for one. A step that wants more rows of logits than there is room for (log
probabilities of a long prompt) runs in several passes, each waited for but the last.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter

import numpy as np

from ..steps.rows import Piece
from ..steps.step import ChunkResult, StepResult, StepWork
from ..steps.steps import join, split
from .answers import collect
from .device import Event, Growth
from .gpu import GpuModel
from .packet import Exchange
from .sequences import UNREAD, SequenceTable, states_of
from .strict import as_first_computed

STEPS_AHEAD = 2


class PendingStep:
    """A step that was launched. `finish` is called once, from any one thread, in the order of the steps."""

    def __init__(self, finish: Callable[[], StepResult]) -> None:
        self._finish = finish

    def finish(self) -> StepResult:
        """Wait for the device and read the answer."""
        return self._finish()


class GpuStepper:
    """Owns the worker's sequences and everything on the device. One thread calls `begin`."""

    def __init__(self, model: GpuModel) -> None:
        self._model = model
        self._table = SequenceTable(
            vocab_size=model.spec.vocab_size,
            block_size=model.block_size,
            max_model_len=model.max_model_len,
            slots=model.slots,
        )
        self._free: queue.SimpleQueue[Exchange] = queue.SimpleQueue()
        for _ in range(STEPS_AHEAD):
            self._free.put(model.make_exchange())
        self._last_done = 0.0
        model.device.seal()

    def growth(self) -> Growth:
        """Allocations and compilations since loading; both must stay zero."""
        return self._model.device.growth()

    def close(self) -> None:
        """Wait until the device is done with our memory. If it failed, a step has said so."""
        with suppress(Exception):
            self._model.device.synchronize()

    def begin(self, step: StepWork) -> PendingStep:
        for sequence in step.dropped:
            self._table.drop(sequence)
        for record in step.new:
            self._table.add(record)
        pieces = [self._table.piece(chunk) for chunk in step.chunks]
        copies = [(copy.source, copy.target) for copy in step.copies]
        if {source for source, _ in copies} & {target for _, target in copies}:
            raise ValueError("copies: a block is source and target in one step; send the second copy with the next one")
        began, exchange = perf_counter(), self._free.get()
        if copies:
            sources, targets = np.array(copies, np.int32).T
            self._model.packet.copy_blocks(exchange, sources, targets)
        self._table.give_slots(pieces)
        self._model.install(exchange, pieces)
        results = list[ChunkResult]()
        buckets = self._model.buckets
        groups = list(split(as_first_computed(pieces), buckets.tokens[-1], buckets.rows[-1], buckets.chunks))
        for group in groups[:-1]:
            self._launch(exchange, group).wait()
            results += collect(exchange, group)
        last = groups[-1] if groups else []
        event = self._launch(exchange, last) if last else self._model.device.record()

        def finish() -> StepResult:
            try:
                event.wait()
                done = perf_counter()
                seconds = done - max(began, self._last_done)
                self._last_done = done
                return StepResult(tuple(join([*results, *collect(exchange, last)])), seconds)
            finally:
                self._free.put(exchange)

        return PendingStep(finish)

    def _launch(self, exchange: Exchange, pieces: list[Piece]) -> Event:
        model, states = self._model, states_of(pieces)
        rows = sum([piece.scored + piece.sample for piece in pieces])
        lengths = [piece.lead + piece.length for piece in pieces]
        shape = model.buckets.shape(lengths, rows, strict=any(state.strict for state in states))
        event = model.launch(exchange, shape, pieces)
        for piece, state in zip(pieces, states, strict=True):
            if piece.sample:
                state.drawn.append(UNREAD)
        return event
