"""Runs the steps of an encoder or an embedding decoder: texts in, vectors out. A text comes and goes with its step."""

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ...protocol.steps import GrammarFailed, GrammarReady, PrepareGrammar, Row, SequenceRecord, Step, StepDone
from ..cpu.allowed_cores import AllowedCores
from ..errors import UnsupportedModel
from ..stepper import PendingStep
from .head import Head, apply_head
from .runner import Text

FloatArray = npt.NDArray[np.float32]


class TextRunner(Protocol):
    """What computes hidden states of texts: EncoderRunner, CausalRunner."""

    @property
    def max_texts(self) -> int:
        """Of one call of `forward`."""
        ...

    def forward(self, texts: Sequence[Text]) -> list[FloatArray]: ...
    def use_threads(self, threads: int) -> None: ...
    def progress(self) -> int: ...
    def close(self) -> None: ...


class EncoderStepper:
    """Owns the worker's texts, which only a preempted or cancelled request leaves behind until it is dropped."""

    def __init__(self, runner: TextRunner, head: Head, cores: AllowedCores | None = None) -> None:
        self._runner, self._head, self._cores = runner, head, cores
        self._texts: dict[int, Text] = {}

    def begin_step(self, step: Step) -> PendingStep:
        began = perf_counter()
        if self._cores is not None:
            self._cores.follow(began, self._runner.use_threads)
        for sequence in step.dropped:
            self._texts.pop(sequence, None)
        for record in step.new:
            self._texts[record.sequence] = text_of(record)
        chunks = [(chunk.sequence, self._texts.pop(chunk.sequence)) for chunk in step.chunks]
        seconds, rows = 0.0, list[Row]()
        for part in self._parts(chunks):
            start = perf_counter()
            hidden = self._runner.forward([text for _, text in part])
            seconds += perf_counter() - start
            rows += [self._row(sequence, states) for (sequence, _), states in zip(part, hidden, strict=True)]
        done = StepDone(step=step.step, rows=tuple(rows), duration=perf_counter() - began, model_duration=seconds)
        return PendingStep(lambda: done, computed=True)

    def prepare_grammar(self, order: PrepareGrammar, answer: Callable[[GrammarReady | GrammarFailed], None]) -> None:
        answer(GrammarFailed(grammar=order.grammar, message="this model makes vectors, no text"))

    def read_adapter(self, number: int, path: str) -> Callable[[], None]:
        raise UnsupportedModel("adapter", path, "LoRA adapters of embedding models are not supported")

    def forget_adapter(self, number: int) -> None:
        """There are none."""

    def progress(self) -> int:
        return self._runner.progress()

    def close(self) -> None:
        self._runner.close()

    def _parts(self, chunks: list[tuple[int, Text]]) -> Iterator[list[tuple[int, Text]]]:
        """As many texts at a time as the runner takes; nearly always all."""
        most = self._runner.max_texts
        for start in range(0, len(chunks), most):
            yield chunks[start : start + most]

    def _row(self, sequence: int, hidden: FloatArray) -> Row:
        vector = apply_head(self._head, hidden)
        if not np.isfinite(vector).all():
            return Row(sequence=sequence, error="nonfinite_logits")
        return Row(sequence=sequence, vector=vector.astype("<f4", copy=False).tobytes())


def text_of(record: SequenceRecord) -> Text:
    if not record.pooled:
        raise ValueError(f"sequence {record.sequence} is not pooled, and this is an encoder")
    return Text(np.array(record.tokens, np.int32), record.second)
