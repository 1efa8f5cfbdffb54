"""Runs steps on the CPU, each to its end: sequences in and out, block copies, forward pass, sampling."""

from time import perf_counter

from ...kernels.sampling.launch import CpuSampler
from ...protocol.steps import Row, Step, StepDone
from ..stepper import PendingStep
from ..steps.sequences import SequenceState, SequenceTable
from ..steps.steps import block_copies, collect, join, split
from .cpu import CpuRunner
from .rows import SteadyRows, make_rows


class CpuStepper:
    """Owns the worker's sequences; the runner owns their keys and values. Compiles the sampler when it is made."""

    def __init__(self, runner: CpuRunner) -> None:
        vocab_size, sizes = runner.spec.vocab_size, runner.sizes
        self._runner, self._sizes, self._table_width = runner, sizes, sizes.table_width
        self._sequences = SequenceTable(SequenceState, vocab_size=vocab_size, max_model_len=sizes.max_model_len)
        self._steady: SteadyRows | None = None  # of the last step, if the next one may reuse its rows
        self._sampler = CpuSampler(vocab_size, sizes.threads)
        self._sampler.warm_up()

    def begin_step(self, step: Step) -> PendingStep:
        began = perf_counter()
        rows, seconds = self._compute(step)
        done = StepDone(step=step.step, rows=tuple(rows), duration=perf_counter() - began, model_duration=seconds)
        return PendingStep(lambda: done, computed=True)

    def close(self) -> None:
        self._runner.close()

    def _compute(self, step: Step) -> tuple[list[Row], float]:
        """A step's answer, and the seconds spent in forward passes."""
        steady, self._steady = self._steady, None
        if steady is not None:
            if not (step.dropped or step.new or step.copies) and steady.advance(step.chunks):
                return self._go_on(steady)
            steady.settle()
        pieces = self._sequences.apply(step)
        if step.copies:
            self._runner.copy_blocks(*block_copies(step))
        seconds, results = 0.0, list[Row]()
        for group in split(pieces, self._sizes.max_step_tokens, self._sizes.max_logit_rows):
            batch, rows = make_rows(group, self._table_width)
            began = perf_counter()
            logits = self._runner.forward(batch)
            seconds += perf_counter() - began
            sampled = self._sampler.sample(logits, rows)
            results += collect(group, sampled)
            if len(group) == len(step.chunks):
                self._steady = SteadyRows.after(group, batch, rows, sampled)
        return list(join(results)), seconds

    def _go_on(self, steady: SteadyRows) -> tuple[list[Row], float]:
        """Run a step of the last step's sequences, each with the token just drawn."""
        began = perf_counter()
        logits = self._runner.forward(steady.batch)
        seconds = perf_counter() - began
        sampled = self._sampler.greedy(logits) if steady.greedy else self._sampler.sample(logits, steady.rows)
        results = steady.collect(sampled)
        if results is None:
            steady.settle()
            return collect(steady.pieces, sampled), seconds
        self._steady = steady
        return results, seconds
