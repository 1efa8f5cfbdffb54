"""One step from order to answer: sequences in and out, block copies, the forward pass, the draw.

A step that wants more rows of logits than the runner has room for (log probabilities of a long prompt) is run as
several forward passes: runners give the same logits however a prompt is cut.
"""

from collections.abc import Iterable, Iterator
from time import perf_counter

import numpy as np

from ...kernels.sampling.launch import CpuSampler
from ..host import usable_cores
from ..load import LoadedModel, OverlappedRunner, Runner
from .rows import Piece, RowStore
from .steady_rows import SteadyRows
from .step import ChunkResult, StepResult, StepWork


class Stepper:
    """Owns the worker's sequences; the runner owns the device. One thread calls it. Compiles when it is made."""

    def __init__(
        self,
        runner: Runner,
        *,
        vocab_size: int,
        block_size: int,
        max_model_len: int,
        max_step_tokens: int,
        max_logit_rows: int,
        threads: int = 1,
    ) -> None:
        self._runner = runner
        self._max_rows = max_logit_rows
        self._max_tokens = max_step_tokens
        self._block_size = block_size
        self._steady: SteadyRows | None = None  # of the last step, if the next may go on with its rows
        self._store = RowStore(vocab_size=vocab_size, block_size=block_size, max_model_len=max_model_len)
        self._sampler = CpuSampler(vocab_size, threads)
        self._sampler.warm_up()

    @classmethod
    def of(cls, model: LoadedModel, threads: int | None = None) -> "Stepper":
        """`threads` as in `load_runner`."""
        plan, runner = model.plan, model.runner
        assert not isinstance(runner, OverlappedRunner), "it steps itself"
        return cls(
            runner,
            vocab_size=model.spec.vocab_size,
            block_size=plan.block_size,
            max_model_len=plan.max_model_len,
            max_step_tokens=plan.max_step_tokens,
            max_logit_rows=plan.max_logit_rows,
            threads=usable_cores() if threads is None else threads,
        )

    def run(self, step: StepWork) -> StepResult:
        steady, self._steady = self._steady, None
        if steady is not None:
            if not (step.dropped or step.new or step.copies) and steady.advance(step.chunks):
                return self._go_on(steady)
            steady.settle()
        for sequence in step.dropped:
            self._store.drop(sequence)
        for record in step.new:
            self._store.add(record)
        if step.copies:
            sources, targets = zip(*((copy.source, copy.target) for copy in step.copies), strict=True)
            self._runner.copy_blocks(np.array(sources, np.int32), np.array(targets, np.int32))
        pieces = [self._store.piece(chunk) for chunk in step.chunks]
        seconds, results = 0.0, list[ChunkResult]()
        for group in split(pieces, self._max_tokens, self._max_rows):
            batch = self._store.batch(group)
            began = perf_counter()
            logits = self._runner.forward(batch)
            seconds += perf_counter() - began
            rows = self._store.sampling_rows(group)
            sampled = self._sampler.sample(logits, rows)
            results += self._store.collect(group, rows, sampled)
            if len(group) == len(step.chunks):
                self._steady = SteadyRows.after(group, batch, rows, sampled, self._block_size)
        return StepResult(tuple(join(results)), seconds)

    def _go_on(self, steady: SteadyRows) -> StepResult:
        """A step of the last one's sequences, each by the token just drawn."""
        began = perf_counter()
        logits = self._runner.forward(steady.batch)
        seconds = perf_counter() - began
        sampled = self._sampler.greedy(logits) if steady.greedy else self._sampler.sample(logits, steady.rows)
        results = steady.collect(sampled)
        if results is None:
            steady.settle()
            results = self._store.collect(steady.pieces, steady.rows, sampled)
        else:
            self._steady = steady
        return StepResult(tuple(results), seconds)


def split(
    pieces: Iterable[Piece], max_tokens: int, max_rows: int, max_pieces: int | None = None
) -> Iterator[list[Piece]]:
    """Cut pieces into groups that fit one forward pass; almost always there is one group."""
    group: list[Piece] = []
    tokens = rows = 0
    for piece in pieces:
        rest: Piece | None = piece
        while rest is not None:
            size, wanted, full = rest.lead + rest.length, rest.scored + rest.sample, len(group) == max_pieces
            if tokens + size <= max_tokens and rows + wanted <= max_rows and not full:
                group.append(rest)
                tokens, rows, rest = tokens + size, rows + wanted, None
                continue
            # Every token of the head takes a row at most, so `room` tokens fit whatever they want.
            room = min(max_tokens - tokens - rest.lead, max_rows - rows, rest.length - 1)
            if room > 0 and not full:
                head = rest._replace(length=room, sample=False, scored=min(room, rest.scored))
                group.append(head)
                rest = rest._replace(
                    start=rest.start + room, length=rest.length - room, scored=rest.scored - head.scored
                )
            yield group
            group, tokens, rows = [], 0, 0
    if group:
        yield group


def join(results: list[ChunkResult]) -> Iterator[ChunkResult]:
    """Put the results of one chunk's pieces, which follow each other, back together."""
    last: ChunkResult | None = None
    for result in results:
        if last is not None and last.sequence == result.sequence:
            last = ChunkResult(
                sequence=last.sequence,
                tokens=last.tokens + result.tokens,
                logprobs=last.logprobs + result.logprobs,
                prompt_logprobs=last.prompt_logprobs + result.prompt_logprobs,
                error=last.error or result.error,
            )
            continue
        if last is not None:
            yield last
        last = result
    if last is not None:
        yield last
