"""What a worker is told to run, and what it answers: the shapes that `rows.py` and `steps.py` work on.

The inputs are structural: any object with these attributes will do, and the messages of the link have them, so nothing
is converted on the way in. The answers are Structs of this file.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class SamplingOptions(Protocol):
    """How the next token is chosen; every value is in range. They act in this order but for the filters."""

    @property
    def repetition_penalty(self) -> float: ...
    @property
    def presence_penalty(self) -> float: ...
    @property
    def frequency_penalty(self) -> float: ...
    @property
    def logit_bias(self) -> Sequence[tuple[int, float]]: ...
    @property
    def min_tokens(self) -> int: ...
    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...
    @property
    def seed(self) -> int: ...
    @property
    def logprobs(self) -> int | None: ...
    @property
    def prompt_logprobs(self) -> int | None: ...


class NewSequence(Protocol):
    """A sequence the worker does not know: all its tokens, of which the first `prompt_tokens` are the prompt."""

    @property
    def sequence(self) -> int: ...
    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def sampling(self) -> SamplingOptions: ...
    @property
    def stop_token_ids(self) -> Sequence[int]: ...
    @property
    def strict(self) -> bool: ...


class StepChunk(Protocol):
    """Run tokens [start, start + count) of a sequence, after appending `blocks` to its block table."""

    @property
    def sequence(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def blocks(self) -> Sequence[int]: ...
    @property
    def sample(self) -> bool: ...
    @property
    def prompt_logprobs(self) -> bool: ...


class StepCopy(Protocol):
    """Copy KV block `source` to `target`."""

    @property
    def source(self) -> int: ...
    @property
    def target(self) -> int: ...


class StepWork(Protocol):
    """One step. Applied in order: dropped, new, copies, chunks."""

    @property
    def chunks(self) -> Sequence[StepChunk]: ...
    @property
    def new(self) -> Sequence[NewSequence]: ...
    @property
    def copies(self) -> Sequence[StepCopy]: ...
    @property
    def dropped(self) -> Sequence[int]: ...


class TokenScore(Struct, frozen=True):
    """A token, its log probability under the raw logits, and the most probable tokens at its place."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class ChunkResult(Struct, frozen=True, kw_only=True):
    """What one chunk gave."""

    sequence: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenScore, ...] = ()
    prompt_logprobs: tuple[TokenScore, ...] = ()  # of the prompt tokens that follow the chunk's rows
    error: str = ""  # "nonfinite_logits": this sequence alone fails


class StepResult(Struct, frozen=True):
    """Results in the order of the step's chunks, and the seconds spent in the model's forward passes."""

    chunks: tuple[ChunkResult, ...]
    model_seconds: float
