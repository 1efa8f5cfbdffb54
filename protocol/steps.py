"""What crosses the link between scheduler and executor: one Step out, one StepDone back, and the worker's life.

The worker is stateful: it keeps the token ids, block table and sampler state of every sequence it was told about, until
the sequence is dropped. So a Step is small. After a restart the new worker gets full records again.
"""

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from .events import TokenLogprob
from .message import Message
from .sampling import Sampling
from .settings import EngineSettings


class SequenceRecord(Struct, frozen=True, kw_only=True, array_like=True):
    """A sequence the worker does not know yet (or no longer, after a preemption or a restart)."""

    sequence: int  # id, unique for the life of the front
    tokens: tuple[int, ...]  # prompt and, after a preemption or restart, what was generated since
    prompt_tokens: int  # how many of `tokens` are the prompt
    sampling: Sampling
    stop_token_ids: tuple[int, ...]  # masked while fewer than sampling.min_tokens were generated
    adapter: str = ""
    strict: bool = False  # batch-invariant launches for every step that holds it


class Chunk(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Run tokens [start, start + count) of a sequence; `sample` when the last of them is the sequence's last token.

    With steps in flight the token at `start` may be one the front has not read yet: the worker knows it.
    """

    sequence: int
    start: int
    count: int
    blocks: tuple[int, ...] = ()  # KV blocks appended to its table for this chunk (the whole prefix when new)
    sample: bool = False
    prompt_logprobs: bool = False  # return log probabilities of the prompt tokens that follow each row of this chunk


class BlockCopy(Struct, frozen=True, array_like=True):
    """Copy one KV block's content before the step runs. All copies of a step run at once: no target is a source."""

    source: int
    target: int


class Step(Message, frozen=True, kw_only=True):
    """One forward pass. Applied in order: `dropped`, `new`, `copies`, then the chunks as one ragged batch."""

    step: int
    chunks: tuple[Chunk, ...]
    new: tuple[SequenceRecord, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    dropped: tuple[int, ...] = ()


class Row(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """What one chunk gave: no token while the prompt is unfinished, one when sampled, several with speculation."""

    sequence: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    error: str = ""  # a code of protocol.errors (`nonfinite_logits`): this sequence alone fails


class StepDone(Message, frozen=True, kw_only=True):
    """The answer to one Step, rows in the order of its chunks. Times in seconds."""

    step: int
    rows: tuple[Row, ...]
    duration: float  # the whole step in the worker
    model_duration: float  # of which: the forward pass
    device_allocations: int = 0  # of device memory since Ready: none, or the worker breaks its promise
    device_compilations: int = 0  # of kernels, likewise


class MemoryPlan(Struct, frozen=True, kw_only=True):
    """What the worker allocated, in bytes; nothing for KV is allocated after Ready."""

    weights_bytes: int
    workspace_bytes: int
    kv_bytes: int
    num_blocks: int
    block_size: int
    sequences_at_full_length: float


class LoadModel(Message, frozen=True, kw_only=True):
    """First message to a worker: what to run."""

    settings: EngineSettings


class LoadProgress(Message, frozen=True, kw_only=True):
    """How far loading is, for the progress bar: `done` of `total` units of `stage`."""

    stage: str
    done: int
    total: int


ReportProgress = Callable[[LoadProgress], None]  # called in the thread that loads


def ignore_progress(progress: LoadProgress) -> None:
    """For callers without a progress bar."""


class Ready(Message, frozen=True, kw_only=True):
    """The model is loaded, every kernel compiled, all memory allocated."""

    model: str  # name of the checkpoint folder
    architecture: str
    parameters: int
    device: str
    dtype: str
    quantize: str
    kv_cache_dtype: str = "bfloat16"
    context_length: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    max_step_tokens: int
    max_running: int
    memory: MemoryPlan
    sampling_defaults: dict[str, float | int]  # generation_config.json: temperature, top_p, top_k, min_p, …
    versions: dict[str, str]
    pid: int
    peak_bytes: int = 0  # the most memory the worker held in RAM until now; 0 where the system does not report it


class LoadFailed(Message, frozen=True, kw_only=True):
    """The worker cannot serve this model: a plain sentence with the remedy. It exits afterwards."""

    code: Literal["invalid_checkpoint", "unsupported_model", "out_of_memory", "unsupported_device", "internal_error"]
    message: str


class Ping(Message, frozen=True, kw_only=True):
    """Sent when nothing else was sent for a moment. The worker answers with a Pong, even in the middle of a step."""


class Pong(Message, frozen=True, kw_only=True):
    """The worker is there: its process runs and reads its socket."""


class StepFailed(Message, frozen=True, kw_only=True):
    """The forward pass raised: every sequence of the step fails with `engine_error`, and the worker exits."""

    step: int
    message: str


ToWorker = LoadModel | Step | Ping
FromWorker = LoadProgress | Ready | LoadFailed | StepDone | StepFailed | Pong
