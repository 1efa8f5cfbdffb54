"""The messages between actors: who sends what to whom. To learn the architecture, read this file.

web -> gateway -> tokenizer (-> grammar) -> admission -> scheduler -> supervisor <=> (link) executor
                                            scheduler -> detokenizer -> gateway (outbox) -> web
"""

from collections.abc import Iterator

from msgspec import Struct

from .adapters import Adapter
from .events import FinishReason, TokenLogprob
from .message import Message
from .requests import Generate
from .steps import PreparationAnswer, Ready, StepDone, StepFailed


class Tokenized(Message, frozen=True, kw_only=True):
    """tokenizer (-> grammar) -> admission: the request with its prompts as token ids, one tuple per prompt.

    The request may have more fields set than when it came: `thinking`. With a `grammar_source`, it goes first to the
    grammar actor, which compiles that.
    """

    request: Generate
    prompts: tuple[tuple[int, ...], ...]
    seconds: tuple[int, ...] = ()  # of pairs: where the second text of each prompt begins


class Admit(Message, frozen=True, kw_only=True):
    """admission -> scheduler: run this. Every limit was checked; `max_tokens` is resolved against the context."""

    request: Generate
    prompts: tuple[tuple[int, ...], ...]
    max_tokens: tuple[int, ...]  # per prompt
    stop_token_ids: tuple[int, ...]  # the model's end-of-sequence ids and the request's own
    eos_token_ids: tuple[int, ...]  # the model's: they end a choice without a stop reason; empty with ignore_eos
    seconds: tuple[int, ...] = ()  # as in Tokenized


class Cancel(Message, frozen=True, kw_only=True):
    """gateway -> scheduler: stop every choice of this request. Unknown ids are fine."""

    id: str
    reason: FinishReason = "cancelled"


class Credit(Message, frozen=True, kw_only=True):
    """gateway -> scheduler: the client took `tokens` more tokens; a parked sequence may go on."""

    id: str
    tokens: int


class AdapterGone(Message, frozen=True, kw_only=True):
    """web -> scheduler: no new request names this adapter; the worker forgets it after the last one that does."""

    adapter: Adapter


class Stop(Message, frozen=True, kw_only=True):
    """detokenizer -> scheduler: choice `index` matched a stop string after `tokens_kept` generated tokens."""

    id: str
    index: int
    tokens_kept: int


class WorkerLost(Message, frozen=True, kw_only=True):
    """supervisor -> scheduler: the worker is gone, with its KV cache. Preempt everything and wait for WorkerReady."""

    reason: str
    crashed: bool = False  # or hung, perhaps because of what it computed; otherwise it was killed from outside


class WorkerReady(Message, frozen=True, kw_only=True):
    """supervisor -> scheduler: a (new) worker is ready; it knows no sequence."""

    ready: Ready


class EngineFailed(Message, frozen=True, kw_only=True):
    """supervisor -> scheduler: no worker will come (restart budget spent). Fail everything with a 503."""

    reason: str


ToTokenizer = Generate
ToGrammar = Tokenized
ToAdmission = Tokenized
ToScheduler = (
    Admit
    | Cancel
    | Credit
    | Stop
    | AdapterGone
    | StepDone
    | StepFailed
    | PreparationAnswer
    | WorkerLost
    | WorkerReady
    | EngineFailed
)


class OpenChoice(Message, frozen=True, kw_only=True):
    """scheduler -> detokenizer: a choice begins; text follows. Sent once, and not repeated after a preemption."""

    request: Generate
    index: int
    prompt: tuple[int, ...]  # its token ids, for the decode stream's context and for echo
    cached_tokens: int = 0


class ChoiceTokens(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """New tokens of one choice. If `reason` is set, they are its last; a stop token is not among them.

    Like `Chunk` and `Row` it is made for every token. It cannot be part of a cycle, so the garbage collector does not
    track it: making one takes 40 ns instead of 60.
    """

    id: str
    index: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    reason: FinishReason | None = None
    stop_reason: int | None = None
    stop_token: int | None = None  # which ended it: generated, but without text
    error: str = ""  # a code of protocol.errors, with reason == "error"
    message: str = ""
    vector: bytes = b""  # of a prompt that is pooled: float32 values
    retry_after: int | None = None  # seconds, with an error


class StepTokens(Message, frozen=True, kw_only=True):
    """scheduler -> detokenizer: the tokens of one step.

    Nearly all tokens travel as rows: those of first choices that do not end and have no log probabilities.
    """

    ids: tuple[str, ...] = ()  # of requests, without repeats
    rows: tuple[tuple[int, ...], ...] = ()  # the new tokens of each one's first choice, at least one
    others: tuple[ChoiceTokens, ...] = ()  # everything else

    def choices(self) -> Iterator[ChoiceTokens]:
        """The same, one by one."""
        for id, tokens in zip(self.ids, self.rows, strict=True):
            yield ChoiceTokens(id=id, index=0, tokens=tokens)
        yield from self.others


class DropRequest(Message, frozen=True, kw_only=True):
    """scheduler -> detokenizer: forget this request; it ended otherwise (cancel, deadline, stall)."""

    id: str
    reason: FinishReason


ToDetokenizer = OpenChoice | StepTokens | DropRequest
