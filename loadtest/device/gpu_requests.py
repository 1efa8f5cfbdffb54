"""Requests that share steps as a scheduler mixes them: decode rows first, then chunks of prompts, up to a step's size.

A request may be preempted: it is dropped after some drawn tokens, and all of it is computed again in other blocks, the
last of its prompt and what was drawn in one chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from triolet.loadtest.device.gpu_check import require
from triolet.loadtest.device.gpu_model_run import LoadedGpuModel
from triolet.protocol.events import TokenLogprob
from triolet.protocol.sampling import Sampling
from triolet.protocol.settings import BLOCK_SIZE
from triolet.protocol.steps import Chunk, Row, SequenceRecord

SCORED = Sampling(temperature=0.0, logprobs=5)


@dataclass(frozen=True, slots=True)
class Request:
    prompt: tuple[int, ...]
    cuts: tuple[int, ...] = ()  # tokens of the prompt behind which a chunk ends, besides where a step is full
    preempted_after: int = 0  # drawn tokens; 0: never
    sampling: Sampling = SCORED
    adapter: int = 0


@dataclass(slots=True)
class Answered:
    tokens: list[int] = field(default_factory=list)
    drawn: list[TokenLogprob] = field(default_factory=list)
    prompt: list[TokenLogprob] = field(default_factory=list)

    def add(self, result: Row) -> None:
        self.tokens += result.tokens
        self.drawn += result.logprobs
        self.prompt += result.prompt_logprobs


@dataclass(slots=True)
class _Life:
    """A request under way: `ordered` of its `total` tokens are computed or will be by a step that was begun."""

    name: int
    request: Request
    strict: bool
    blocks: list[tuple[int, ...]]  # those of its first life, and of its second
    ordered: int = 0
    drawn: int = 0  # or on their way
    answer: Answered = field(default_factory=Answered)

    @property
    def total(self) -> int:
        return len(self.request.prompt) + self.drawn

    @property
    def preempted(self) -> bool:
        """Its time has come, and did not come before."""
        after = self.request.preempted_after
        return len(self.blocks) > 1 and self.drawn == after > 0 and self.ordered > 0

    def drop(self) -> None:
        """All its answers have come."""
        self.ordered = 0
        self.blocks.pop(0)

    def record(self) -> SequenceRecord:
        return SequenceRecord(
            sequence=self.name, tokens=(*self.request.prompt, *self.answer.tokens), stop_token_ids=(0,),
            prompt_tokens=len(self.request.prompt), sampling=self.request.sampling, strict=self.strict,
            adapter=self.request.adapter,
        )  # fmt: skip

    def chunk(self, room: int) -> Chunk:
        start = self.ordered
        end = min([cut for cut in self.request.cuts if cut > start] or [self.total])
        end = min(end, start + room, self.total)
        self.ordered = end
        sample = end == self.total
        scored = self.request.sampling.prompt_logprobs is not None and not self.answer.tokens
        self.drawn += sample
        return Chunk(
            sequence=self.name, start=start, count=end - start, blocks=() if start else self.blocks[0], sample=sample,
            prompt_logprobs=scored and start < len(self.request.prompt) - 1,
        )  # fmt: skip


def answers(
    model: LoadedGpuModel, requests: Sequence[Request], tokens: int, *, strict: bool, step_tokens: int = 0
) -> tuple[list[Answered], list[int]]:
    """So many tokens of each request, and how many tokens each step had. `step_tokens`: at most (as many as fit)."""
    step_tokens = step_tokens or model.model.buckets.tokens[-1]
    lives = _lives(model, requests, tokens, strict)
    by_name = {life.name: life for life in lives}
    sizes: list[int] = []

    def heard(result: Row) -> None:
        by_name[result.sequence].answer.add(result)

    while under_way := [life for life in lives if life.drawn < tokens]:
        chunks, new, dropped = list[Chunk](), list[SequenceRecord](), list[int]()
        room = step_tokens
        for life in sorted(under_way, key=lambda life: life.total - life.ordered > 1):  # decode rows first
            if life.preempted:
                model.drain()
                life.drop()
                dropped.append(life.name)
            elif room:
                if not life.ordered:
                    new.append(life.record())
                chunks.append(life.chunk(room))
                room -= chunks[-1].count
        model.begin(chunks, new, tuple(dropped), heard=heard)
        sizes.append(step_tokens - room)
    model.drain()
    model.drop(by_name)
    return [life.answer for life in lives], sizes


def _lives(model: LoadedGpuModel, requests: Sequence[Request], tokens: int, strict: bool) -> list[_Life]:
    counts = [
        -(-(len(request.prompt) + tokens) // BLOCK_SIZE)
        for request in requests
        for _ in range(2 if request.preempted_after else 1)
    ]
    require(sum(counts) <= model.plan.num_blocks, f"{sum(counts)} blocks are wanted, {model.plan.num_blocks} are there")
    blocks = iter([tuple(range(end - count, end)) for count, end in zip(counts, accumulate(counts), strict=True)])
    return [
        _Life(name, request, strict, [next(blocks) for _ in range(2 if request.preempted_after else 1)])
        for name, request in zip(model.new_names(len(requests)), requests, strict=True)
    ]
