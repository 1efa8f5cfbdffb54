"""A worker without a model: what a KV slot holds depends on every token before it, as in a real one, but is one number.

A step reads the slots that the block tables name, so a block that was reused too early, shared wrongly or skipped gives
other tokens than `expected_tokens` says. As on a GPU, keys have other last bits from another kernel; a strict row
refuses slots whose bits it would not have computed itself. The device keeps rows as the real worker does and refuses a
step that does not fit them.

A sequence with a grammar jumps: the device knows some of its tokens without computing them, and a row brings them with
the sampled one. They are those that it would have sampled, so the oracle is the same for all.
"""

from collections.abc import Callable, Iterator
from functools import reduce
from itertools import islice, pairwise
from typing import Literal

from msgspec import structs

from triolet.actors.scheduler.beams import Beam, BeamSearch
from triolet.protocol.events import TokenLogprob, TopLogprob
from triolet.protocol.messages import Admit
from triolet.protocol.sampling import Sampling
from triolet.protocol.settings import BLOCK_SIZE
from triolet.protocol.steps import (
    Chunk,
    ForgetAdapters,
    Preparation,
    PrepareAdapter,
    PrepareGrammar,
    Row,
    SequenceRecord,
    Step,
    StepDone,
)

VOCABULARY = 48
EOS = 0
MAX_ADAPTERS = 2
ROW_TOKENS = 8  # at most, of a row that jumps

Bits = Literal["default", "strict prompt", "strict generated"]  # which kernel computed a slot
Slot = tuple[int, int, Bits]  # position, a digest of all tokens up to it
_MASK = 2**64 - 1


def mix(digest: int, token: int) -> int:
    return ((digest ^ (token + 1)) * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & _MASK


def sample(digest: int, length: int, prompt_tokens: int, sampling: Sampling, stops: tuple[int, ...]) -> int:
    """The token at index `length`, given the digest of those before it: counter-based, like the real sampler."""
    draw = mix(digest, sampling.seed ^ length) >> 20
    token = draw % VOCABULARY
    while token in stops and length - prompt_tokens < sampling.min_tokens:
        token = (token + 1) % VOCABULARY
    return token


def score(digest: int, token: int) -> float:
    return -(mix(digest, token) % 1000) / 100


def logprob(digest: int, token: int) -> TokenLogprob:
    return TokenLogprob(token_id=token, logprob=score(digest, token))


def most_probable(digest: int, sampling: Sampling, stops: tuple[int, ...], generated: int) -> TokenLogprob:
    """Of a row that asks for log probabilities: the greedy token, as far as it may stop, with the best ones."""
    assert sampling.logprobs is not None
    scores = [score(digest, token) for token in range(VOCABULARY)]
    best = sorted(range(VOCABULARY), key=scores.__getitem__, reverse=True)
    token = next(one for one in best if one not in stops or generated >= sampling.min_tokens)
    top = tuple(TopLogprob(one, scores[one]) for one in best[: sampling.logprobs])
    return TokenLogprob(token_id=token, logprob=scores[token], top=top)


def expected_answers(admit: Admit, number: int) -> list[Beam]:
    """What a beam search for the answers to a prompt finds, step by step and without sequences: the oracle."""
    request, stops = admit.request, admit.stop_token_ids
    assert request.beams is not None
    sampling = structs.replace(request.sampling, logprobs=request.n + max(request.n, len(stops)))
    beams = BeamSearch(request.beams, range(request.n), frozenset(stops), sampling.min_tokens)
    start = reduce(mix, admit.prompts[number], 0)
    tokens: dict[int, tuple[int, ...]] = dict.fromkeys(range(request.n), ())
    while tokens:
        for choice, generated in tokens.items():
            best = most_probable(reduce(mix, generated, start), sampling, stops, len(generated))
            beams.take(choice, Row(sequence=0, tokens=(best.token_id,), logprobs=(best,)))
        moves = beams.next_round(admit.max_tokens[number])
        tokens = {move.choice: tuple(one.token_id for one in move.beam.tokens) for move in moves}
    return beams.answers[: request.beams.answers]


def expected_tokens(prompt: tuple[int, ...], sampling: Sampling, stops: tuple[int, ...]) -> Iterator[int]:
    """What the device generates after `prompt`, for ever: the oracle."""
    digest = 0
    for token in prompt:
        digest = mix(digest, token)
    length = len(prompt)
    while True:
        token = sample(digest, length, len(prompt), sampling, stops)
        yield token
        digest = mix(digest, token)
        length += 1


def expected_choices(admit: Admit) -> Iterator[Iterator[int]]:
    """The tokens of each choice up to its length: one that stops before ends there."""
    request = admit.request
    for number, prompt in enumerate(admit.prompts):
        answers = expected_answers(admit, number) if request.beams else []
        for place in range(request.n):
            if request.beams:
                yield iter([one.token_id for one in answers[place].tokens] if place < len(answers) else ())
            else:
                sampling = structs.replace(request.sampling, seed=(request.sampling.seed + place) % 2**64)
                yield islice(expected_tokens(prompt, sampling, admit.stop_token_ids), admit.max_tokens[number])


def expected_prompt_logprobs(prompt: tuple[int, ...]) -> list[TokenLogprob]:
    digest = 0
    scores: list[TokenLogprob] = []
    for token, following in pairwise(prompt):
        digest = mix(digest, token)
        scores.append(logprob(digest, following))
    return scores


def beyond_credit(admit: Admit) -> int:
    """Tokens that a request may get beyond its credit: a row that was begun with credit may bring more than one, and
    the answers of a beam search come whole."""
    choices = len(admit.prompts) * admit.request.n
    if admit.request.beams:
        return sum(admit.max_tokens) * admit.request.n
    return 2 * ROW_TOKENS * choices if admit.request.grammar else 0


class _Row:
    def __init__(self, record: SequenceRecord) -> None:
        self.record = record
        self.tokens = list(record.tokens)
        self.blocks: list[int] = []
        self.computed: int | None = None  # set by the first chunk
        self.jumps = record.grammar > 0
        self.failed = False

    def bits(self, position: int) -> Bits:
        if not self.record.strict:
            return "default"
        return "strict prompt" if position < self.record.prompt_tokens else "strict generated"


class FakeDevice:
    """Applies steps; `poisoned` decides which rows give no usable numbers."""

    def __init__(
        self, *, num_blocks: int, max_step_tokens: int, max_running: int, poisoned: Callable[[], bool] = lambda: False
    ) -> None:
        self.rows: dict[int, _Row] = {}
        self.content: list[list[Slot | None]] = [[None] * BLOCK_SIZE for _ in range(num_blocks)]
        self._max_step_tokens = max_step_tokens
        self._max_running = max_running
        self._poisoned = poisoned
        self._last_step = 0
        self.grammars: set[int] = set()
        self.adapters: set[int] = set()
        self.reading: set[int] = set()  # adapters on their way to `adapters`
        self.jumped = 0  # tokens that came without being sampled

    def prepare(self, order: Preparation) -> None:
        match order:
            case PrepareGrammar(grammar=number):
                assert number not in self.grammars, f"{order} is here already"
                self.grammars.add(number)
                assert len(self.grammars) == 1, "each takes all the memory"
            case PrepareAdapter(adapter=number):
                assert number not in self.adapters, f"{order} is here already"
                self.adapters.add(number)
                self.reading.remove(number)
                assert len(self.adapters) <= MAX_ADAPTERS, "too many adapters"
            case ForgetAdapters(adapters=numbers):
                self.adapters -= set(numbers)
                self.reading -= set(numbers)

    def apply(self, step: Step, duration: float) -> StepDone:
        assert step.step > self._last_step, "step ids only grow"
        self._last_step = step.step
        for sequence in step.dropped:
            del self.rows[sequence]
        for record in step.new:
            assert record.sequence not in self.rows, f"sequence {record.sequence} is known already"
            assert not record.grammar or record.grammar in self.grammars, "its grammar is not built"
            assert not record.adapter or record.adapter in self.adapters, "its adapter is not loaded"
            self.rows[record.sequence] = _Row(record)
        sources, targets = {copy.source for copy in step.copies}, {copy.target for copy in step.copies}
        assert len(targets) == len(step.copies), "two copies into one block"
        assert not sources & targets, "a block is source and target: copies of a step run at the same time"
        for copy in step.copies:
            self.content[copy.target] = list(self.content[copy.source])
        assert step.chunks, "an empty step"
        assert sum(chunk.count for chunk in step.chunks) <= self._max_step_tokens, "over the token budget"
        assert len({chunk.sequence for chunk in step.chunks}) == len(step.chunks) <= self._max_running
        for chunk in step.chunks:
            adapter = self.rows[chunk.sequence].record.adapter
            assert not adapter or adapter in self.adapters, f"adapter {adapter} has been forgotten"
        chunks = self._extended(step.chunks)
        self._check_writers(chunks)
        return StepDone(
            step=step.step,
            rows=tuple(self._run(chunk, asked) for chunk, asked in zip(chunks, step.chunks, strict=True)),
            duration=duration,
            model_duration=duration / 2,
        )

    def _extended(self, chunks: tuple[Chunk, ...]) -> list[Chunk]:
        """Those that sample reach to the last token known here, as far as blocks and the step's tokens suffice."""
        spare, extended = self._max_step_tokens - sum(chunk.count for chunk in chunks), list[Chunk]()
        for chunk in chunks:
            row = self.rows[chunk.sequence]
            row.blocks.extend(chunk.blocks)
            if row.jumps and chunk.sample and not row.failed:
                start = max(chunk.start, row.computed or 0)
                known = min(len(row.tokens), len(row.blocks) * BLOCK_SIZE) - start
                count = min(known, chunk.count + spare)
                spare -= count - chunk.count
                sample = start + count == len(row.tokens)
                extended.append(structs.replace(chunk, start=start, count=count, sample=sample))
            else:
                extended.append(chunk)
        return extended

    def _check_writers(self, chunks: list[Chunk]) -> None:
        """Chunks of one step run at the same time: nobody may read a block that another one writes."""
        writers: dict[int, int] = {}
        for chunk in chunks:
            row = self.rows[chunk.sequence]
            assert len(row.blocks) * BLOCK_SIZE >= chunk.start + chunk.count, "blocks do not cover the chunk"
            first, last = chunk.start // BLOCK_SIZE, (chunk.start + chunk.count - 1) // BLOCK_SIZE
            for block in row.blocks[first : last + 1]:
                assert writers.setdefault(block, chunk.sequence) == chunk.sequence, f"two write block {block}"
        for chunk in chunks:
            for block in self.rows[chunk.sequence].blocks[: chunk.start // BLOCK_SIZE]:
                assert writers.get(block, chunk.sequence) == chunk.sequence, f"block {block} is read while written"

    def _run(self, chunk: Chunk, asked: Chunk) -> Row:
        row = self.rows[chunk.sequence]
        end = chunk.start + chunk.count
        if row.failed:  # steps in flight go on with a token that never was, until the front has read of the failure
            return Row(sequence=chunk.sequence, error="nonfinite_logits")
        assert row.computed in (None, chunk.start), f"{chunk} does not follow {row.computed}"
        assert chunk.count > 0
        assert end <= len(row.tokens), f"{chunk} is beyond the {len(row.tokens)} tokens of its sequence"
        assert chunk.sample <= (end == len(row.tokens))
        row.computed = end
        digest = self._read(row, chunk.start - 1) if chunk.start else 0
        scores: list[TokenLogprob] = []
        prompt_tokens = row.record.prompt_tokens
        for position in range(chunk.start, end):
            digest = mix(digest, row.tokens[position])
            slots = self.content[row.blocks[position // BLOCK_SIZE]]
            slots[position % BLOCK_SIZE] = (position, digest, row.bits(position))
            if chunk.prompt_logprobs and position + 1 < prompt_tokens:
                scores.append(logprob(digest, row.tokens[position + 1]))
        if self._poisoned():
            row.failed = True
            return Row(sequence=chunk.sequence, error="nonfinite_logits")
        computed = chunk.count if chunk.count != asked.count or chunk.sample != asked.sample else None
        tokens: list[int] = []
        sampling, stops = row.record.sampling, row.record.stop_token_ids
        if chunk.sample and sampling.logprobs is not None:
            best = most_probable(digest, sampling, stops, len(row.tokens) - prompt_tokens)
            row.tokens.append(best.token_id)
            return Row(sequence=chunk.sequence, tokens=(best.token_id,), logprobs=(best,), computed=computed)
        while chunk.sample and (not tokens or (row.jumps and digest % 3 and len(tokens) < ROW_TOKENS)):
            token = sample(digest, len(row.tokens), prompt_tokens, sampling, stops)
            row.tokens.append(token)
            tokens.append(token)
            digest = mix(digest, token)
        self.jumped += max(len(tokens) - 1, 0)
        return Row(sequence=chunk.sequence, tokens=tuple(tokens), prompt_logprobs=tuple(scores), computed=computed)

    def _read(self, row: _Row, position: int) -> int:
        """Attention reads every slot up to `position`; the digest in the last one stands for them all."""
        slot = None
        for block in range(position // BLOCK_SIZE + 1):
            offset = min(position - block * BLOCK_SIZE, BLOCK_SIZE - 1)
            slot = self.content[row.blocks[block]][offset]
            assert slot is not None, "an unwritten slot is read"
            assert slot[0] == block * BLOCK_SIZE + offset, "a slot of another position is read"
            assert not row.record.strict or slot[2] == row.bits(slot[0]), f"a strict sequence reads {slot[2]} bits"
        assert slot is not None
        return slot[1]
