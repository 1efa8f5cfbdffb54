"""The CPU runner's memory: sizes before anything is allocated, and the arrays themselves.

All memory is allocated when the runner starts, and touched then (the KV cache: right after). Steps allocate nothing.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
import numpy.typing as npt

from ...kernels.decoder_step.attention import DESCRIPTORS
from ...kernels.decoder_step.shape import JOB_SLOTS, WEIGHT_COLUMNS, Memory, Shape, Staged, attention_tasks
from ...kernels.gemm.pack import packed_bytes, padded
from ...kernels.gemm.tile_int4 import INT4_MOST_ROWS
from ...kernels.paged_attention.cache import BLOCK_TOKENS, LONGEST_INT8_HEAD, region_bytes
from ...kernels.paged_attention.query import query_bytes
from ...kernels.paged_attention.tile import MOST_ROWS, scratch_bytes
from ...kernels.quantise.layout import row_bytes
from ...kernels.rope.cpu import padded_head
from ...kernels.simd.formats import GROUP_SHIFTS, CacheFormat, WeightFormat, default_cache_format
from ..checkpoint.spec import ModelSpec
from .pages import populate, zeroed_pages

ByteArray = npt.NDArray[np.uint8]
CACHE_LINE = 64
NO_WINDOW = 1 << 31
LONGEST_INT8_SUM = 65_536  # inputs; the sum of twice as many products of 127 * 127 fits into int32


class CpuSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The number formats and the largest step of a runner."""

    weight_format: WeightFormat
    cache_format: CacheFormat | None = None  # None: the weight format's default
    max_step_tokens: int
    max_logit_rows: int
    max_model_len: int
    threads: int = 1
    num_blocks: int = 1

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
    shape = make_shape(spec, sizes, embedding_is_bfloat16=True)
    vectors = (2 * shape.hidden_padded + shape.qkv_padded) * 4 * spec.num_layers
    embedding = spec.vocab_size * spec.hidden_size * (4 if sizes.weight_format == "float32" else 2)
    return MemoryNeeds(
        weights_bytes=matrix_bytes(shape, sizes.weight_format) + vectors + embedding,
        workspace_bytes=sum(workspace_sizes(shape, sizes).values()),
        kv_block_bytes=spec.num_layers * spec.num_kv_heads * shape.region_bytes,
    )


def make_shape(spec: ModelSpec, sizes: CpuSizes, *, embedding_is_bfloat16: bool) -> Shape:
    weight_format, cache_format = sizes.weight_format, sizes.kv_format
    head = padded_head(spec.head_dim)
    hidden, mlp = padded(spec.hidden_size), padded(spec.mlp_size)
    attention = spec.num_heads * head
    widest = max(hidden, mlp, attention)
    if weight_format == "int8" and widest > LONGEST_INT8_SUM:
        raise ValueError(f"a layer of {widest} inputs is too wide for int8 weights (at most {LONGEST_INT8_SUM})")
    if cache_format == "int8" and head > LONGEST_INT8_HEAD:
        raise ValueError(f"heads of {head} values are too wide for an int8 KV cache (at most {LONGEST_INT8_HEAD})")
    return Shape(
        layers=spec.num_layers,
        hidden=spec.hidden_size,
        hidden_padded=hidden,
        heads=spec.num_heads,
        kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        head_padded=head,
        qkv_padded=padded((spec.num_heads + 2 * spec.num_kv_heads) * head),
        attention_padded=attention,
        mlp_padded=mlp,
        vocab_size=spec.vocab_size,
        vocab_padded=padded(spec.vocab_size),
        window=spec.sliding_window or NO_WINDOW,
        qk_norm=int(spec.qk_norm),
        group_shift=GROUP_SHIFTS.get(weight_format, 0),
        region_bytes=region_bytes(head, cache_format),
        query_bytes=query_bytes(head, cache_format),
        num_blocks=sizes.num_blocks,
        max_tokens=sizes.max_step_tokens,
        max_length=sizes.max_model_len,
        table_width=sizes.table_width,
        # One cache line longer than the row, so that the rows of a tile do not share a set of the L1 cache.
        activation_stride=padded(row_bytes(weight_format, widest)) + CACHE_LINE,
        scratch_stride=padded(DESCRIPTORS + max(widest * 4, scratch_bytes(head))) + CACHE_LINE,
        embedding_is_bfloat16=int(embedding_is_bfloat16),
        eps=float(spec.norm_eps),
        query_factor=math.log2(math.e) / math.sqrt(spec.head_dim),
    )


def layer_matrices(shape: Shape) -> list[tuple[int, int]]:
    """Padded (channels, k) of a layer's four packed matrices, in the order in which a step reads them."""
    return [
        (shape.qkv_padded, shape.hidden_padded),
        (shape.hidden_padded, shape.attention_padded),
        (2 * shape.mlp_padded, shape.hidden_padded),
        (shape.hidden_padded, shape.mlp_padded),
    ]


def matrix_bytes(shape: Shape, weight_format: WeightFormat) -> int:
    """Bytes of all packed matrices, including the LM head."""
    layer = sum(packed_bytes(n, k, weight_format) for n, k in layer_matrices(shape))
    return shape.layers * layer + packed_bytes(shape.vocab_padded, shape.hidden_padded, weight_format)


def workspace_sizes(shape: Shape, sizes: CpuSizes) -> dict[str, int]:
    """Bytes of every working array; the names are those of Memory and Staged."""
    tokens, rows = sizes.max_step_tokens, max(sizes.max_step_tokens, sizes.max_logit_rows, sizes.threads)
    tasks = attention_tasks(tokens, shape.kv_heads, shape.heads // shape.kv_heads, MOST_ROWS)
    return {
        "rotation": sizes.max_model_len * shape.head_padded * 4,
        "hidden": tokens * shape.hidden_padded * 4,
        "activations": (rows + INT4_MOST_ROWS) * shape.activation_stride,  # a tile reads past the last row
        "qkv": tokens * shape.qkv_padded * 4,
        "queries": tokens * shape.heads * shape.query_bytes,
        "attention": tokens * shape.attention_padded * 4,
        "gate_up": tokens * 2 * shape.mlp_padded * 4,
        "logits": max(1, sizes.max_logit_rows) * shape.vocab_padded * 4,
        "scratch": sizes.threads * shape.scratch_stride,
        "counters": shape.layers * CACHE_LINE,
        "tables": tokens * shape.table_width * 4,
        "tasks": tasks * 4 * 4,
    }


def aligned_bytes(size: int) -> ByteArray:
    """Zeroed bytes from a cache line's start, with every page touched: untouched pages share one page of zeros."""
    raw = np.empty(size + CACHE_LINE, np.uint8)
    start = -raw.ctypes.data % CACHE_LINE
    whole = raw[start : start + size]
    whole.fill(0)
    return whole


class RunnerMemory:
    """The working arrays, the KV cache, and the views that the compiled step takes."""

    def __init__(self, shape: Shape, sizes: CpuSizes) -> None:
        self.arrays = {name: aligned_bytes(size) for name, size in workspace_sizes(shape, sizes).items()}
        block_bytes = shape.kv_heads * shape.region_bytes
        cache = zeroed_pages(shape.layers * sizes.num_blocks * block_bytes)
        self.cache = cache.reshape(shape.layers, sizes.num_blocks, block_bytes)
        self.rotation = self._floats("rotation", shape.head_padded)
        self.logits = self._floats("logits", shape.vocab_padded)
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

    def populate(self) -> None:
        """Take the cache's pages from the system, while the cache is empty."""
        populate(self.cache.reshape(-1))

    def _floats(self, name: str, width: int) -> npt.NDArray[np.float32]:
        return self.arrays[name].view(np.float32).reshape(-1, width)

    def memory(self, embedding_address: int) -> Memory:
        """The addresses, valid as long as this object lives."""
        named = {name: self.arrays[name].ctypes.data for name in Memory._fields if name in self.arrays}
        return Memory(weights=self.weight_table, embedding=embedding_address, cache=self.cache.ctypes.data, **named)
