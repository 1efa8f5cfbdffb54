"""The encoder runner's memory: sizes before anything is allocated, and the arrays themselves.

All memory is allocated when the runner starts; steps allocate nothing. Keys and values are those of one layer of one
step, in float32 beside any weights: they never leave the caches, so smaller ones would save nothing.
"""

import math

import msgspec
import numpy as np
import numpy.typing as npt

from ...kernels.decoder_step.attention import DESCRIPTORS
from ...kernels.encoder_step.shape import (
    JOB_SLOTS,
    TASK_COLUMNS,
    TASK_MOST,
    WEIGHT_COLUMNS,
    EncoderAddresses,
    EncoderShape,
    StagedTexts,
)
from ...kernels.gemm.pack import packed_bytes, padded
from ...kernels.gemm.tile_int4 import INT4_MOST_ROWS
from ...kernels.paged_attention.cache import BLOCK_TOKENS, region_bytes
from ...kernels.paged_attention.query import query_bytes
from ...kernels.paged_attention.tile import MOST_ROWS, scratch_bytes
from ...kernels.quantise.layout import row_bytes
from ...kernels.rope.cpu import padded_head
from ...kernels.simd.activations import NUMBERS
from ...kernels.simd.formats import GROUP_SHIFTS, CacheFormat, WeightFormat
from ...protocol.settings import BLOCK_SIZE, EngineSettings
from ...protocol.steps import MemoryPlan
from ..cpu.memory import LONGEST_INT8_SUM
from ..pages import CACHE_LINE, aligned_bytes
from .spec import EncoderSpec

KEY_FORMAT: CacheFormat = "float32"


class EncoderSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The number format and the largest step of a runner."""

    weight_format: WeightFormat
    max_step_tokens: int
    max_length: int  # tokens of a text
    max_texts: int  # of a step
    threads: int = 1  # the most that a step may use; there is memory for so many
    first_threads: int | None = None  # that the first steps use, while the CPUs are followed; None: all, always

    @property
    def max_blocks(self) -> int:
        """Of 64 keys: a text's last one may be nearly empty."""
        return min(self.max_step_tokens, self.max_step_tokens // BLOCK_TOKENS + self.max_texts)


def make_shape(spec: EncoderSpec, sizes: EncoderSizes, *, embedding_is_bfloat16: bool) -> EncoderShape:
    weight_format = sizes.weight_format
    head = padded_head(spec.head_dim)
    hidden, mlp, attention = padded(spec.hidden_size), padded(spec.mlp_size), padded(spec.num_heads * head)
    widest = max(hidden, mlp, attention)
    if weight_format == "int8" and widest > LONGEST_INT8_SUM:
        raise ValueError(f"a layer of {widest} inputs is too wide for int8 weights (at most {LONGEST_INT8_SUM})")
    rotary = any(layer.rope is not None for layer in spec.layers)
    return EncoderShape(
        layers=len(spec.layers),
        hidden=spec.hidden_size,
        hidden_padded=hidden,
        heads=spec.num_heads,
        head_dim=spec.head_dim,
        head_padded=head,
        qkv_padded=padded(3 * spec.num_heads * head),
        attention_padded=attention,
        mlp_padded=mlp,
        up_padded=(1 + spec.gated) * mlp,
        activation=NUMBERS[spec.activation],
        vocab_size=spec.vocab_size,
        token_types=spec.token_types,
        max_tokens=sizes.max_step_tokens,
        max_blocks=sizes.max_blocks,
        max_length=sizes.max_length,
        group_shift=GROUP_SHIFTS.get(weight_format, 0),
        region_bytes=region_bytes(head, KEY_FORMAT),
        query_bytes=query_bytes(head, KEY_FORMAT),
        rotation_stride=head * 4 if rotary else 0,
        place_stride=hidden * 4 if spec.names.positions is not None else 0,
        # One cache line longer than the row, so that the rows of a tile do not share a set of the L1 cache.
        activation_stride=padded(row_bytes(weight_format, widest)) + CACHE_LINE,
        scratch_stride=padded(DESCRIPTORS + max(widest * 4, scratch_bytes(head, MOST_ROWS))) + CACHE_LINE,
        embedding_is_bfloat16=int(embedding_is_bfloat16),
        eps=spec.norm_eps,
        query_factor=math.log2(math.e) / math.sqrt(spec.head_dim),
    )


def layer_matrices(shape: EncoderShape) -> list[tuple[int, int]]:
    """Padded (channels, k) of a layer's four packed matrices, in the order in which a step reads them."""
    return [
        (shape.qkv_padded, shape.hidden_padded),
        (shape.hidden_padded, shape.attention_padded),
        (shape.up_padded, shape.hidden_padded),
        (shape.hidden_padded, shape.mlp_padded),
    ]


def weight_bytes(spec: EncoderSpec, shape: EncoderShape, weight_format: WeightFormat) -> int:
    """Of the packed matrices and the embedding, which stays mapped from the checkpoint."""
    layer = sum(packed_bytes(n, k, weight_format) for n, k in layer_matrices(shape))
    vectors = (5 * shape.hidden_padded + shape.qkv_padded + shape.up_padded) * 4
    embedding = shape.vocab_size * shape.hidden * (4 if weight_format == "float32" else 2)
    return len(spec.layers) * (layer + vectors) + embedding


def workspace_sizes(spec: EncoderSpec, shape: EncoderShape, sizes: EncoderSizes) -> dict[str, int]:
    """Bytes of every working array; the names are those of EncoderAddresses and StagedTexts."""
    tokens = sizes.max_step_tokens
    widest = max(shape.hidden_padded, shape.up_padded, shape.qkv_padded)
    ropes = {layer.rope for layer in spec.layers if layer.rope is not None}
    return {
        "rotation": max(1, len(ropes) * sizes.max_length) * shape.head_padded * 4,
        "places": (spec.token_types * sizes.max_length if shape.place_stride else 1) * shape.hidden_padded * 4,
        "ones": widest * 4,
        "zeros": widest * 4,
        "cache": shape.max_blocks * shape.heads * shape.region_bytes,
        "blocks": shape.max_blocks * 4,
        "hidden": tokens * shape.hidden_padded * 4,
        "activations": (tokens + INT4_MOST_ROWS) * shape.activation_stride,  # a tile reads past the last row
        "qkv": tokens * shape.qkv_padded * 4,
        "queries": tokens * shape.heads * shape.query_bytes,
        "attention": tokens * shape.attention_padded * 4,
        "up": tokens * shape.up_padded * 4,
        "scratch": sizes.threads * shape.scratch_stride,
        "tasks": (tokens // TASK_MOST + min(tokens, sizes.max_texts)) * shape.heads * TASK_COLUMNS * 4,
    }


class EncoderMemory:
    """The working arrays, and the views that the compiled step takes."""

    def __init__(self, spec: EncoderSpec, shape: EncoderShape, sizes: EncoderSizes) -> None:
        self.arrays = {name: aligned_bytes(size) for name, size in workspace_sizes(spec, shape, sizes).items()}
        self.arrays["ones"].view(np.float32).fill(1)
        blocks = self.arrays["blocks"].view(np.int32)
        blocks[:] = np.arange(len(blocks))
        self.rotation = self.floats("rotation", shape.head_padded)
        self.places = self.floats("places", shape.hidden_padded)
        self.hidden = self.floats("hidden", shape.hidden_padded)
        self.weight_table = np.zeros((shape.layers + 1, WEIGHT_COLUMNS), np.int64)
        self.staged = StagedTexts(
            job=np.zeros(JOB_SLOTS, np.int64),
            tokens=np.zeros(sizes.max_step_tokens, np.int32),
            positions=np.zeros(sizes.max_step_tokens, np.int32),
            places=np.zeros(sizes.max_step_tokens, np.int32),
            slots=np.zeros(sizes.max_step_tokens, np.int32),
            tasks=self.arrays["tasks"].view(np.int32).reshape(-1, TASK_COLUMNS),
        )

    def floats(self, name: str, width: int) -> npt.NDArray[np.float32]:
        return self.arrays[name].view(np.float32).reshape(-1, width)

    def memory(self, embedding_address: int) -> EncoderAddresses:
        """The addresses, valid as long as this object lives."""
        named = {name: self.arrays[name].ctypes.data for name in EncoderAddresses._fields if name in self.arrays}
        return EncoderAddresses(weights=self.weight_table, embedding=embedding_address, **named)


def plan_of_texts(settings: EngineSettings, length: int, weights: int, workspace: int, kv: int = 0) -> MemoryPlan:
    """The plan that the worker reports: bytes, and blocks that the scheduler counts for texts of that length.

    They are counted as a generating model's are, but a text's keys and values do not outlive its step.
    """
    of_a_text, running = -(-length // BLOCK_SIZE), settings.largest_step().max_running
    return MemoryPlan(
        weights_bytes=weights,
        workspace_bytes=workspace,
        kv_bytes=kv,
        num_blocks=(running + 1) * (of_a_text + 1),  # a planner keeps one free per running text
        block_size=BLOCK_SIZE,
        sequences_at_full_length=running,
    )
