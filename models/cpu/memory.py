"""The CPU runner's memory: sizes before anything is allocated, and the arrays themselves.

All memory is allocated when the runner starts, and touched then (the KV cache: later, see pages.py). Steps allocate
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt

from ...kernels.decoder_step.attention import DESCRIPTORS
from ...kernels.decoder_step.shape import JOB_SLOTS, WEIGHT_COLUMNS, Memory, Shape, Staged, attention_tasks
from ...kernels.embedding.cpu import BFLOAT16_TABLE
from ...kernels.gemm.pack import packed_bytes, padded
from ...kernels.gemm.tile_int4 import INT4_MOST_ROWS
from ...kernels.paged_attention.cache import BLOCK_TOKENS, LONGEST_INT8_HEAD, region_bytes
from ...kernels.paged_attention.cpu import most_rows
from ...kernels.paged_attention.query import query_bytes
from ...kernels.paged_attention.tile import MOST_ROWS, scratch_bytes
from ...kernels.quantise.layout import row_bytes
from ...kernels.rope.cpu import padded_head
from ...kernels.simd.activations import NUMBERS
from ...kernels.simd.formats import GROUP_SHIFTS, CacheFormat, WeightFormat, default_cache_format
from ..checkpoint.spec import ModelSpec
from ..pages import CACHE_LINE, aligned_bytes, populate, zeroed_pages
from .experts import ExpertArrays, expert_bytes, expert_sizes, make_expert_shape
from .latent import LatentArrays, LatentSizes
from .rotation import rotations

ByteArray = npt.NDArray[np.uint8]
NO_WINDOW = 1 << 31
LONGEST_INT8_SUM = 65_536  # inputs; the sum of twice as many products of 127 * 127 fits into int32


class CpuSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The number formats and the largest step of a runner."""

    weight_format: WeightFormat
    stored_bytes: int = 0  # of "stored": what the matrices take, packed
    stored_embedding_bytes: int | None = None  # of an embedding of codes, packed; 0: it is the LM head's
    cache_format: CacheFormat | None = None  # None: the weight format's default
    max_step_tokens: int
    max_logit_rows: int
    max_model_len: int
    threads: int = 1  # the most that a step may use; there is memory for so many
    first_threads: int | None = None  # that the first steps use, while the CPUs are followed; None: all, always
    num_blocks: int = 1
    adapters: bool = False  # whether steps may have LoRA adapters: their code is compiled

    @property
    def kv_format(self) -> CacheFormat:
        return self.cache_format or default_cache_format(self.weight_format)

    @property
    def table_width(self) -> int:
        """Number of blocks of the longest sequence."""
        return -(-self.max_model_len // BLOCK_TOKENS)


class MemoryNeeds(msgspec.Struct, frozen=True):
    """Bytes that a CpuRunner will take, plus kv_block_bytes for each KV block."""

    weights_bytes: int
    workspace_bytes: int
    kv_block_bytes: int


def memory_needs(spec: ModelSpec, sizes: CpuSizes) -> MemoryNeeds:
    """The needs, before loading. The embedding counts although it stays mapped from the checkpoint."""
    shape = make_shape(spec, sizes, BFLOAT16_TABLE)
    experts = expert_sizes(shape.experts, sizes.max_step_tokens, sizes.threads)
    embedding = spec.vocab_size * spec.hidden_size * (4 if sizes.weight_format == "float32" else 2)
    if sizes.stored_embedding_bytes is not None:
        embedding = sizes.stored_embedding_bytes
    latent = latent_sizes(spec)
    inputs = latent.workspace(sizes.weight_format, sizes.max_step_tokens) if latent else {}
    matrices = sizes.stored_bytes if sizes.weight_format == "stored" else matrix_bytes(spec, shape, sizes.weight_format)
    return MemoryNeeds(
        weights_bytes=matrices + vector_bytes(spec, shape) + embedding,
        workspace_bytes=sum(sum(each.values()) for each in (workspace_sizes(spec, shape, sizes), experts, inputs)),
        kv_block_bytes=spec.num_layers * spec.num_kv_heads * shape.region_bytes,
    )


def make_shape(spec: ModelSpec, sizes: CpuSizes, embedding_kind: int) -> Shape:
    weight_format, cache_format = sizes.weight_format, sizes.kv_format
    latent = latent_sizes(spec)
    head = padded_head(spec.head_dim) if latent is None else latent.row
    hidden, mlp = padded(spec.hidden_size), padded(spec.mlp_size)
    attention = spec.num_heads * head if latent is None else latent.mixed
    widest = max(hidden, mlp, attention, latent.query if latent else 0)
    middle = padded(max(spec.experts.width, spec.experts.shared_width)) if spec.experts else 0
    if weight_format == "int8" and max(widest, middle) > LONGEST_INT8_SUM:
        raise ValueError(
            f"a layer of {max(widest, middle)} inputs is too wide for int8 weights (at most {LONGEST_INT8_SUM})"
        )
    if cache_format == "int8" and latent is not None:
        raise ValueError("a KV cache of latent vectors is not kept in int8: set cache_format to None")
    if cache_format == "int8" and head > LONGEST_INT8_HEAD:
        raise ValueError(f"heads of {head} values are too wide for an int8 KV cache (at most {LONGEST_INT8_HEAD})")
    # One cache line longer than the row, so that the rows of a tile do not share a set of the L1 cache.
    stride = padded(row_bytes(weight_format, widest)) + CACHE_LINE
    attention_rows = MOST_ROWS if latent else most_rows(cache_format)
    scratch = max(widest * 4, head * 4, middle * 4, scratch_bytes(head, attention_rows))
    return Shape(
        layers=spec.num_layers,
        hidden=spec.hidden_size,
        hidden_padded=hidden,
        heads=spec.num_heads,
        kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        head_padded=head,
        qkv_padded=latent.projected if latent else padded((spec.num_heads + 2 * spec.num_kv_heads) * head),
        attention_padded=attention,
        mlp_padded=mlp,
        vocab_size=spec.vocab_size,
        vocab_padded=padded(spec.vocab_size),
        window=max(layer.window or NO_WINDOW for layer in spec.layers),
        qk_norm={None: 0, "head": 1, "heads": 1, "row": 2}[spec.qk_norm],
        centred=int(spec.layer_norm),
        parallel=int(spec.parallel),
        gate_up_channels=(2 if spec.gated else 1) * mlp,
        activation=NUMBERS[spec.activation],
        group_shift=GROUP_SHIFTS.get(weight_format, 0),
        region_bytes=region_bytes(head, cache_format, latent=latent is not None),
        query_bytes=query_bytes(head, "float32" if latent else cache_format),
        attention_rows=attention_rows,
        num_blocks=sizes.num_blocks,
        max_tokens=sizes.max_step_tokens,
        max_length=sizes.max_model_len,
        table_width=sizes.table_width,
        activation_stride=stride,
        scratch_stride=padded(DESCRIPTORS + scratch) + CACHE_LINE,
        embedding_kind=embedding_kind,
        experts=make_expert_shape(spec.experts, weight_format, hidden, stride, sizes.max_step_tokens),
        eps=float(spec.norm_eps),
        query_factor=math.log2(math.e) * spec.score_scale,
        score_cap=math.log2(math.e) * (spec.score_cap or 0.0),
        logit_cap=float(spec.logit_cap or 0.0),
        embedding_factor=float(spec.embedding_factor),
    )


def latent_sizes(spec: ModelSpec) -> LatentSizes | None:
    return None if spec.latent is None else LatentSizes(spec.latent, spec.num_heads)


def vector_bytes(spec: ModelSpec, shape: Shape) -> int:
    """Bytes of norms, biases and the rows of zeros and ones that stand for those a family lacks."""
    names = spec.names
    norms = (names.before_attention, names.after_attention, names.before_mlp, names.after_mlp)
    rows = sum(name is not None for name in norms) + (2 if spec.norm_bias else 0) + spec.out_bias + spec.mlp_bias
    layer = rows * shape.hidden_padded + 2 * shape.mlp_padded * spec.mlp_bias
    layer += shape.qkv_padded * spec.qkv_bias + 2 * shape.heads * spec.sinks
    latent = latent_sizes(spec)
    layer += latent.kv + latent.query if latent else (shape.heads + shape.kv_heads) * shape.head_padded
    experts = shape.experts.experts * (2 * shape.experts.width_padded + shape.hidden_padded)
    sparse = sum(kind.experts for kind in spec.layers) if spec.experts is not None and spec.experts.biased else 0
    return 4 * (spec.num_layers * layer + sparse * experts + 2 * shape.hidden_padded)


def layer_matrices(shape: Shape) -> list[tuple[int, int]]:
    """Padded (channels, k) of a layer's four packed matrices, in the order in which a step reads them."""
    return [
        (shape.qkv_padded, shape.hidden_padded),
        (shape.hidden_padded, shape.attention_padded),
        (shape.gate_up_channels, shape.hidden_padded),
        (shape.hidden_padded, shape.mlp_padded),
    ]


def matrix_bytes(spec: ModelSpec, shape: Shape, weight_format: WeightFormat) -> int:
    """Bytes of all packed matrices, including the LM head."""
    matrices = layer_matrices(shape)
    sparse = sum(layer.experts for layer in spec.layers)
    total = packed_bytes(shape.vocab_padded, shape.hidden_padded, weight_format)
    latent = latent_sizes(spec)
    attention = [*matrices[:2], *(latent.matrices() if latent else ())]
    total += shape.layers * sum(packed_bytes(n, k, weight_format) for n, k in attention)
    if sparse < shape.layers:
        total += (shape.layers - sparse) * sum(packed_bytes(n, k, weight_format) for n, k in matrices[2:])
    return total + (sparse * expert_bytes(shape.experts, weight_format) if sparse else 0)


def workspace_sizes(spec: ModelSpec, shape: Shape, sizes: CpuSizes) -> dict[str, int]:
    """Bytes of every working array; the names are those of Memory and Staged."""
    tokens, rows = sizes.max_step_tokens, sizes.threads + max(sizes.max_step_tokens, sizes.max_logit_rows)
    tasks = attention_tasks(tokens, shape.kv_heads, shape.heads // shape.kv_heads, shape.attention_rows)
    return {
        "rotation": len(rotations(spec)) * sizes.max_model_len * padded_head(spec.turned_dim) * 4,
        "hidden": tokens * shape.hidden_padded * 4,
        "activations": (rows + INT4_MOST_ROWS) * shape.activation_stride,  # a tile reads past the last row
        "qkv": tokens * shape.qkv_padded * 4,
        "queries": tokens * shape.heads * shape.query_bytes,
        "attention": tokens * shape.attention_padded * 4,
        "gate_up": tokens * 2 * shape.mlp_padded * 4,
        "branch": tokens * shape.hidden_padded * 4 * has_branches(spec),
        "logits": max(1, sizes.max_logit_rows) * shape.vocab_padded * 4,
        "scratch": sizes.threads * shape.scratch_stride,
        "tables": tokens * shape.table_width * 4,
        "tasks": tasks * 4 * 4,
    }


def has_branches(spec: ModelSpec) -> bool:
    """Whether what a block adds to the residual stream is not its projection alone."""
    return bool(spec.names.after_attention or spec.names.after_mlp or spec.out_bias or spec.mlp_bias)


class RunnerMemory:
    """The working arrays, the KV cache, and the views that the compiled step takes."""

    def __init__(self, spec: ModelSpec, shape: Shape, sizes: CpuSizes) -> None:
        self.arrays = {name: aligned_bytes(size) for name, size in workspace_sizes(spec, shape, sizes).items()}
        block_bytes = shape.kv_heads * shape.region_bytes
        cache = zeroed_pages(shape.layers * sizes.num_blocks * block_bytes)
        self.cache = cache.reshape(shape.layers, sizes.num_blocks, block_bytes)
        turned = padded_head(spec.turned_dim)
        self.rotation = self._floats("rotation", turned).reshape(-1, sizes.max_model_len, turned)
        self.logits = self._floats("logits", shape.vocab_padded)
        self.experts: ExpertArrays | None = None
        if spec.experts is not None:
            self.experts = ExpertArrays(
                shape.experts, shape.layers, sizes.weight_format, sizes.max_step_tokens, sizes.threads
            )
        self.latent: LatentArrays | None = None
        if (latent := latent_sizes(spec)) is not None:
            formats = sizes.weight_format, sizes.kv_format
            self.latent = LatentArrays(latent, shape.layers, *formats, sizes.max_step_tokens)
        self.weight_table = np.zeros((shape.layers + 1, WEIGHT_COLUMNS), np.int64)
        self.staged = Staged(
            job=np.zeros(JOB_SLOTS, np.int64),
            tokens=np.zeros(sizes.max_step_tokens, np.int32),
            positions=np.zeros(sizes.max_step_tokens, np.int32),
            slots=np.zeros(sizes.max_step_tokens, np.int32),
            starts=np.zeros(sizes.max_step_tokens + 1, np.int32),
            tables=self.arrays["tables"].view(np.int32).reshape(-1, shape.table_width),
            logit_rows=np.zeros(max(1, sizes.max_logit_rows), np.int32),
            tasks=self.arrays["tasks"].view(np.int32).reshape(-1, 4),
            low_rank_tasks=np.zeros((sizes.max_step_tokens, 3), np.int64),
        )

    def populate(self, idle_seconds: Callable[[], float]) -> None:
        """Take the cache's pages from the system, while the cache is empty and no step runs (see pages.py)."""
        populate(self.cache.reshape(len(self.cache), -1), idle_seconds)

    def _floats(self, name: str, width: int) -> npt.NDArray[np.float32]:
        return self.arrays[name].view(np.float32).reshape(-1, width)

    def memory(self, embedding_address: int) -> Memory:
        """The addresses, valid as long as this object lives."""
        named = {name: self.arrays[name].ctypes.data for name in Memory._fields if name in self.arrays}
        return Memory(
            weights=self.weight_table,
            embedding=embedding_address,
            cache=self.cache.ctypes.data,
            **named,
        )
