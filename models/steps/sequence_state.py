"""One sequence as the worker knows it: its tokens, its KV block table, and the lists its sampler needs.

Arrays grow by doubling, so that a decoded token costs no allocation. Knows neither batches nor devices.
"""

from collections.abc import Container, Sequence

import numpy as np
import numpy.typing as npt

from ...kernels.sampling.rows import MAX_TOP, ROW
from .step import NewSequence, SamplingOptions

Int32Array = npt.NDArray[np.int32]


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
    """What a step needs of a sequence. `slot` is its place in the table of sampling parameters."""

    __slots__ = (
        "banned", "bias_tokens", "bias_values", "blocks", "min_tokens", "plain", "prompt_tokens", "prompt_top", "seen",
        "slot", "strict", "tokens",
    )  # fmt: skip

    def __init__(self, record: NewSequence, slot: int, vocab_size: int) -> None:
        options = record.sampling
        self.slot = slot
        self.tokens = GrowingInts(record.tokens)
        self.blocks = GrowingInts(())
        self.prompt_tokens = record.prompt_tokens
        self.strict = record.strict
        self.prompt_top = min(options.prompt_logprobs or 0, MAX_TOP)
        self.min_tokens = options.min_tokens
        bias = options.logit_bias
        self.bias_tokens = np.array([token for token, _ in bias], np.int32)
        self.bias_values = np.array([value for _, value in bias], np.float32)
        self.banned = np.array(record.stop_token_ids if options.min_tokens else (), np.int32)
        penalised = (options.repetition_penalty, options.presence_penalty, options.frequency_penalty) != (1.0, 0.0, 0.0)
        self.seen = SeenTokens(self.tokens.view(), record.prompt_tokens) if penalised else None
        self.plain = not (penalised or self.bias_tokens.size or self.banned.size)  # its sampler row has no lists
        for name, ids in (
            ("tokens", self.tokens.view()),
            ("logit_bias", self.bias_tokens),
            ("stop_token_ids", self.banned),
        ):
            if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
                raise ValueError(f"{name} of sequence {record.sequence}: expected token ids below {vocab_size}")

    @property
    def total(self) -> int:
        """Tokens so far, drawn ones included."""
        return self.tokens.size

    def lead(self, start: int) -> int:
        """How many tokens before `start` a piece that begins there computes again."""
        return 0

    def bans(self) -> bool:
        """Are stop tokens masked for the next token?"""
        return self.banned.size > 0 and self.tokens.size - self.prompt_tokens < self.min_tokens

    def append(self, token: int) -> None:
        self.tokens.append(token)
        if self.seen is not None:
            self.seen.add_generated(token)


def check_record(record: NewSequence, known: Container[int], max_model_len: int) -> None:
    """Refuse a sequence that is known already, or whose tokens are none, too many, or fewer than its prompt."""
    if record.sequence in known:
        raise ValueError(f"sequence {record.sequence} is already here; drop it first")
    if not 0 < record.prompt_tokens <= len(record.tokens) <= max_model_len:
        raise ValueError(f"sequence {record.sequence}: expected 1 to {max_model_len} tokens, prompt first")


def sampling_row(options: SamplingOptions, vocab_size: int) -> npt.NDArray[np.void]:
    """The constant part of a sequence's sampler row; position and target are the step's."""
    row = np.zeros((), ROW)
    row["repetition"] = options.repetition_penalty
    row["presence"] = options.presence_penalty
    row["frequency"] = options.frequency_penalty
    row["temperature"] = options.temperature
    row["top_k"] = options.top_k if 0 < options.top_k < vocab_size else 0
    row["top_p"] = options.top_p
    row["min_p"] = options.min_p
    row["seed"] = options.seed
    row["target"] = -1
    row["top"] = -1 if options.logprobs is None else min(options.logprobs, MAX_TOP)
    return row
