"""A worker's sequences, and the pieces of them that a step runs. Independent of batches and devices.

Arrays grow by doubling, so a decoded token costs no allocation.
"""

from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np

from ...kernels.sampling.rows import MAX_TOP, ROW, Int32Array, Uint32Array, mask_words
from ...protocol.sampling import Sampling
from ...protocol.settings import BLOCK_SIZE
from ...protocol.steps import Chunk, SequenceRecord, Step
from ..guides.grammars import GrammarStore
from ..guides.guide import Guide
from .adapters import LoadedAdapter, LoadedAdapters

_NONE: Final = np.zeros(0, np.int32)


class GrowingInts:
    """An int32 list in a numpy array: `view()` is its content, without a copy."""

    def __init__(self, values: Sequence[int] | Int32Array) -> None:
        self.size = len(values)
        self.array = np.empty(self.size + 64, np.int32)
        self.array[: self.size] = values

    def append(self, value: int) -> None:
        if self.size == len(self.array):
            self._grow(self.size + 1)
        self.array[self.size] = value
        self.size += 1

    def extend(self, values: Sequence[int]) -> None:
        end = self.size + len(values)
        if end > len(self.array):
            self._grow(end)
        self.array[self.size : end] = values
        self.size = end

    def view(self) -> Int32Array:
        return self.array[: self.size]

    def _grow(self, least: int) -> None:
        larger = np.empty(max(least, 2 * len(self.array)), np.int32)
        larger[: self.size] = self.view()
        self.array = larger


class SeenTokens:
    """The distinct tokens of a sequence, and how often each was generated (0: it is only in the prompt)."""

    def __init__(self, tokens: Int32Array, prompt_tokens: int) -> None:
        distinct = np.unique(tokens)
        counts = np.zeros(len(distinct), np.int32)
        generated, times = np.unique(tokens[prompt_tokens:], return_counts=True)
        counts[np.searchsorted(distinct, generated)] = times
        self.tokens, self.counts = GrowingInts(distinct), GrowingInts(counts)
        self._place = {token: place for place, token in enumerate(distinct.tolist())}

    def add_generated(self, token: int) -> None:
        place = self._place.setdefault(token, self.tokens.size)
        if place == self.tokens.size:
            self.tokens.append(token)
            self.counts.append(1)
        else:
            self.counts.array[place] += 1


class SequenceState:
    """One sequence: its tokens, its KV block table, and the data of its sampler rows."""

    __slots__ = (
        "adapter", "allowed", "bad_words", "banned", "bias_tokens", "bias_values", "blocks", "edited", "guide",
        "min_tokens", "parameters", "prompt_tokens", "prompt_top", "seen", "strict", "tokens", "top",
    )  # fmt: skip

    def __init__(self, record: SequenceRecord, vocab_size: int) -> None:
        sampling = record.sampling
        self.tokens = GrowingInts(record.tokens)
        self.blocks = GrowingInts(())
        self.prompt_tokens = record.prompt_tokens
        self.strict = record.strict
        self.guide: Guide | None = None  # of what its next token may be
        self.adapter: LoadedAdapter | None = None
        self.top = -1 if sampling.logprobs is None else min(sampling.logprobs, MAX_TOP)
        self.prompt_top = min(sampling.prompt_logprobs or 0, MAX_TOP)
        self.parameters = sampling_row(sampling, self.top, vocab_size)
        self.min_tokens = sampling.min_tokens
        self.bias_tokens = np.array([token for token, _ in sampling.logit_bias], np.int32)
        self.bias_values = np.array([value for _, value in sampling.logit_bias], np.float32)
        self.banned = np.array(record.stop_token_ids if sampling.min_tokens else (), np.int32)
        self.bad_words = [(list(word[:-1]), word[-1]) for word in sampling.bad_words]
        self.allowed = np.frombuffer(sampling.allowed_tokens, np.uint32) if sampling.allowed_tokens else None
        # Some of its logits may be changed.
        self.edited = self.bias_tokens.size + self.banned.size + len(self.bad_words) > 0 or self.allowed is not None
        penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
        penalised = penalties != (1.0, 0.0, 0.0)
        self.seen = SeenTokens(self.tokens.view(), record.prompt_tokens) if penalised else None
        for name, ids in (
            ("tokens", self.tokens.view()),
            ("logit_bias", self.bias_tokens),
            ("stop_token_ids", self.banned),
            ("bad_words", np.array([token for _, token in self.bad_words], np.int32)),
        ):
            if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
                raise ValueError(f"{name} of sequence {record.sequence}: expected token ids below {vocab_size}")
        if self.allowed is not None and self.allowed.size != mask_words(vocab_size):
            raise ValueError(f"allowed_tokens of sequence {record.sequence}: expected {mask_words(vocab_size)} words")

    @property
    def mask(self) -> Uint32Array | None:
        """Of its next token: what the request allows and, once the guide's mask is filled, what the guide allows."""
        guide, allowed = self.guide, self.allowed
        if guide is None or not guide.masked:
            return allowed
        return guide.mask if allowed is None else guide.mask & allowed

    @property
    def listless(self) -> bool:
        """Whether the sampler needs only its row, and the mask of its guide if it has one."""
        return self.seen is None and not self.edited

    @property
    def plain(self) -> bool:
        """Whether the sampler needs only its row, without lists and masks."""
        return self.guide is None and self.seen is None and not self.edited

    @property
    def total(self) -> int:
        """Number of tokens so far, including drawn ones."""
        return self.tokens.size

    def lead(self, start: int) -> int:
        """How many tokens before `start` a piece that begins at `start` computes again."""
        return 0

    def banned_at(self, position: int) -> Int32Array:
        """The banned ones for the token at this position: stop tokens, and last tokens of words; distinct."""
        bans_stops = position - self.prompt_tokens < self.min_tokens
        if not self.bad_words:
            return self.banned if bans_stops else _NONE
        ends = {token for before, token in self.bad_words if self._has_before(position, before)}
        if bans_stops:
            ends.update(self.banned.tolist())
        return np.fromiter(ends, np.int32, len(ends))

    def _has_before(self, position: int, tokens: list[int]) -> bool:
        """Whether the output before this position ends with these tokens."""
        start = position - len(tokens)
        return start >= self.prompt_tokens and list(self.ids(start, len(tokens))) == tokens

    def ids(self, start: int, length: int) -> Int32Array | list[int]:
        """Its tokens [start, start + length)."""
        return self.tokens.array[start : start + length]

    def learn_token(self, position: int, token: int) -> None:
        """Append a drawn token; `position` is its index in the sequence."""
        self.tokens.append(token)
        if self.seen is not None:
            self.seen.add_generated(token)

    def learn_forced(self, tokens: Sequence[int]) -> None:
        """Append tokens that were not drawn, behind the last drawn one."""
        for token in tokens:
            self.learn_token(self.total, token)


State = TypeVar("State", bound=SequenceState)


class Piece(NamedTuple, Generic[State]):
    """Tokens [start, start + length) of a sequence in one pass, and which logits are needed."""

    sequence: int
    state: State
    start: int
    length: int
    sample: bool  # draw a token after the last row
    scored: int  # leading rows that report the log probability of the prompt token that follows

    @property
    def lead(self) -> int:
        """Tokens before `start` that are computed again with it."""
        return self.state.lead(self.start)


class SequenceTable(Generic[State]):
    """Sequences by id, and the grammars that guide some of them. One thread calls it."""

    def __init__(
        self,
        state_of: type[State],
        *,
        vocab_size: int,
        max_model_len: int,
        max_step_tokens: int = 0,
        grammars: GrammarStore | None = None,
        adapters: LoadedAdapters | None = None,
    ) -> None:
        self._state_of, self._vocab_size, self._max_model_len = state_of, vocab_size, max_model_len
        self._max_step_tokens = max_step_tokens
        self._sequences: dict[int, State] = {}
        self._spare = 0  # tokens that a step has left for those that were forced since it was planned
        self.grammars = grammars
        self._adapters = adapters or LoadedAdapters()

    def __len__(self) -> int:
        return len(self._sequences)

    def apply(self, step: Step) -> list[Piece[State]]:
        """Drop and add a step's sequences, and return its chunks, each as one piece."""
        for sequence in step.dropped:
            self.drop(sequence)
        for record in step.new:
            self.add(record)
        self._spare = self._max_step_tokens - sum([chunk.count for chunk in step.chunks])
        return [self.piece(chunk) for chunk in step.chunks]

    def guides(self, step: Step) -> bool:
        """Whether one of the step's sequences is here already and has a guide."""
        states = (self._sequences.get(chunk.sequence) for chunk in step.chunks)
        return any(state is not None and state.guide is not None for state in states)

    def add(self, record: SequenceRecord) -> None:
        if record.sequence in self._sequences:
            raise ValueError(f"sequence {record.sequence} is already here; drop it first")
        if not 0 < record.prompt_tokens <= len(record.tokens) <= self._max_model_len:
            raise ValueError(f"sequence {record.sequence}: expected 1 to {self._max_model_len} tokens, prompt first")
        state = self._sequences[record.sequence] = self._state_of(record, self._vocab_size)
        state.adapter = self._adapters.of(record)
        if self.grammars is not None:
            state.guide = self.grammars.guide(record)

    def drop(self, sequence: int) -> State | None:
        """Forget a sequence. Unknown ids are allowed: it may have ended before it was part of a step."""
        return self._sequences.pop(sequence, None)

    def piece(self, chunk: Chunk) -> Piece[State]:
        """A whole chunk as one piece; its blocks are appended to the sequence's table."""
        state = self._sequences.get(chunk.sequence)
        if state is None:
            raise ValueError(f"sequence {chunk.sequence} is not known here; send its record first")
        if chunk.blocks:
            state.blocks.extend(chunk.blocks)
        start, end, total = chunk.start, chunk.start + chunk.count, state.total
        if chunk.sample and end < total and state.guide is not None:
            return Piece(chunk.sequence, state, start, *self._reach(state, chunk), 0)
        if start < 0 or chunk.count < 1 or end > total or (chunk.sample and end < total):
            raise ValueError(f"chunk [{start}, {end}) of sequence {chunk.sequence} of {total} tokens")
        if end > state.blocks.size * BLOCK_SIZE:
            raise ValueError(f"{state.blocks.size} blocks do not hold {end} tokens of sequence {chunk.sequence}")
        scored = max(0, min(end, state.prompt_tokens - 1) - start) if chunk.prompt_logprobs else 0
        return Piece(chunk.sequence, state, start, chunk.count, chunk.sample, scored)

    def _reach(self, state: State, chunk: Chunk) -> tuple[int, bool]:
        """How many tokens to compute of a sequence that got more of them since its chunk was planned; and to sample.

        All of them, as far as its blocks and the step's tokens suffice. The front plans what is left.
        """
        known = min(state.total, state.blocks.size * BLOCK_SIZE, self._max_model_len) - chunk.start
        count = min(known, chunk.count + max(self._spare, 0))
        if count < chunk.count:
            raise ValueError(f"{state.blocks.size} blocks do not hold the chunk of sequence {chunk.sequence}")
        self._spare -= count - chunk.count
        return count, chunk.start + count == state.total


def sampling_row(sampling: Sampling, top: int, vocab_size: int) -> bytes:
    """A sequence's sampler row, without position and target, which each step sets. Bytes join faster than arrays."""
    row = np.zeros((), ROW)
    row["repetition"] = sampling.repetition_penalty
    row["presence"] = sampling.presence_penalty
    row["frequency"] = sampling.frequency_penalty
    row["temperature"] = sampling.temperature
    row["top_k"] = sampling.top_k if 0 < sampling.top_k < vocab_size else 0
    row["top_p"] = sampling.top_p
    row["min_p"] = sampling.min_p
    row["seed"] = sampling.seed
    row["target"] = -1
    row["top"] = top
    return row.tobytes()
