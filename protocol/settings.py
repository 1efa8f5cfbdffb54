"""The only configuration tree: frozen, loaded once (the command line overrides the file), passed on in pieces.

Every field is a long option of `triolet serve` with dashes for underscores (`--max-model-len`). Sizes are bytes, times
seconds.
"""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

BLOCK_SIZE = 64  # tokens of a KV block, on every device: the tile of the attention kernels
MIB = 1 << 20


HANG_SECONDS = 2.0


class AdapterPlaces(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Room for LoRA adapters, which a worker on a GPU takes before it serves."""

    count: int = 0
    rank: int = 16  # the largest that fits


class LargestStep(Struct, frozen=True, kw_only=True):
    """Bounds of a step: on a CPU these; on a GPU they follow from it (models/gpu/memory.py)."""

    max_running: int = 64  # sequences
    max_step_tokens: int = 512


ON_A_CPU = LargestStep()


class EngineSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the worker needs to load a model, run it, and log about it."""

    model: str  # a folder, or a .gguf file; before names are fetched, ORG/NAME[@REVISION] too
    gguf_file: str | None = None  # which one, of a folder or repository with several
    device: Literal["auto", "cpu", "cuda"] = "auto"
    kernels: Literal["compiled", "interpret"] = "compiled"  # interpret: the GPU's kernels, step by step, on the CPU
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    quantize: Literal["none", "int8", "int4", "int4-128", "fp8", "fp8-block", "w8a8"] = "none"
    kv_cache_dtype: Literal["auto", "bfloat16", "fp8", "int8"] = "auto"  # auto: as dtype
    max_model_len: int | None = None  # None: as in the checkpoint
    max_running: int | None = None  # sequences in one step; None: as the device is large
    max_step_tokens: int | None = None  # token budget of one step; None: the same
    kv_cache_memory: int | None = None  # bytes; None: a share of the free memory
    gpu_memory: float | None = None  # up to 1: a share of the GPU's memory, else bytes; None: most of what is free
    keep_packed_weights: bool = False  # in the user's cache folder: the next start does not pack them (CPU only)
    threads: int | None = None  # None: the physical cores this process may use
    adapter_places: AdapterPlaces = AdapterPlaces()  # no option of its own: of the limits, where adapters are offered
    chat_template: str | None = None  # a name among the model's templates, or a file; None: as transformers chooses
    no_jump_ahead: bool = False  # compute every token of an answer with a grammar, also those that it forces
    hang_timeout: float = HANG_SECONDS  # a step without progress for so long has its worker replaced
    log_level: Literal["debug", "info", "warning", "error"] = "info"  # of all processes
    log_format: Literal["text", "json"] = "text"

    def largest_step(self, of_device: LargestStep = ON_A_CPU) -> LargestStep:
        """What is given; the device's where nothing is."""
        running, tokens = self.max_running, self.max_step_tokens
        return LargestStep(
            max_running=of_device.max_running if running is None else running,
            max_step_tokens=of_device.max_step_tokens if tokens is None else tokens,
        )


class LimitSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds on what clients may request and hold; each refusal names its limit."""

    max_requests: int = 1024  # accepted and unfinished; beyond that 429. Each holds one outbox and one prompt
    max_choices: int = 128  # prompts * n of one request
    max_body_bytes: int = 4 * MIB
    max_stop_strings: int = 16
    max_stop_length: int = 256  # characters of one stop string
    outbox_tokens: int = 256  # default credit: tokens a stream may be ahead of its reader
    max_loras: int = 16  # LoRA adapters in the worker at once
    max_lora_rank: int = 16  # the largest rank of an adapter on a GPU
    max_socket_requests: int = 256  # concurrent requests on one WebSocket
    max_resume_seconds: float = 300.0  # longest wait of an answer for its client to come back; 0: none waits
    resume_memory: int = 64 * MIB  # bytes of all answers that are kept for this
    batch_storage: int = 1024 * MIB  # bytes of all files and results of batches, on disk
    response_storage: int = 256 * MIB  # bytes of all stored responses, on disk; 0: none is stored


class ModelSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of several models."""

    name: str  # that clients use
    path: str  # a folder, a .gguf file or a name, as the engine's


_Limit = Annotated[int, Meta(ge=1)] | None  # None: none


class KeySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One API key and its limits: a table `[[keys]]` of a file. Counted in actors/gateway/quotas.py.

    `kv_tokens` and `weight` are the scheduler's (actors/scheduler/queues.py).
    """

    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]  # of the key, as its tenant; the key itself is not known
    name: Annotated[str, Meta(pattern=r"\A[\w.-]{0,64}\Z")] = ""  # in the log and the metrics; not secret
    requests_per_minute: _Limit = None
    tokens_per_minute: _Limit = None  # of prompts, cached or not, and answers
    concurrent: _Limit = None  # unfinished requests
    kv_tokens: Annotated[int, Meta(ge=BLOCK_SIZE)] | None = None  # that its running requests hold in the KV cache
    weight: Annotated[float, Meta(ge=0.01, le=100)] = 1  # of its share of compute, beside the others' 1


def digests(keys: Iterable[str]) -> tuple[str, ...]:
    """The SHA-256 of keys, in hex."""
    return tuple(sha256(key.encode()).hexdigest() for key in keys)


class ServeSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of `triolet serve`."""

    engine: EngineSettings
    limits: LimitSettings = LimitSettings()
    host: str = "127.0.0.1"
    port: int = 8000
    root_path: str = ""  # of a proxy, under which clients find the server, as /llm
    uds: str | None = None  # a Unix socket's path, instead of host and port
    ssl_certfile: str | None = None  # PEM, with the chain; turns TLS on
    ssl_keyfile: str | None = None  # None: the key is in ssl_certfile
    served_model_name: str | None = None  # None: ORG/NAME, or the folder's name
    models: tuple[ModelSettings, ...] = ()  # several, instead of the engine's alone; the first one is also there
    aliases: tuple[str, ...] = ()  # NAME=MODEL: further names of models, of several
    memory: int | None = None  # bytes of weights, working arrays and KV caches of several models together
    loras: tuple[str, ...] = ()  # NAME=PATH: LoRA adapters, in PEFT's format
    lora_folder: str | None = None  # from which clients may load others while the server runs; None: they may not
    api_keys: tuple[str, ...] = ()
    key_tables: tuple[KeySettings, ...] = ()  # no option of its own: `[[keys]]` of a file; these are API keys too
    operator_keys: tuple[str, ...] = ()  # for metrics, ledger and dashboard; none: an API key opens these too
    allow_origins: tuple[str, ...] = ()  # of pages whose scripts may use the server; "*": all
    drain_timeout: float = 30.0  # streams in flight at shutdown get this long
    upgrade_timeout: float = 3600.0  # and those that a server has when another one takes over
    stall_timeout: float = 60.0  # a stream ends when its reader takes nothing for this long
    send_timeout: float = 30.0  # longest wait of one socket send
    keep_alive_timeout: float = 75.0  # a connection between requests; load balancers keep theirs for 60
    keep_alive_interval: float = 15.0  # a silent SSE stream gets a comment this often
    web_processes: int = 1  # above 1: this many, and one more for the scheduler
    access_log: bool = False  # a line for each HTTP exchange
    otlp_endpoint: str | None = None  # trace collector (OTLP/HTTP); None: from the OTEL_* variables, or no traces
    data: str | None = None  # folder of files, batches, responses and usage records; None: the user's state folder
    usage_days: int | None = None  # that usage records are kept; 0: none; None: 90 with `data`, else none
    metric_aliases: Literal["none", "vllm"] = "none"  # /metrics under these names too
    inline: bool = False  # executor in the front process, for debugging

    @property
    def key_digests(self) -> tuple[str, ...]:
        """The SHA-256 of every API key, in hex: the tenants. Empty: no key is asked for."""
        return tuple(dict.fromkeys((*digests(self.api_keys), *(key.sha256 for key in self.key_tables))))


def model_name(settings: ServeSettings) -> str:
    """The name that clients use for the model."""
    return settings.served_model_name or Path(settings.engine.model).resolve().name
