"""The scheduler's record of a request and of each of its choices: the token log and its KV blocks. Pure.

`computed` advances when a step is planned, not when it is done. With steps in flight the last tokens of a sequence are
sampled but not read yet: `unread` counts these placeholders, and only the worker knows their ids. The token log lives
here, so a lost worker costs nothing but time.
"""

from typing import Final, Literal

from msgspec import structs

from ...protocol.adapters import Adapter
from ...protocol.events import TokenLogprob
from ...protocol.explanation import Obstacle
from ...protocol.messages import Admit, OpenChoice
from ...protocol.settings import BLOCK_SIZE
from ...protocol.steps import Chunk, Row, SequenceRecord
from .beams import BeamSearch
from .blocks import BlockPool
from .prefix_keys import Key, SharedPrompt
from .prepared import Prepared

# With fewer tokens in the last KV block, computing them again is faster than copying: a copy waits for a step. Time to
# the first tokens of two choices, computed against copied: 0.10 s and 0.13 s for 8 tokens, 0.19 s and 0.18 s for 16.
WORTH_COPYING: Final = 16
Place = Literal["waiting", "running", "parked", "ended"]
OrderKey = tuple[float, ...]


class LiveRequest:
    """An accepted request: its choices share one credit, one deadline and one end."""

    __slots__ = (
        "adapter", "choices", "eos_token_ids", "generate", "grammar", "granted", "id", "prompts", "seconds", "spent",
        "stop_set", "stop_token_ids",
    )  # fmt: skip

    def __init__(
        self,
        admit: Admit,
        credit: int,
        grammar: Prepared[str] | None = None,
        adapter: Prepared[Adapter] | None = None,
    ) -> None:
        self.generate = admit.request
        self.grammar = grammar  # what its answers must match
        self.adapter = adapter
        self.id = admit.request.id
        self.prompts = admit.prompts
        self.stop_token_ids = admit.stop_token_ids
        self.stop_set = frozenset(admit.stop_token_ids)
        self.eos_token_ids = admit.eos_token_ids
        self.seconds = admit.seconds
        self.choices: dict[int, Sequence] = {}  # unfinished, by index
        self.granted = credit
        self.spent = 0  # tokens planned or delivered

    @property
    def answers(self) -> bool:
        """Whether it has a token."""
        begun = any(sequence.generated for sequence in self.choices.values())
        return begun or len(self.choices) < len(self.prompts) * self.generate.n

    @property
    def credit(self) -> int:
        """How many more tokens may be generated before the reader takes some."""
        return self.granted - self.spent

    def search_for(self, choices: range) -> BeamSearch | None:
        """The beam search that finds the choices of one prompt, if they are searched for and not drawn."""
        rule, sampling = self.generate.beams, self.generate.sampling
        if rule is None:
            return None
        return BeamSearch(rule, choices, self.stop_set, sampling.min_tokens, sampling.logprobs or 0)

    @property
    def awaits_preparation(self) -> bool:
        """Whether the worker prepares something for it now."""
        return any(one.under_way for one in self.prepared)

    @property
    def prepared(self) -> list[Prepared[str] | Prepared[Adapter]]:
        """What it needs in the worker."""
        return [one for one in (self.grammar, self.adapter) if one]

    @property
    def obstacle(self) -> Obstacle | None:
        """What keeps its choices from joining the batch, whatever room there is."""
        if self.credit <= 0:
            return "credit"
        if self.grammar and not self.grammar.usable:
            return "grammar"
        if self.adapter and not self.adapter.usable:
            return "adapter"
        return None

    @property
    def unread(self) -> int:
        """Tokens planned but not read yet."""
        return sum(sequence.unread for sequence in self.choices.values())


class Sequence:
    """One choice: prompt and generated tokens, the blocks that hold their KV, and its place in the queues."""

    __slots__ = (
        "_own_keys", "beams", "blocks", "cached_tokens", "charged", "computed", "generated", "id", "index", "known",
        "live", "losses", "max_total", "order", "place", "pooled", "prompt", "prompt_logprobs", "prompt_tokens",
        "published", "reads_prefix_cache", "scored", "started", "total", "waits_for_its_tokens",
    )  # fmt: skip

    def __init__(
        self,
        id: int,
        live: LiveRequest,
        index: int,
        prompt: SharedPrompt,
        max_total: int,
        beams: BeamSearch | None = None,
    ) -> None:
        self.id = id
        self.live = live
        self.index = index
        self.prompt = prompt
        self.prompt_tokens = len(prompt.tokens)
        # Log probabilities of the prompt need all its rows, so nothing may be skipped.
        self.pooled = live.generate.pooled
        self.reads_prefix_cache = live.generate.sampling.prompt_logprobs is None and not self.pooled
        # The worker must have read a token before it samples the next one: words of several tokens are banned.
        # Of a beam, all other beams' tokens decide what comes next.
        self.beams = beams
        words = live.generate.sampling.bad_words
        self.waits_for_its_tokens = beams is not None or any(len(word) > 1 for word in words)
        self.max_total = max_total  # prompt and generated tokens at which it ends
        # Lower priority numbers first, then by arrival; a preempted sequence keeps its place.
        self.order: OrderKey = (live.generate.priority, live.generate.arrival_time, id)
        self.place: Place = "waiting"
        self.generated: list[int] = []
        self.total = self.prompt_tokens  # its tokens, read or planned
        self.computed = 0
        self.blocks: list[int] = []
        self.published = 0  # leading blocks whose content has been offered to the prefix cache, or came from it
        self.known = False  # the worker has its record
        self.cached_tokens = 0  # found in the prefix cache when it first ran
        self.charged = 0  # computed tokens charged to its tenant, each once however often it was computed
        self.losses = 0  # workers that died while computing it, since its last token; of a suspect, since it became one
        self.started = False  # has run; the detokenizer knows it
        self.scored = 1  # prompt tokens with known log probabilities; the first has none
        self.prompt_logprobs: list[TokenLogprob] = []  # held until its first token
        self._own_keys: list[Key] = []  # of full blocks that reach beyond the prompt

    def __repr__(self) -> str:
        return f"<Sequence {self.id} of {self.live.id}[{self.index}] {self.place} {self.computed}/{self.total}>"

    @property
    def read(self) -> int:
        """Number of tokens whose ids the front knows."""
        return self.prompt_tokens + len(self.generated)

    @property
    def unread(self) -> int:
        return self.total - self.prompt_tokens - len(self.generated)

    @property
    def remaining(self) -> int:
        """Tokens to compute now: 1 while decoding, more while the prompt is unfinished, 0 if all are planned.

        The last token of a finished sequence is never computed: nothing follows it.
        """
        if self.ahead_of_plan or (self.waits_for_its_tokens and self.unread):
            return 0
        if self.pooled:
            return self.total - self.computed
        return min(self.total, self.max_total - 1) - self.computed

    @property
    def least(self) -> int:
        """Of its remaining tokens so many must be in one step: a text that is pooled is read whole."""
        return self.remaining if self.pooled else min(self.remaining, 1)

    @property
    def ahead_of_plan(self) -> bool:
        """Whether a row brought several tokens while a step is in flight, which may compute them: it is read first."""
        return self.total - self.computed > 1 and self.unread > 0

    @property
    def waits_for_beams(self) -> bool:
        """Whether it has nothing to compute until its search goes on."""
        return self.beams is not None and self.beams.waits(self.index)

    @property
    def stalled(self) -> bool:
        """Whether it has nothing to do before its reader, or other beams, are where it is."""
        return self.waits_for_beams or (self.live.credit <= 0 and self.remaining > 0)

    @property
    def strict(self) -> bool:
        """Whether it must get the same bits in any batch."""
        return self.live.generate.determinism == "strict"

    @property
    def cacheable_blocks(self) -> int:
        """Leading blocks whose content depends only on their text, so that the prefix cache may hold them.

        For strict requests only blocks of the prompt. On a GPU a generated token's keys come from the decode kernel;
        the same token's keys in a prompt come from the prefill kernel and have other last bits.
        """
        if self.pooled:  # every token of its text depends on those behind it
            return 0
        return self.prompt.full_blocks if self.strict else self.read // BLOCK_SIZE

    @property
    def shareable_blocks(self) -> int:
        """Cacheable blocks before its last token, which is always computed since its logits are needed."""
        return min((self.read - 1) // BLOCK_SIZE, self.cacheable_blocks) if self.reads_prefix_cache else 0

    @property
    def copied_end(self) -> int:
        """How many tokens it has after copying its prompt's last block; 0 if copying is not worth it.

        The last token is always computed. A choice that comes back after a preemption may copy its whole prompt.
        """
        end = min(self.prompt_tokens, self.read - 1)
        return end if self.reads_prefix_cache and end % BLOCK_SIZE >= WORTH_COPYING else 0

    def wants_prompt_logprobs(self, start: int, end: int) -> bool:
        """Whether the rows [start, end) give log probabilities of prompt tokens that are still missing."""
        last = min(end, self.prompt_tokens - 1)  # the last prompt token whose predecessor is among the rows
        return not self.reads_prefix_cache and not self.pooled and start < last and self.scored <= last

    def key(self, block: int) -> Key:
        """The key of its full block number `block`; all tokens of the block must be read."""
        prompt, own = self.prompt, self._own_keys
        full = prompt.full_blocks
        if block < full:
            return prompt.key(block)
        while len(own) <= block - full:
            start = (full + len(own)) * BLOCK_SIZE
            parent = own[-1] if own else prompt.key(full - 1)
            own.append(prompt.extend(parent, self.tokens_between(start, start + BLOCK_SIZE)))
        return own[block - full]

    def tokens_between(self, start: int, end: int) -> tuple[int, ...]:
        """Its read tokens [start, end)."""
        length = self.prompt_tokens
        return self.prompt.tokens[start:end] + tuple(self.generated[max(start - length, 0) : max(end - length, 0)])

    def record(self) -> SequenceRecord:
        """All that a worker needs to continue it. No token may be unread."""
        assert self.unread == 0, self
        sampling = self.live.generate.sampling
        twin = self.index % self.live.generate.n
        for one in self.live.prepared:
            one.served = True
        if twin:  # so that the n choices of one prompt differ
            sampling = structs.replace(sampling, seed=(sampling.seed + twin) % 2**64)
        if self.beams:  # so many that enough go on even if all stop tokens are among them
            width = self.live.generate.n
            top = max(width + max(width, len(self.live.stop_token_ids)), sampling.logprobs or 0)
            sampling = structs.replace(sampling, logprobs=top)
        return SequenceRecord(
            sequence=self.id,
            tokens=self.prompt.tokens + tuple(self.generated),
            prompt_tokens=self.prompt_tokens,
            sampling=sampling,
            stop_token_ids=self.live.stop_token_ids,
            strict=self.strict,
            grammar=self.live.grammar.number if self.live.grammar else 0,
            adapter=self.live.adapter.number if self.live.adapter else 0,
            thinking=self.live.generate.thinking,
            reasoning_budget=self.live.generate.reasoning_budget,
            pooled=self.pooled,
            second=self.live.seconds[self.index] if self.live.seconds else 0,
        )

    def follow(self, chunk: Chunk, row: Row) -> None:
        """Account for a row that computed more tokens than its chunk said, or sampled nothing.

        A sequence that was sent back to waiting meanwhile has no KV left, so only its token is given up.
        """
        assert row.computed is not None, row
        assert chunk.sample, chunk
        assert row.computed >= chunk.count, (chunk, row)
        if self.known:
            self.computed += row.computed - chunk.count
        if not row.tokens:
            self.total -= 1
            self.live.spent -= 1

    def opening(self) -> OpenChoice:
        """The detokenizer's first message about it."""
        return OpenChoice(
            request=self.live.generate, index=self.index, prompt=self.prompt.tokens, cached_tokens=self.cached_tokens
        )

    def go_on(self, token: int) -> None:
        """The token that the worker sampled, and that was given up, is its next one after all."""
        self.generated.append(token)
        self.total = self.read

    def rewrite(self, generated: list[int]) -> None:
        """Give it other generated tokens. It holds no KV and no token is unread."""
        assert not self.blocks, self
        self.generated = generated
        self.total = self.read
        self._own_keys.clear()

    def publish_blocks(self, pool: BlockPool) -> None:
        """Offer its full blocks of computed and read tokens to the prefix cache, as far as others may use them."""
        full = min(self.computed // BLOCK_SIZE, self.cacheable_blocks)
        while self.published < full:
            pool.publish(self.blocks[self.published], self.key(self.published))
            self.published += 1

    def forget_kv(self, pool: BlockPool) -> None:
        """Release its blocks; it must be computed again from its tokens."""
        pool.release(self.blocks)
        self.blocks = []
        self.published = self.computed = 0
        self.known = False

    def forget_unread(self) -> None:
        """Give up tokens in flight: they will not be read and cost the reader no credit."""
        self.live.spent -= self.unread
        self.total = self.read

    def distrust_kv(self, pool: BlockPool) -> None:
        """The content of its blocks is suspect: nothing may attach them, now or later."""
        pool.disown(self.blocks)
        self.published = len(self.blocks)
