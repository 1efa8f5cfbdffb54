"""Mixtures of experts in the CPU runner: in every format near the reference, and its invariance, bit for bit."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace

from triolet.kernels.experts.routing import Routing
from triolet.kernels.gemm.reference import rounded_weights
from triolet.kernels.simd.formats import WeightFormat
from triolet.models.checkpoint.experts import ExpertSpec
from triolet.models.checkpoint.spec import LayerSpec, ModelSpec
from triolet.models.checkpoint.weights import DecoderWeights, make_weights
from triolet.models.cpu.cpu import CpuRunner
from triolet.models.cpu.experts import router_format
from triolet.models.cpu.memory import CpuSizes, memory_needs
from triolet.models.cpu.rows import Batch
from triolet.models.reference.decoder import reference_logits

FloatArray = npt.NDArray[np.float32]
ROUTING = Routing(chosen=3, scores="sigmoid", normalised=True, scale=1.5, groups=2, chosen_groups=1, group_best=2)
EXPERTS = ExpertSpec(count=6, width=30, routing=ROUTING, corrected=True, shared_width=20, shared_gated=True)
SPEC = ModelSpec(
    family="mixture", vocab_size=70, hidden_size=40, num_heads=2, num_kv_heads=1, head_dim=32, mlp_size=50,
    norm_eps=1e-5, max_position=128, layers=(LayerSpec(), LayerSpec(experts=True)),
    experts=EXPERTS,
)  # fmt: skip
CLAMPED = ExpertSpec(
    count=6, width=30, routing=Routing(chosen=3, scores="softmax of chosen"), biased=True, gate_limit=1.5,
    gate_slope=1.702, up_offset=1.0,
)  # fmt: skip
# As gpt-oss; and as OLMoE, whose q and k are normalised over all heads.
WITH_SINKS = replace(SPEC, experts=CLAMPED, sinks=True, qkv_bias=True, out_bias=True)
ROW_NORMS = replace(SPEC, experts=replace(EXPERTS, corrected=False, shared_width=0, shared_gated=False), qk_norm="row")
SPECS = {"shared": SPEC, "sinks": WITH_SINKS, "row norms": ROW_NORMS}
TOKENS = [(11 * index) % 70 for index in range(30)]
# Of the logits' norm, for the rounding of activations. Measured: 7e-7, 0.008, 0.025, 0.032.
TOLERANCES: dict[WeightFormat, float] = {"float32": 1e-4, "bfloat16": 0.025, "int8": 0.035, "int4": 0.05}


def everybody(spec: ModelSpec) -> ModelSpec:
    """All experts for every row, so that no choice hangs on a rounding."""
    assert spec.experts is not None
    routing = Routing(chosen=6, scores=spec.experts.routing.scores if spec.sinks else "softmax")
    return replace(spec, experts=replace(spec.experts, routing=routing))


@cache
def weights(name: str, weight_format: WeightFormat = "float32") -> DecoderWeights:
    """Random; with the roundings that packing in this format makes."""
    rng = np.random.default_rng(3)

    def take(name: str, *shape: int) -> FloatArray:
        values = rng.standard_normal(shape, dtype=np.float32)
        if len(shape) == 1:
            return np.float32(1) + values / np.float32(10) if "norm" in name else values
        values *= np.float32(shape[-1] ** -0.5)
        if name.endswith("embed_tokens.weight"):
            return values
        routes = name.endswith(("mlp.gate.weight", "shared_expert_gate.weight"))
        return rounded_weights(values, router_format(weight_format) if routes else weight_format).astype(np.float32)

    return make_weights(SPECS[name], take)


def make_runner(spec: ModelSpec, weight_format: WeightFormat, threads: int, given: DecoderWeights) -> CpuRunner:
    sizes = CpuSizes(
        weight_format=weight_format, num_blocks=4, max_step_tokens=32, max_logit_rows=32, max_model_len=64,
        threads=threads,
    )  # fmt: skip
    return CpuRunner(spec, given, sizes)


def run(runner: CpuRunner, cuts: list[int]) -> FloatArray:
    """Logits of every token, fed in chunks that end at `cuts`."""
    rows = list[FloatArray]()
    for start, end in zip([0, *cuts], [*cuts, len(TOKENS)], strict=True):
        batch = Batch(
            tokens=np.array(TOKENS[start:end], np.int32), positions=np.arange(start, end, dtype=np.int32),
            starts=np.array([0, end - start], np.int32), block_tables=np.array([[2]], np.int32),
            logit_rows=np.arange(end - start, dtype=np.int32),
        )  # fmt: skip
        rows.append(runner.forward(batch).copy())
    return np.concatenate(rows)


@pytest.mark.parametrize("weight_format", TOLERANCES)
@pytest.mark.parametrize("name", SPECS)
def test_near_the_reference_and_the_same_however_it_is_cut(name: str, weight_format: WeightFormat) -> None:
    spec = everybody(SPECS[name])
    expected = reference_logits(spec, weights(name, weight_format), TOKENS)
    runner = make_runner(spec, weight_format, 1, weights(name))
    error = distance(run(runner, []), expected)
    runner.close()
    assert error < TOLERANCES[weight_format]
    runner = make_runner(SPECS[name], weight_format, 2, weights(name))
    whole = run(runner, [])
    for cuts in ([1, 2, 3, 20], [7, 29]):
        np.testing.assert_array_equal(run(runner, cuts), whole)
    runner.close()
    dense, sparse = weights(name, weight_format).layers
    assert sparse.experts is not None
    first, second, *others = sparse.experts.experts
    swapped = replace(sparse, experts=replace(sparse.experts, experts=(second, first, *others)))
    wrong = [reference_logits(spec, replace(weights(name, weight_format), layers=(dense, swapped)), TOKENS)]
    if spec.sinks:
        wrong.append(reference_logits(replace(spec, sinks=False), weights(name, weight_format), TOKENS))
    for other in wrong:
        assert distance(other, expected) > TOLERANCES[weight_format]


def distance(left: FloatArray, right: FloatArray) -> float:
    return float(np.linalg.norm(left - right) / np.linalg.norm(right))


def test_a_token_uses_the_parameters_of_its_experts() -> None:
    one, hidden = 3 * 40 * 30, 40
    shared = 3 * hidden * 20 + hidden  # and its gate
    mixture = 6 * one + 6 * (hidden + 1) + shared  # the router has a correction of each expert
    attention, norms = 2 * hidden * (2 + 1) * 32, 2 * hidden
    total = 2 * 70 * hidden + 2 * (attention + norms) + 3 * hidden * 50 + mixture + hidden
    assert SPEC.parameters == total
    assert SPEC.active_parameters == total - 3 * one


def test_memory_counts_all_experts() -> None:
    sizes = CpuSizes(weight_format="int8", max_step_tokens=32, max_logit_rows=32, max_model_len=64)
    fewer = replace(SPEC, experts=replace(EXPERTS, count=5))
    needs, less = memory_needs(SPEC, sizes), memory_needs(fewer, sizes)
    packed = (2 * 64 * 64 + 2 * 64 * 4) + (64 * 64 + 64 * 4)  # gate and up, down; with the channels' scales
    assert needs.weights_bytes - less.weights_bytes == packed
