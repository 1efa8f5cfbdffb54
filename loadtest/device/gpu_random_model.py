"""Models of random weights in real shapes, made in memory: speed does not depend on what the weights are.

All matrices of a model are views of one block of values, so the host holds a gigabyte and no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from triolet.kernels.gemm.gpu_weights import PackedLinear
from triolet.models.checkpoint.rope import RopeSpec
from triolet.models.checkpoint.safetensors import WeightArray
from triolet.models.checkpoint.spec import ModelSpec
from triolet.models.checkpoint.weights import DecoderWeights, LayerWeights
from triolet.models.gpu import linear as gpu_linear

LLAMA_8B = ModelSpec(
    family="llama", vocab_size=128256, hidden_size=4096, num_layers=32, num_heads=32, num_kv_heads=8, head_dim=128,
    mlp_size=14336, norm_eps=1e-5, max_position=131072,
    rope=RopeSpec(theta=500_000.0, kind="llama3", factor=8.0, original_max_position=8192),
)  # fmt: skip
QWEN_600M = ModelSpec(
    family="qwen3", vocab_size=151936, hidden_size=1024, num_layers=28, num_heads=16, num_kv_heads=8, head_dim=128,
    mlp_size=3072, norm_eps=1e-6, max_position=40960, rope=RopeSpec(theta=1_000_000.0), qk_norm=True,
    tied_embeddings=True,
)  # fmt: skip
TINY = ModelSpec(  # for the interpreter
    family="qwen3", vocab_size=120, hidden_size=64, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=64,
    mlp_size=64, norm_eps=1e-5, rope=RopeSpec(), max_position=192, qk_norm=True,
)  # fmt: skip
DEVIATION = 0.02  # of the weights: the order of a trained model's, so that nothing overflows
BLOCK = 1 << 22  # distinct values


def random_weights(spec: ModelSpec) -> DecoderWeights:
    """bfloat16 bits."""
    query, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    hidden, inner = spec.hidden_size, spec.mlp_size
    largest = max(spec.vocab_size, inner, query) * max(hidden, query) + inner * hidden
    values = DEVIATION * np.random.default_rng(0).standard_normal(min(BLOCK, largest), dtype=np.float32)
    bits = np.resize((values.view(np.uint32) >> 16).astype(np.uint16), largest)

    def matrix(rows: int, columns: int) -> WeightArray:
        return bits[: rows * columns].reshape(rows, columns)

    def ones(size: int) -> WeightArray:
        return np.ones(size, np.float32)

    layer = LayerWeights(
        q=matrix(query, hidden), k=matrix(kv, hidden), v=matrix(kv, hidden), o=matrix(hidden, query),
        gate=matrix(inner, hidden), up=matrix(inner, hidden), down=matrix(hidden, inner),
        input_norm=ones(hidden), post_norm=ones(hidden),
        q_norm=ones(spec.head_dim) if spec.qk_norm else None, k_norm=ones(spec.head_dim) if spec.qk_norm else None,
    )  # fmt: skip
    return DecoderWeights(
        embedding=matrix(spec.vocab_size, hidden),
        layers=(layer,) * spec.num_layers,
        final_norm=ones(hidden),
        lm_head=None if spec.tied_embeddings else matrix(spec.vocab_size, hidden),
    )


@contextmanager
def packed_once(place: torch.device) -> Iterator[None]:
    """While it lasts, matrices of one shape are quantised once, on the device: they all hold the same values here.

    Quantising eight billion weights on the host would take most of the suite's time and measure nothing.
    """
    original = gpu_linear.pack
    known: dict[tuple[torch.Size, str], PackedLinear] = {}

    def pack(weight: torch.Tensor, quantize: str) -> PackedLinear:
        if weight.is_meta or quantize == "none":
            return original(weight, quantize)
        key = weight.shape, quantize
        if key not in known:
            known[key] = original(weight.to(place), quantize)
        return known[key]

    gpu_linear.pack = pack
    try:
        yield
    finally:
        gpu_linear.pack = original
