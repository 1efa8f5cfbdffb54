"""The one configuration tree: frozen, loaded once (command line over config file), passed in pieces.

Every field is a long option of `triolet serve` with dashes for underscores (`--max-model-len`). Sizes are bytes, times
seconds.
"""

from pathlib import Path
from typing import Literal

from msgspec import Struct

BLOCK_SIZE = 64  # tokens of a KV block, on every device: the tile of the attention kernels
MIB = 1 << 20


class EngineSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the worker needs to load a model and run it."""

    model: str  # a checkpoint folder
    device: Literal["auto", "cpu", "cuda"] = "auto"
    kernels: Literal["compiled", "interpret"] = "compiled"  # interpret: the GPU's kernels, step by step, on the CPU
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    quantize: Literal["none", "int8", "int4", "int4-128", "fp8"] = "none"
    kv_cache_dtype: Literal["auto", "bfloat16", "fp8", "int8"] = "auto"  # auto: as dtype
    max_model_len: int | None = None  # None: what the checkpoint says
    max_running: int = 64  # sequences in one step
    max_step_tokens: int = 512  # token budget of one step
    kv_cache_memory: int | None = None  # bytes; None: a share of what is free
    gpu_memory: float | None = None  # a share of the GPU's memory up to 1, or bytes; None: most of what is free
    threads: int | None = None  # None: the physical cores this process may use


class LimitSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds on what clients may ask and hold; each refusal names its limit."""

    max_requests: int = 1024  # accepted and unfinished; beyond it 429. Each holds one outbox and one prompt
    max_choices: int = 128  # prompts * n of one request
    max_body_bytes: int = 4 * MIB
    max_stop_strings: int = 16
    max_stop_length: int = 256  # characters of one stop string
    outbox_tokens: int = 256  # default credit: tokens a stream may be ahead of its reader
    max_socket_requests: int = 256  # concurrent requests on one WebSocket


class ServeSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything `triolet serve` can be told."""

    engine: EngineSettings
    limits: LimitSettings = LimitSettings()
    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None  # a Unix socket's path, in the place of host and port
    ssl_certfile: str | None = None  # PEM, with the chain; makes the server speak TLS
    ssl_keyfile: str | None = None  # None: the key is in ssl_certfile
    served_model_name: str | None = None  # None: the checkpoint folder's name
    api_keys: tuple[str, ...] = ()
    drain_timeout: float = 30.0  # streams in flight at shutdown get this long
    stall_timeout: float = 60.0  # a stream whose reader takes nothing for so long is ended
    send_timeout: float = 30.0  # one socket send may wait so long
    keep_alive_interval: float = 15.0  # a silent SSE stream gets a comment this often
    web_processes: int = 1  # beyond 1: that many, and one for the scheduler
    otlp_endpoint: str | None = None  # collector of traces over OTLP/HTTP; None: as OTEL_* says, or no traces
    metric_aliases: Literal["none", "vllm"] = "none"  # /metrics under these names too
    inline: bool = False  # executor in the front process, for debugging


def model_name(settings: ServeSettings) -> str:
    """The name under which clients ask for the model."""
    return settings.served_model_name or Path(settings.engine.model).resolve().name
