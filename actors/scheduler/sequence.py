"""What the scheduler knows of a request and of each of its choices: the token log and the KV blocks behind it. Pure.

`computed` advances when a step is planned, not when it is done. With steps in flight the last tokens of a sequence are
sampled but not read yet: `unread` counts these placeholders, and only the worker knows their ids. The token log lives
here, so a lost worker costs nothing but time.
"""

from typing import Final, Literal

from msgspec import structs

from ...protocol.events import TokenLogprob
from ...protocol.messages import Admit, OpenChoice
from ...protocol.settings import BLOCK_SIZE
from ...protocol.steps import SequenceRecord
from .blocks import BlockPool
from .prefix_keys import Key, SharedPrompt

# Fewer tokens of a KV block are computed again. A copy waits for a step, so two choices of a short prompt get their
# first tokens sooner if both compute it: with 8 tokens in 0.10 s against 0.13 s, with 16 in 0.19 s against 0.18 s.
WORTH_COPYING: Final = 16
Place = Literal["waiting", "running", "parked", "ended"]
OrderKey = tuple[float, ...]


class LiveRequest:
    """An accepted request: its choices share one credit, one deadline and one end."""

    __slots__ = (
        "choices", "eos_token_ids", "generate", "granted", "id", "spent", "stop_set", "stop_token_ids",
    )  # fmt: skip

    def __init__(self, admit: Admit, credit: int) -> None:
        self.generate = admit.request
        self.id = admit.request.id
        self.stop_token_ids = admit.stop_token_ids
        self.stop_set = frozenset(admit.stop_token_ids)
        self.eos_token_ids = admit.eos_token_ids
        self.choices: dict[int, Sequence] = {}  # unfinished, by index
        self.granted = credit
        self.spent = 0  # tokens planned or delivered

    @property
    def credit(self) -> int:
        """How many more tokens the stream may be ahead of its reader."""
        return self.granted - self.spent

    @property
    def unread(self) -> int:
        """Tokens that are planned and not read yet."""
        return sum(sequence.unread for sequence in self.choices.values())


class Sequence:
    """One choice: prompt and generated tokens, the blocks that hold their KV, and its place in the queues."""

    __slots__ = (
        "_own_keys", "blocks", "cached_tokens", "charged", "computed", "generated", "id", "index", "known", "live",
        "losses", "max_total", "order", "place", "prompt", "prompt_logprobs", "prompt_tokens", "published",
        "reads_prefix_cache", "scored", "started", "total",
    )  # fmt: skip

    def __init__(self, id: int, live: LiveRequest, index: int, prompt: SharedPrompt, max_total: int) -> None:
        self.id = id
        self.live = live
        self.index = index
        self.prompt = prompt
        self.prompt_tokens = len(prompt.tokens)
        # Log probabilities of the prompt need every row of it, so then nothing may be skipped.
        self.reads_prefix_cache = live.generate.sampling.prompt_logprobs is None
        self.max_total = max_total  # prompt and generated tokens at which it ends
        # Lower priority numbers first, then first come, first served; a preempted sequence keeps its place.
        self.order: OrderKey = (live.generate.priority, live.generate.arrival_time, id)
        self.place: Place = "waiting"
        self.generated: list[int] = []
        self.total = self.prompt_tokens  # its tokens, read or planned
        self.computed = 0
        self.blocks: list[int] = []
        self.published = 0  # leading blocks whose content has been offered to the prefix cache, or came from it
        self.known = False  # the worker holds its record
        self.cached_tokens = 0  # whose KV was here when it first ran
        self.charged = 0  # computed tokens that are in its tenant's account, however often they were computed
        self.losses = 0  # workers that died while they computed it, since its last token
        self.started = False  # ran once; the detokenizer knows it
        self.scored = 1  # prompt tokens whose log probabilities have come; the first has none
        self.prompt_logprobs: list[TokenLogprob] = []  # held until its first token
        self._own_keys: list[Key] = []  # of full blocks that reach beyond the prompt

    def __repr__(self) -> str:
        return f"<Sequence {self.id} of {self.live.id}[{self.index}] {self.place} {self.computed}/{self.total}>"

    @property
    def read(self) -> int:
        """Tokens whose ids the front knows."""
        return self.prompt_tokens + len(self.generated)

    @property
    def unread(self) -> int:
        return self.total - self.prompt_tokens - len(self.generated)

    @property
    def remaining(self) -> int:
        """Tokens still to compute now: 1 while decoding, more while the prompt is unfinished, 0 when all are planned.

        The last token of a finished sequence is never computed: nothing follows it.
        """
        return min(self.total, self.max_total - 1) - self.computed

    @property
    def strict(self) -> bool:
        """Whether it must get the same bits in any batch."""
        return self.live.generate.determinism == "strict"

    @property
    def cacheable_blocks(self) -> int:
        """Leading blocks whose content depends on their text alone, so that the prefix cache may hold them.

        Under strict determinism only those of the prompt: on a GPU the keys of a generated token come from the decode
        kernel, and those of the same token in another's prompt, with other last bits, from the prefill kernel.
        """
        return self.prompt.full_blocks if self.strict else self.read // BLOCK_SIZE

    @property
    def shareable_blocks(self) -> int:
        """Cacheable blocks before its last token, which is always computed: its logits are wanted."""
        return min((self.read - 1) // BLOCK_SIZE, self.cacheable_blocks) if self.reads_prefix_cache else 0

    @property
    def copied_end(self) -> int:
        """How many tokens are there after a copy of its prompt's last block; 0 where copying is not worth it.

        The last token is always computed. A choice that comes back after a preemption may copy its whole prompt.
        """
        end = min(self.prompt_tokens, self.read - 1)
        return end if self.reads_prefix_cache and end % BLOCK_SIZE >= WORTH_COPYING else 0

    def wants_prompt_logprobs(self, start: int, end: int) -> bool:
        """Whether the rows [start, end) give log probabilities of prompt tokens that have not come yet."""
        last = min(end, self.prompt_tokens - 1)  # the last prompt token whose predecessor is among the rows
        return not self.reads_prefix_cache and start < last and self.scored <= last

    def key(self, block: int) -> Key:
        """The name of its full block number `block`, whose tokens are all read."""
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
        """Everything that a worker needs to go on with it. No token may be unread."""
        assert self.unread == 0, self
        sampling = self.live.generate.sampling
        twin = self.index % self.live.generate.n
        if twin:  # so that the n choices of one prompt differ
            sampling = structs.replace(sampling, seed=(sampling.seed + twin) % 2**64)
        return SequenceRecord(
            sequence=self.id,
            tokens=self.prompt.tokens + tuple(self.generated),
            prompt_tokens=self.prompt_tokens,
            sampling=sampling,
            stop_token_ids=self.live.stop_token_ids,
            adapter=self.live.generate.adapter,
            strict=self.strict,
        )

    def opening(self) -> OpenChoice:
        """The first message about it to the detokenizer."""
        return OpenChoice(
            request=self.live.generate, index=self.index, prompt=self.prompt.tokens, cached_tokens=self.cached_tokens
        )

    def publish_blocks(self, pool: BlockPool) -> None:
        """Offer its full blocks of computed and read tokens to the prefix cache, as far as others may read them."""
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
        """Tokens that are still on their way will not be read: they cost the reader nothing."""
        self.live.spent -= self.unread
        self.total = self.read

    def distrust_kv(self, pool: BlockPool) -> None:
        """What its blocks hold is suspect: nobody may attach them, now or later."""
        pool.disown(self.blocks)
        self.published = len(self.blocks)
