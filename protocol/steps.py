"""The messages between scheduler and executor: one Step out, one StepDone back, and the worker's start and end.

The worker is stateful: it keeps the token ids, block table and sampler state of every sequence it received, until the
sequence is dropped. So a Step is small. After a restart the new worker gets full records again.
"""

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from .events import TokenLogprob
from .message import Message
from .requests import Thinking
from .sampling import Sampling
from .settings import EngineSettings


class SequenceRecord(Struct, frozen=True, kw_only=True, array_like=True):
    """A sequence that the worker does not know, or no longer knows after a preemption or a restart."""

    sequence: int  # id, unique for the life of the front
    tokens: tuple[int, ...]  # prompt and, after a preemption or restart, what had been generated
    prompt_tokens: int  # how many of `tokens` are the prompt
    sampling: Sampling
    stop_token_ids: tuple[int, ...]  # masked until sampling.min_tokens tokens are generated
    strict: bool = False  # batch-invariant launches for every step that holds it
    grammar: int = 0  # what the answer must match: the number of a grammar that the worker has built; 0: none
    adapter: int = 0  # the number of a LoRA adapter that the worker has loaded; 0: none
    thinking: Thinking | None = None  # how its thoughts are marked: they come before what the grammar describes
    reasoning_budget: int | None = None  # tokens that it may think
    pooled: bool = False  # its vector is wanted, once all its tokens are computed
    second: int = 0  # of a pair: where its second text begins


class Chunk(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Run tokens [start, start + count) of a sequence; `sample` if the last of them is the sequence's last token.

    With steps in flight, the front may not have read the token at `start` yet; the worker knows it. If that step gave
    several tokens, the worker computes those too, from where it is, as far as blocks and the step's tokens reach; it
    samples only behind the last one.
    """

    sequence: int
    start: int
    count: int
    blocks: tuple[int, ...] = ()  # KV blocks appended to its table for this chunk (the whole prefix when new)
    sample: bool = False
    prompt_logprobs: bool = False  # return log probabilities of the prompt tokens that follow each row of this chunk


class BlockCopy(Struct, frozen=True, array_like=True):
    """Copy one KV block's content before the step runs. A step's copies run together: no target is a source."""

    source: int
    target: int


class Step(Message, frozen=True, kw_only=True):
    """One forward pass. Applied in order: `dropped`, `new`, `copies`, then the chunks as one ragged batch."""

    step: int
    chunks: tuple[Chunk, ...]
    new: tuple[SequenceRecord, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    dropped: tuple[int, ...] = ()


MAX_FORCED = 32  # tokens of a row behind the sampled one: they cost the reader's credit only afterwards


class Row(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The result of one chunk: no token while the prompt is unfinished, one if sampled, then those it forces."""

    sequence: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    error: str = ""  # a code of protocol.errors (`nonfinite_logits`): this sequence alone fails
    computed: int | None = None  # tokens that were computed, where it was not the chunk's count or nothing was sampled
    vector: bytes = b""  # of a pooled sequence: float32 values


class StepDone(Message, frozen=True, kw_only=True):
    """The answer to one Step, rows in the order of its chunks. Times in seconds."""

    step: int
    rows: tuple[Row, ...]
    duration: float  # the whole step in the worker
    model_duration: float  # of which: the forward pass
    device_allocations: int = 0  # of device memory since Ready; must stay 0
    device_compilations: int = 0  # of kernels since Ready; must stay 0


class MemoryPlan(Struct, frozen=True, kw_only=True):
    """What the worker allocated, in bytes; nothing for KV is allocated after Ready."""

    weights_bytes: int
    workspace_bytes: int
    kv_bytes: int
    num_blocks: int
    block_size: int
    sequences_at_full_length: float


class TokenWork(Struct, frozen=True, kw_only=True):
    """What computing one token takes; a multiplication and an addition are two operations."""

    weight_bytes: int  # that a step of one sequence reads
    all_weight_bytes: int  # that a step of many reads: more only in a mixture of experts, where each takes its own
    kv_bytes: int  # of the cache, for each token of the sequence
    operations: int  # for a token that is generated, attention left out
    prompt_operations: int  # for a token of the prompt, which needs no logits


class ModelNeeds(Struct, frozen=True, kw_only=True):
    """What a model takes on the CPU, in bytes: weights and working arrays, and KV blocks between two bounds."""

    fixed_bytes: int
    kv_block_bytes: int
    kv_least_bytes: int
    kv_most_bytes: int
    context_length: int  # with the most


class PoolingModel(Struct, frozen=True, kw_only=True):
    """What an encoder makes of a text: an embedding, or a classifier's scores."""

    task: Literal["embed", "classify"]
    size: int  # values of a vector
    pooling: str = "mean"  # how a text's tokens become one vector
    normalised: bool = False
    prompts: dict[str, str] = {}  # what may come before a text, by name
    default_prompt: str | None = None
    dimensions: tuple[int, ...] = ()  # of shortened vectors that it was trained for; empty: its files name none
    labels: tuple[str, ...] = ()
    several_labels: bool = False  # each label's score by itself is a probability
    raw_scores: bool = False  # of pairs: a score stays as it is

    @property
    def does(self) -> str:
        """For errors."""
        if self.task == "embed":
            return "makes embeddings: use /v1/embeddings"
        return "classifies: use /v1/classify, and for pairs of texts /v1/score or /v1/rerank"


class LoadModel(Message, frozen=True, kw_only=True):
    """First message to a worker: what to run."""

    settings: EngineSettings


class LoadProgress(Message, frozen=True, kw_only=True):
    """Progress of loading, for the progress bar: `done` of `total` units of `stage`."""

    stage: str
    done: int
    total: int
    unit: Literal["", "bytes"] = ""  # of both numbers; empty: steps of no particular size


ReportProgress = Callable[[LoadProgress], None]  # called in the thread that loads


def ignore_progress(progress: LoadProgress) -> None:
    """For callers without a progress bar."""


class Ready(Message, frozen=True, kw_only=True):
    """The model is loaded, every kernel compiled, all memory allocated."""

    model: str  # name of the checkpoint folder
    architecture: str
    parameters: int
    active_parameters: int = 0  # that one token uses; 0: all of them
    device: str
    dtype: str
    quantize: str
    kv_cache_dtype: str = "bfloat16"
    context_length: int
    model_context_length: int = 0  # the checkpoint's own, which may be longer
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    max_step_tokens: int
    max_running: int
    memory: MemoryPlan
    sampling_defaults: dict[str, float | int]  # generation_config.json: temperature, top_p, top_k, min_p, …
    versions: dict[str, str]
    pid: int
    pooling: PoolingModel | None = None  # None: it generates text
    peak_bytes: int = 0  # the worker's peak resident memory so far; 0 if the system does not report it
    work: TokenWork | None = None  # of this model, in these formats


class LoadFailed(Message, frozen=True, kw_only=True):
    """The worker cannot serve this model; `message` is a plain sentence with the remedy. Then it exits."""

    code: Literal["invalid_checkpoint", "unsupported_model", "out_of_memory", "unsupported_device", "internal_error"]
    message: str


class Ping(Message, frozen=True, kw_only=True):
    """Sent when the link was quiet for a moment. The worker answers with a Pong, even in the middle of a step."""


class Pong(Message, frozen=True, kw_only=True):
    """The worker's process runs and reads its socket."""

    progress: int = 0  # grows while a step computes; always 0 where the device does not tell


class StepFailed(Message, frozen=True, kw_only=True):
    """The step raised, and the worker exits: one of the step's sequences may be the cause."""

    step: int
    message: str


class PrepareGrammar(Message, frozen=True, kw_only=True):
    """Build this grammar, beside the steps; answered with GrammarReady or GrammarFailed. Forget those of `forget`."""

    grammar: int  # its number, never used for another text
    text: str
    forget: tuple[int, ...] = ()  # no sequence of a later step names them


class GrammarReady(Message, frozen=True, kw_only=True):
    """Sequences with this grammar may come."""

    grammar: int


class GrammarFailed(Message, frozen=True, kw_only=True):
    """The worker cannot build or follow this grammar; `message` is a plain sentence."""

    grammar: int
    message: str


class PrepareAdapter(Message, frozen=True, kw_only=True):
    """Load this LoRA adapter between two steps; answered with AdapterReady or AdapterFailed."""

    adapter: int  # its number, never another one's
    path: str  # its folder


class ForgetAdapters(Message, frozen=True, kw_only=True):
    """Give up the memory of these: no sequence of a later step names them. Not answered."""

    adapters: tuple[int, ...]


class AdapterReady(Message, frozen=True, kw_only=True):
    """Sequences with this adapter may come."""

    adapter: int


class AdapterFailed(Message, frozen=True, kw_only=True):
    """The worker cannot load this adapter; `message` is a plain sentence."""

    adapter: int
    message: str


Preparation = PrepareGrammar | PrepareAdapter | ForgetAdapters
PreparationAnswer = GrammarReady | GrammarFailed | AdapterReady | AdapterFailed
WorkerOrder = Step | Preparation  # what the scheduler says to the worker
ToWorker = LoadModel | WorkerOrder | Ping
FromWorker = LoadProgress | Ready | LoadFailed | StepDone | StepFailed | PreparationAnswer | Pong
