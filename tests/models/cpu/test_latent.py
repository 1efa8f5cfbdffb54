"""Latent attention in the CPU runner: in every format near the reference, its invariance, and its memory."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace

from triolet.kernels.gemm.reference import rounded_weights
from triolet.kernels.simd.formats import WeightFormat
from triolet.models.checkpoint.latent import LatentSpec
from triolet.models.checkpoint.spec import ModelSpec, alike
from triolet.models.checkpoint.weights import DecoderWeights, make_weights
from triolet.models.cpu.cpu import CpuRunner
from triolet.models.cpu.memory import CpuSizes, memory_needs
from triolet.models.cpu.rows import Batch
from triolet.models.reference.decoder import reference_logits

FloatArray = npt.NDArray[np.float32]
LATENT = LatentSpec(kv_rank=26, query_rank=22, plain_dim=12, rope_dim=8, value_dim=32)
SPEC = ModelSpec(
    family="latent", vocab_size=70, hidden_size=40, num_heads=5, num_kv_heads=1, head_dim=34, mlp_size=50,
    norm_eps=1e-5, max_position=256, layers=alike(2), latent=LATENT, query_scale=20**-0.5, interleaved_rotary=True,
)  # fmt: skip
TOKENS = [(11 * index) % 70 for index in range(90)]
# Of the logits' norm, for the rounding of activations, and with bfloat16 weights of the cache.
TOLERANCES: dict[WeightFormat, float] = {"float32": 1e-5, "bfloat16": 0.025, "int8": 0.035, "int4": 0.05}


@cache
def weights(weight_format: WeightFormat = "float32") -> DecoderWeights:
    """Random; with the roundings that packing in this format makes."""
    rng = np.random.default_rng(3)

    def rounded(values: FloatArray) -> FloatArray:
        return rounded_weights(values, weight_format).astype(np.float32)

    def take(name: str, *shape: int) -> FloatArray:
        values = rng.standard_normal(shape, dtype=np.float32)
        if len(shape) == 1:
            return np.float32(1) + values / np.float32(10)
        values *= np.float32(shape[-1] ** -0.5)
        if name.endswith("embed_tokens.weight"):
            return values
        if not name.endswith("kv_b_proj.weight"):
            return rounded(values)
        heads = values.reshape(SPEC.num_heads, -1, LATENT.kv_rank)  # a head's keys are packed transposed
        parts = [(head[: LATENT.plain_dim], head[LATENT.plain_dim :]) for head in heads]
        return np.concatenate([part for keys, own in parts for part in (rounded(keys.T.copy()).T, rounded(own))])

    return make_weights(SPEC, take)


def make_runner(weight_format: WeightFormat, threads: int) -> CpuRunner:
    sizes = CpuSizes(
        weight_format=weight_format, num_blocks=4, max_step_tokens=96, max_logit_rows=96, max_model_len=128,
        threads=threads,
    )  # fmt: skip
    return CpuRunner(SPEC, weights(), sizes)


def run(runner: CpuRunner, cuts: list[int]) -> FloatArray:
    """Logits of every token, fed in chunks that end at `cuts`."""
    rows = list[FloatArray]()
    for start, end in zip([0, *cuts], [*cuts, len(TOKENS)], strict=True):
        batch = Batch(
            tokens=np.array(TOKENS[start:end], np.int32), positions=np.arange(start, end, dtype=np.int32),
            starts=np.array([0, end - start], np.int32), block_tables=np.array([[2, 0]], np.int32),
            logit_rows=np.arange(end - start, dtype=np.int32),
        )  # fmt: skip
        rows.append(runner.forward(batch).copy())
    return np.concatenate(rows)


def distance(left: FloatArray, right: FloatArray) -> float:
    return float(np.linalg.norm(left - right) / np.linalg.norm(right))


@pytest.mark.parametrize("weight_format", TOLERANCES)
def test_near_the_reference_and_the_same_however_it_is_cut(weight_format: WeightFormat) -> None:
    expected = reference_logits(SPEC, weights(weight_format), TOKENS)
    runner = make_runner(weight_format, 1)
    whole = run(runner, [])
    runner.close()
    print(distance(whole, expected))
    assert distance(whole, expected) < TOLERANCES[weight_format]
    runner = make_runner(weight_format, 3)  # does not divide the panels of five heads
    for cuts in ([], [1, 2, 3, 70], [7, 64, 89]):
        np.testing.assert_array_equal(run(runner, cuts), whole)
    runner.close()
    turned = replace(SPEC, interleaved_rotary=False)
    assert distance(reference_logits(turned, weights(weight_format), TOKENS), expected) > TOLERANCES[weight_format]


def test_what_is_cached_and_packed() -> None:
    """As DeepSeek-V2 has it: 512 + 64 numbers a token and layer; matrices of each head beside the checkpoint's."""
    latent = LatentSpec(kv_rank=512, query_rank=1536, plain_dim=128, rope_dim=64, value_dim=128)
    spec = replace(SPEC, latent=latent, head_dim=576, hidden_size=5120, num_heads=128)
    sizes = CpuSizes(weight_format="bfloat16", max_step_tokens=32, max_logit_rows=32, max_model_len=128)
    assert memory_needs(spec, sizes).kv_block_bytes == 64 * 2 * 576 * 2
    more = memory_needs(replace(spec, layers=alike(3)), sizes).weights_bytes - memory_needs(spec, sizes).weights_bytes
    attention = latent.parameters(5120, 128) - 512 - 1536 + 5120 * 128 * 128
    mlp = 3 * 5120 * 64
    assert more == 2 * (attention + mlp) + 4 * (512 + 1536 + 2 * 5120)


def test_the_memory_plan_is_what_is_allocated() -> None:
    runner = make_runner("int8", 2)
    held, needs = runner._memory, memory_needs(SPEC, runner.sizes)
    runner.close()
    assert held.latent is not None
    arrays = [*held.arrays.values(), *held.latent.arrays.values()]
    assert sum(array.nbytes for array in arrays) == needs.workspace_bytes
    assert held.cache.nbytes == needs.kv_block_bytes * runner.sizes.num_blocks


def test_no_int8_cache() -> None:
    sizes = CpuSizes(
        weight_format="bfloat16", cache_format="int8", max_step_tokens=8, max_logit_rows=8, max_model_len=64
    )
    with pytest.raises(ValueError, match="latent vectors is not kept in int8"):
        memory_needs(SPEC, sizes)
