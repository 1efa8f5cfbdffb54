"""Runs steps on a stepper without a server, as a scheduler would order them, and returns their times.

The sequences are made up, and greedy. A context is computed once and its blocks are copied, so that every sequence
reads blocks of its own: a cache that nobody has written shares one page of zeros.
"""

from collections.abc import Sequence
from itertools import count
from typing import Final

from ..protocol.sampling import Sampling
from ..protocol.steps import BlockCopy, Chunk, Ready, SequenceRecord, Step, StepDone
from .plan.roofline import StepLoad
from .stepper import Stepper

SECONDS: Final = 3.0  # of one load: slow models get fewer rounds
LEAST: Final = 3  # rounds
WARM_UP: Final = 2  # decoding steps, which are not counted: a step with new sequences, and the first without


class StepTimer:
    """One load after the other, on the same blocks. All that decode have one context; a prompt is a sequence's first
    step. `loads`: those that fit into the cache, the context and the largest step."""

    def __init__(self, stepper: Stepper, ready: Ready, loads: Sequence[StepLoad], *, rounds: int) -> None:
        self._stepper, self._ready, self._rounds = stepper, ready, rounds
        self._context = max(load.context for load in loads)
        self._steps, self._sequences = count(), count()
        self._live: tuple[int, ...] = ()
        self._width = -(-(self._context + WARM_UP + rounds) // ready.memory.block_size)  # blocks of one that decodes
        self.loads = tuple(filter(self._fits, loads))
        self._most_rows = max((load.sequences for load in self.loads), default=0)
        self._filled = False  # the blocks of so many sequences hold a context

    def times(self, load: StepLoad) -> list[StepDone]:
        """Decoding steps one after the other, or one prompt again and again."""
        return self._prompts(load.tokens) if load.tokens > 1 else self._decoding(load.sequences)

    def _fits(self, load: StepLoad) -> bool:
        ready = self._ready
        if load.tokens > 1:
            return load.tokens <= min(ready.max_step_tokens, ready.context_length)
        length = self._context + WARM_UP + self._rounds
        blocks = load.sequences * self._width
        return (
            length <= ready.context_length and load.sequences <= ready.max_running and blocks <= ready.memory.num_blocks
        )

    def _prompts(self, tokens: int) -> list[StepDone]:
        self._filled = False  # its blocks are overwritten
        blocks = range(-(-tokens // self._ready.memory.block_size))
        done: list[StepDone] = []
        while self._goes_on(done, 1):
            (sequence,), new = self._records(1, tokens)
            done.append(self._run([_chunk(sequence, 0, tokens, blocks, sample=True)], new))
        return done[1:]

    def _decoding(self, rows: int) -> list[StepDone]:
        context = self._context
        if self._context and not self._filled:
            self._fill()
        sequences, new = self._records(rows, context + 1)
        done: list[StepDone] = []
        while self._goes_on(done, WARM_UP):
            chunks = [
                _chunk(sequence, context + len(done), 1, () if done else self._blocks(row), sample=True)
                for row, sequence in enumerate(sequences)
            ]
            done.append(self._run(chunks, () if done else new))
        return done[WARM_UP:]

    def _goes_on(self, done: Sequence[StepDone], warm_up: int) -> bool:
        counted = done[warm_up:]
        if len(counted) < min(LEAST, self._rounds):
            return True
        return len(counted) < self._rounds and sum(step.duration for step in counted) < SECONDS

    def _fill(self) -> None:
        """Have the context in every sequence's blocks. The copies come one sequence at a time: a stepper may take as
        much memory again for them."""
        (sequence,), new = self._records(1, self._context)
        first, most = self._blocks(0), self._ready.max_step_tokens
        for start in range(0, self._context, most):
            tokens = min(most, self._context - start)
            self._run([_chunk(sequence, start, tokens, () if start else first)], () if start else new)
        used = -(-self._context // self._ready.memory.block_size)
        for row in range(1, self._most_rows):
            copies = map(BlockCopy, first[:used], self._blocks(row)[:used])
            self._run([_chunk(sequence, self._context - 1, 1, ())], (), tuple(copies))
        self._filled = True

    def _blocks(self, row: int) -> range:
        return range(row * self._width, (row + 1) * self._width)

    def _records(self, count: int, tokens: int) -> tuple[list[int], tuple[SequenceRecord, ...]]:
        """New sequences that differ in their last token, so that a mixture of experts takes different ones."""
        vocabulary = self._ready.vocab_size
        numbers = [next(self._sequences) for _ in range(count)]
        prompt = tuple(token % vocabulary for token in range(10, 10 + tokens - 1))
        records = tuple(
            SequenceRecord(
                sequence=number,
                tokens=(*prompt, (11 + 7 * row) % vocabulary),
                prompt_tokens=tokens,
                sampling=Sampling(temperature=0.0),
                stop_token_ids=(),
            )
            for row, number in enumerate(numbers)
        )
        return numbers, records

    def _run(
        self, chunks: Sequence[Chunk], new: tuple[SequenceRecord, ...], copies: tuple[BlockCopy, ...] = ()
    ) -> StepDone:
        dropped = self._live if new else ()
        if new:
            self._live = tuple(record.sequence for record in new)
        step = Step(step=next(self._steps), chunks=tuple(chunks), new=new, copies=copies, dropped=dropped)
        return self._stepper.begin_step(step).wait()


def _chunk(sequence: int, start: int, count: int, blocks: Sequence[int], *, sample: bool = False) -> Chunk:
    return Chunk(sequence=sequence, start=start, count=count, blocks=tuple(blocks), sample=sample)
