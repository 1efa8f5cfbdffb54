"""Steps on a GPU: another thread waits for a step's answer, so the next step is launched meanwhile.

No step waits for the previous one, because drawn tokens stay on the device and are read there. With `STEPS_AHEAD`
answers outstanding, `begin_step` waits for one. A step with more rows of logits than fit runs in several
passes, and waits for all but the last. A step with a guided sequence waits for the answers of all steps before it:
the mask of a token needs the one before, and forced tokens are computed with it. Its mask is filled while the device
computes the layers.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import perf_counter

import torch

from ...protocol.steps import GrammarFailed, GrammarReady, PrepareGrammar, Row, Step, StepDone
from ..checkpoint.adapter import load_adapter
from ..errors import DoesNotFit, UnsupportedModel
from ..guides.grammars import GrammarStore
from ..stepper import PendingStep
from ..steps.adapters import LoadedAdapter, LoadedAdapters
from ..steps.sequences import Piece
from ..steps.steps import block_copies, collect, join, split, with_computed
from .adapters import DeviceAdapters
from .device import DeviceEvent
from .gpu import GpuModel
from .packet import HostBuffers
from .sequences import UNREAD, DeviceSequence, DeviceSequences, Pieces

STEPS_AHEAD = 2


class GpuStepper:
    """Owns the worker's sequences and everything on the device. One thread calls `begin_step`."""

    def __init__(self, model: GpuModel, grammars: GrammarStore | None = None) -> None:
        self._model = model
        self._grammars = grammars or GrammarStore(None, (), model.spec.vocab_size)
        self._adapters = LoadedAdapters()
        self._sequences = DeviceSequences(
            vocab_size=model.spec.vocab_size,
            max_model_len=model.sizes.max_model_len,
            max_step_tokens=model.buckets.tokens[-1],
            slots=model.sizes.slots,
            grammars=self._grammars,
            adapters=self._adapters,
        )
        self._unread: deque[_StepAnswer] = deque()  # of the last steps, those read already included
        self._free: queue.SimpleQueue[HostBuffers] = queue.SimpleQueue()
        for _ in range(STEPS_AHEAD):
            self._free.put(model.make_host_buffers())
        self._last_done = 0.0
        model.device.seal()

    def prepare_grammar(self, order: PrepareGrammar, answer: Callable[[GrammarReady | GrammarFailed], None]) -> None:
        self._grammars.prepare(order, answer)

    def read_adapter(self, number: int, path: str) -> Callable[[], None]:
        adapters = self._model.adapters
        if adapters is None:
            raise UnsupportedModel("adapter", path, "this worker was started without room for adapters")
        return partial(self.add_adapter, number, adapters, adapters.pack(load_adapter(Path(path), self._model.spec)))

    def add_adapter(self, number: int, adapters: DeviceAdapters, packed: torch.Tensor) -> None:
        """Copy what was packed to a free place. Raises DoesNotFit."""
        place = self._adapters.free_place(adapters.count)
        if place is None:
            raise DoesNotFit(f"there is room for {adapters.count} adapters, all of it taken: raise --max-loras")
        adapters.fill(place, packed)
        self._adapters.add(number, LoadedAdapter(place))

    def forget_adapter(self, number: int) -> None:
        self._adapters.forget(number)

    def progress(self) -> int:
        return 0  # a captured graph says nothing before its end

    def close(self) -> None:
        """Wait until the device has finished with our memory. A step has already reported any failure."""
        with suppress(Exception):
            self._model.device.synchronize()

    def begin_step(self, step: Step) -> PendingStep:
        began, model = perf_counter(), self._model
        if self._sequences.guides(step):
            for earlier in self._unread:
                earlier.read()
        pieces = self._sequences.apply(step)
        copies = block_copies(step)
        launching, host = perf_counter(), self._free.get()
        if step.copies:
            model.packet.copy_blocks(host, *copies)
        self._sequences.give_slots(pieces)
        model.install(host, pieces)
        results = list[Row]()
        buckets = model.buckets
        groups = list(split(as_first_computed(pieces), buckets.tokens[-1], buckets.rows[-1], buckets.chunks))
        for group in groups[:-1]:
            self._launch(host, group).wait()
            results += collect(group, host.sampled)
        last = groups[-1] if groups else []
        event = self._launch(host, last) if last else model.device.record()

        def wait() -> StepDone:
            try:
                event.wait()
                done = perf_counter()
                seconds = done - max(launching, self._last_done)
                self._last_done = done
                found = join([*results, *collect(last, host.sampled)])
                rows = tuple(with_computed(found, pieces, step.chunks))
            finally:
                self._free.put(host)
            allocations, compilations = model.device.growth()
            return StepDone(
                step=step.step,
                rows=rows,
                duration=perf_counter() - began,
                model_duration=seconds,
                device_allocations=allocations,
                device_compilations=compilations,
            )

        answer = _StepAnswer(wait)
        self._unread.append(answer)
        if len(self._unread) > STEPS_AHEAD:
            self._unread.popleft()
        return PendingStep(answer.read)

    def _launch(self, host: HostBuffers, pieces: Pieces) -> DeviceEvent:
        model = self._model
        rows = sum([piece.scored + piece.sample for piece in pieces])
        lengths = [piece.lead + piece.length for piece in pieces]
        strict = any(piece.state.strict for piece in pieces)
        adapted = any(piece.state.adapter is not None for piece in pieces)
        shape = model.buckets.shape(lengths, rows, strict=strict, adapted=adapted)
        event = model.launch(host, shape, pieces)
        for piece in pieces:
            if piece.sample:
                piece.state.drawn.append(UNREAD)
        return event


class _StepAnswer:
    """The answer of a launched step, read by the thread that waits for it, or earlier by a step that needs it."""

    def __init__(self, wait: Callable[[], StepDone]) -> None:
        self._wait = wait
        self._lock = threading.Lock()
        self._done: StepDone | None = None

    def read(self) -> StepDone:
        """Call it in the order of the steps. If it raises, it does so again."""
        with self._lock:
            if self._done is None:
                self._done = self._wait()
            return self._done


def as_first_computed(pieces: Iterable[Piece[DeviceSequence]]) -> Iterator[Piece[DeviceSequence]]:
    """The pieces of a step, drawn tokens of strict sequences in pieces of their own.

    Under strict determinism every token is always computed by the same kernels, whatever came between. Launches that
    do not depend on the batch are half of it (`PassShape.strict`). The other half is here: a prompt's tokens go through
    prefill and drawn ones through decode, whose sums have another order, also when a preempted sequence is computed
    again in chunks that mix them. A chunk of one token is a decode row to the kernels, so a prompt's chunk behind its
    first token begins one token earlier (`Piece.lead`) and writes the same keys and values there once more.
    """
    for piece in pieces:
        state, end = piece.state, piece.start + piece.length
        drawn = max(piece.start, state.prompt_tokens)
        if not state.strict or piece.length == 1 or end <= drawn:
            yield piece
            continue
        if piece.start < drawn:
            yield piece._replace(length=drawn - piece.start, sample=False)
        for position in range(drawn, end):
            yield piece._replace(start=position, length=1, sample=piece.sample and position == end - 1, scored=0)
