"""Runs steps on the CPU, each to its end: sequences in and out, block copies, forward pass, sampling."""

from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from ...kernels.sampling.launch import CpuSampler
from ...protocol.steps import GrammarFailed, GrammarReady, PrepareGrammar, Row, Step, StepDone
from ..checkpoint.adapter import load_adapter
from ..errors import DoesNotFit
from ..guides.grammars import GrammarStore
from ..guides.masks import MaskThread
from ..host import available_memory
from ..memory_plan import SHARE, size
from ..stepper import PendingStep
from ..steps.adapters import LoadedAdapter, LoadedAdapters
from ..steps.sequences import SequenceState, SequenceTable
from ..steps.steps import block_copies, collect, join, split, with_computed
from .allowed_cores import AllowedCores
from .cpu import CpuRunner
from .rows import SteadyRows, add_masks, make_rows


class CpuStepper:
    """Owns the worker's sequences; the runner owns their keys and values. Compiles the sampler when it is made."""

    def __init__(
        self, runner: CpuRunner, grammars: GrammarStore | None = None, cores: AllowedCores | None = None
    ) -> None:
        vocab_size, sizes = runner.spec.vocab_size, runner.sizes
        self._runner, self._sizes, self._table_width, self._cores = runner, sizes, sizes.table_width, cores
        self._grammars = grammars or GrammarStore(None, (), vocab_size)
        self._adapters = LoadedAdapters()
        self._sequences = SequenceTable(
            SequenceState,
            vocab_size=vocab_size,
            max_model_len=sizes.max_model_len,
            max_step_tokens=sizes.max_step_tokens,
            grammars=self._grammars,
            adapters=self._adapters,
        )
        self._steady: SteadyRows | None = None  # of the last step, if the next one may reuse its rows
        self._masks = MaskThread()
        self._sampler = CpuSampler(vocab_size, sizes.threads)
        self._sampler.warm_up()

    def begin_step(self, step: Step) -> PendingStep:
        began = perf_counter()
        if self._cores is not None:
            self._cores.follow(began, self._use_threads)
        rows, seconds = self._compute(step)
        done = StepDone(step=step.step, rows=tuple(rows), duration=perf_counter() - began, model_duration=seconds)
        return PendingStep(lambda: done, computed=True)

    def prepare_grammar(self, order: PrepareGrammar, answer: Callable[[GrammarReady | GrammarFailed], None]) -> None:
        self._grammars.prepare(order, answer)

    def read_adapter(self, number: int, path: str) -> Callable[[], None]:
        weights = load_adapter(Path(path), self._runner.spec)
        needed, free = self._runner.adapter_bytes(weights), available_memory()
        if needed > free * SHARE:
            raise DoesNotFit(
                f"adapter {path} needs {size(needed)}, more than half of the {size(free)} that are left: unload "
                "another adapter, or lower --kv-cache-memory"
            )
        packed = self._runner.pack_adapter(weights)

        def add() -> None:
            self._runner.add_adapter(packed)
            self._adapters.add(number, LoadedAdapter(packed.address, packed))

        return add

    def forget_adapter(self, number: int) -> None:
        self._adapters.forget(number)

    def progress(self) -> int:
        return self._runner.progress()

    def close(self) -> None:
        self._runner.close()

    def _use_threads(self, threads: int) -> None:
        self._runner.use_threads(threads)
        self._sampler.threads = threads

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
        guides = [piece.state.guide for piece in pieces if piece.state.guide is not None and piece.sample]
        seconds, results = 0.0, list[Row]()
        for group in split(pieces, self._sizes.max_step_tokens, self._sizes.max_logit_rows):
            batch, rows = make_rows(group, self._table_width)
            self._masks.begin(guides)  # not earlier: Python code here would wait for that thread, and it for this one
            began = perf_counter()
            logits = self._runner.forward(batch)
            seconds += perf_counter() - began
            if guides:
                self._masks.wait()
                add_masks(rows, group)
            sampled = self._sampler.sample(logits, rows)
            results += collect(group, sampled)
            if len(group) == len(step.chunks):
                self._steady = SteadyRows.after(group, batch, rows, sampled)
        return list(with_computed(join(results), pieces, step.chunks)), seconds

    def _go_on(self, steady: SteadyRows) -> tuple[list[Row], float]:
        """Run a step of the last step's sequences, each with the token just drawn."""
        self._masks.begin(steady.guides)
        began = perf_counter()
        logits = self._runner.forward(steady.batch)
        seconds = perf_counter() - began
        if steady.guides:
            self._masks.wait()
            steady.add_masks()
        sampled = self._sampler.greedy(logits) if steady.greedy else self._sampler.sample(logits, steady.rows)
        results = steady.collect(sampled)
        if results is None:
            steady.settle()
            return collect(steady.pieces, sampled), seconds
        self._steady = None if steady.over else steady
        return results, seconds
