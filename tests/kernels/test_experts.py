"""Routing and the grouped GEMM against their definitions: every format, any grouping of rows, any number of threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast, get_args

import numpy as np
import numpy.typing as npt
import pytest

from triolet.kernels.experts.cpu import activation_stage, narrow_stage, wide_stage
from triolet.kernels.experts.reference import route_reference
from triolet.kernels.experts.route import group_rows, route_row
from triolet.kernels.experts.routing import Routing
from triolet.kernels.gemm.pack import WeightArray, pack, packed_bytes, panel_bytes, to_float32
from triolet.kernels.gemm.pack_stored import pack_stored, stored_bytes
from triolet.kernels.gemm.reference import rounded_activations, rounded_weights
from triolet.kernels.quantise.layout import row_bytes
from triolet.kernels.simd.formats import TAGS, WeightFormat
from triolet.kernels.threads.shares import Crew, state_bytes
from triolet.loadtest.device.random_stored import LAYOUTS, held
from triolet.models.checkpoint.experts import ExpertSpec, ExpertWeights, MlpWeights
from triolet.models.checkpoint.stored import float_part
from triolet.models.cpu.experts import ExpertArrays, make_expert_shape

from .test_gemm import activation_row, aligned, unpacked_int4

FloatArray = npt.NDArray[np.float32]
FORMATS: tuple[WeightFormat, ...] = get_args(WeightFormat)
HIDDEN, WIDTH, SHARED = 70, 40, 100
CODES = [LAYOUTS[name] for name in ("MXFP4", "Q4_1", "Q8_0")]  # of gates, ups, downs
ROUTINGS = {
    "softmax": Routing(chosen=3),
    "normalised": Routing(chosen=3, normalised=True),
    "of chosen": Routing(chosen=2, scores="softmax of chosen"),
    "sigmoid": Routing(chosen=3, scores="sigmoid", normalised=True, scale=2.5),
    "groups": Routing(chosen=4, scores="sigmoid", normalised=True, scale=1.5, groups=4, chosen_groups=2, group_best=2),
    "groups by best": Routing(chosen=3, scale=16.0, groups=4, chosen_groups=2),
}


def route(
    routing: Routing, logits: FloatArray, correction: FloatArray | None = None, bias: FloatArray | None = None
) -> tuple[npt.NDArray[np.int32], FloatArray]:
    """The chosen experts and weights of each row, by the compiled code."""
    rows, experts = logits.shape
    spec = ExpertSpec(count=experts, width=WIDTH, routing=routing)
    shape = make_expert_shape(spec, "float32", 128, 0, rows)
    arrays = ExpertArrays(shape, 2, "float32", rows, 1)
    arrays.memory.logits[:, :experts] = logits
    if correction is not None:
        arrays.memory.correction[1, :experts] = correction
    if bias is not None:
        arrays.memory.router_bias[1, :experts] = bias
    for row in range(rows):
        route_row(0, 1, row, shape, arrays.memory)
    return arrays.memory.chosen, arrays.memory.weights[:, : routing.chosen]


@pytest.mark.parametrize("name", ROUTINGS)
def test_routing_is_as_defined(name: str) -> None:
    rng = np.random.default_rng(5)
    logits = rng.standard_normal((50, 16), dtype=np.float32) * 2
    correction, bias = rng.standard_normal((2, 16), dtype=np.float32)
    for with_correction in (None, correction):
        chosen, weights = route(ROUTINGS[name], logits, with_correction, bias)
        expected, shares = route_reference(ROUTINGS[name], (logits + bias).astype(np.float64), with_correction)
        np.testing.assert_array_equal(chosen, expected)
        np.testing.assert_allclose(weights, shares, rtol=3e-6)


def test_ties_and_what_is_no_number_are_decided() -> None:
    """Of equal scores the first; NaN after everything else; always different experts."""
    inf, nan = np.float32(np.inf), np.float32(np.nan)
    logits = np.zeros((5, 16), np.float32)
    logits[1, [3, 9]] = nan
    logits[2], logits[3, 5], logits[4] = nan, inf, -inf
    for routing in ROUTINGS.values():
        chosen, weights = route(routing, logits)
        first = list(range(routing.chosen))
        assert chosen[0].tolist() == first
        assert chosen[2].tolist() == chosen[4].tolist() == first
        assert np.isnan(weights[2]).all()
        for row in chosen:
            assert len(set(row.tolist())) == routing.chosen
            assert row.min() >= 0
            assert row.max() < 16
        if routing.scores != "softmax":  # one NaN spoils every share
            assert not {3, 9} & set(chosen[1].tolist())
            assert chosen[3, 0] == 5


class Mixture:
    """Random experts, packed; `run` computes rows whose experts and weights are given."""

    def __init__(self, weight_format: WeightFormat, *, experts: int = 5, chosen: int = 2, biased: bool = False) -> None:
        rng = np.random.default_rng(7)

        def mlp(width: int, *, biased: bool = False) -> MlpWeights:
            sizes = ((width, HIDDEN), (width, HIDDEN), (HIDDEN, width))
            gate, up, down = (
                cast("FloatArray", held(layout, *size, seed=int(rng.integers(100))))
                if weight_format == "stored" and width == WIDTH  # the shared expert's matrices become 16-bit integers
                else rng.standard_normal(size, dtype=np.float32)
                for layout, size in zip(CODES, sizes, strict=True)
            )
            biases = [
                rng.standard_normal(len(matrix), dtype=np.float32) if biased else None for matrix in (gate, up, down)
            ]
            return MlpWeights(gate=gate, up=up, down=down, gate_bias=biases[0], up_bias=biases[1], down_bias=biases[2])

        self.mlps = [*(mlp(WIDTH, biased=biased) for _ in range(experts)), mlp(SHARED)]
        self.format: WeightFormat = weight_format
        self.spec = ExpertSpec(
            count=experts, width=WIDTH, routing=Routing(chosen=chosen), shared_width=SHARED, shared_gated=True
        )
        self.weights = ExpertWeights(
            router=rng.standard_normal((experts, HIDDEN), dtype=np.float32),
            experts=tuple(self.mlps[:-1]),
            shared=self.mlps[-1],
            shared_gate=rng.standard_normal((1, HIDDEN), dtype=np.float32),
        )
        self.kept = list[npt.NDArray[Any]]()

    def run(self, x: FloatArray, chosen: npt.NDArray[np.int64], weights: FloatArray, *, threads: int = 1) -> FloatArray:
        """[rows, HIDDEN]: ones plus the experts' sum; `weights` has one more column, the shared expert's."""
        rows, tag, hidden = len(x), TAGS[self.format], 128
        stride = row_bytes(self.format, hidden)
        shape = make_expert_shape(self.spec, self.format, hidden, stride, rows)
        arrays = ExpertArrays(shape, 2, self.format, rows, threads)
        arrays.fill(1, self.weights, self.format, self._pack, self._keep)
        memory = arrays.memory
        memory.chosen[:], memory.weights[:] = chosen, weights
        wide = np.zeros((rows + 16, hidden), np.float32)
        wide[:rows, :HIDDEN] = x
        inputs = np.stack([activation_row(row, self.format) for row in wide])
        out, scratch = np.ones((rows, hidden), np.float32), np.zeros((threads, 512), np.float32)
        group_rows(shape, memory, rows)
        state = np.zeros(state_bytes(threads), np.uint8)

        def work(thread: int) -> int:
            crew = Crew(state.ctypes.data, thread, threads)
            stage = wide_stage(tag, crew, 0, 1, inputs.ctypes.data, shape, memory)
            stage = activation_stage(tag, crew, stage, scratch[thread].ctypes.data, shape, memory)
            return narrow_stage(tag, crew, stage, 1, out.ctypes.data, shape, memory)

        with ThreadPoolExecutor(threads) as pool:
            assert list(pool.map(work, range(threads))) == [3] * threads
        assert (out[:, HIDDEN:] == 1).all()
        return out[:, :HIDDEN]

    def _pack(self, parts: Any, columns: Any, channels: int, k: int, weight_format: WeightFormat) -> tuple[int, int]:
        if weight_format == "stored":
            packed = aligned(stored_bytes(parts, columns, channels, k))
            pack_stored(packed, parts, columns, channels, k)
            self.kept.append(packed)
            return packed.ctypes.data, packed.ctypes.data
        packed = aligned(packed_bytes(channels, k, weight_format))
        pack(packed, parts, columns, channels, k, weight_format)
        self.kept.append(packed)
        return packed.ctypes.data, packed.ctypes.data + panel_bytes(channels, k, weight_format)

    def _keep(self, vector: FloatArray) -> int:
        self.kept.append(vector)
        return vector.ctypes.data


def batch(mixture: Mixture, rows: int) -> tuple[FloatArray, npt.NDArray[np.int64], FloatArray]:
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, HIDDEN), dtype=np.float32)
    experts, chosen = mixture.spec.count, mixture.spec.routing.chosen
    picks = np.stack([rng.permutation(experts)[:chosen] for _ in range(rows)])
    return x, picks, rng.uniform(0.1, 1, (rows, chosen + 1)).astype(np.float32)


def definition(
    mixture: Mixture, x: FloatArray, chosen: npt.NDArray[np.int64], weights: FloatArray
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The sums in float64 with every rounding of the format, and a bound of the kernel's error.

    The middle row is rounded once more, and one of its values may be rounded the other way, by one step of its scale.
    """
    total, bound = np.ones((len(x), HIDDEN)), np.full((len(x), HIDDEN), 1e-6)
    for row, picks in enumerate(chosen):
        for place, expert in enumerate([*picks, len(mixture.mlps) - 1]):
            mlp, weight = mixture.mlps[expert], float(weights[row, place])
            rounded = [_rounded(matrix, mixture.format) for matrix in (mlp.gate, mlp.up, mlp.down)]
            own = rounded_activations(x[row : row + 1], mixture.format)[0]
            gate, up = rounded[0] @ own, rounded[1] @ own
            bias = np.zeros(HIDDEN)
            if mlp.gate_bias is not None:
                gate, up, bias = gate + mlp.gate_bias, up + mlp.up_bias, mlp.down_bias
            middle = (gate / (1 + np.exp(-gate)) * up).astype(np.float32)
            total[row] += weight * (rounded[2] @ rounded_activations(middle[None], mixture.format)[0] + bias)
            step = {"float32": 1e-6, "bfloat16": 2.0**-8}.get(mixture.format, 2 / 127) * np.abs(middle).max()
            bound[row] += weight * step * np.abs(rounded[2]).max(axis=1)
    return total, bound


def _rounded(weights: WeightArray, weight_format: WeightFormat) -> npt.NDArray[np.float64]:
    if weight_format == "stored":  # of 16-bit integers, the rounding is far below the bound
        return float_part(weights, 0, len(weights)).astype(np.float64)
    matrix = to_float32(weights)
    return (
        unpacked_int4(matrix, weight_format)
        if weight_format.startswith("int4")
        else rounded_weights(matrix, weight_format)
    )


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("biased", [False, True])
def test_the_sum_is_as_defined(weight_format: WeightFormat, biased: bool) -> None:
    mixture = Mixture(weight_format, biased=biased)
    x, chosen, weights = batch(mixture, 37)
    result = mixture.run(x, chosen, weights, threads=3)
    expected, bound = definition(mixture, x, chosen, weights)
    assert (np.abs(result - expected) <= bound).all()
    wrong = chosen.copy()
    wrong[5, 0] = (set(range(5)) - set(chosen[5].tolist())).pop()
    swapped, _ = definition(mixture, x, wrong, weights)
    unequal = np.abs(result - swapped) > bound
    assert np.flatnonzero(unequal.any(axis=1)).tolist() == [5]
    unweighted, _ = definition(mixture, x, chosen, weights * np.float32(1.05))
    assert (np.abs(result - unweighted) > bound).any(axis=1).all()


@pytest.mark.parametrize("weight_format", FORMATS)
def test_a_row_does_not_depend_on_the_others_nor_on_threads(weight_format: WeightFormat) -> None:
    mixture = Mixture(weight_format)
    x, chosen, weights = batch(mixture, 23)
    whole = mixture.run(x, chosen, weights)
    for first, count, threads in ((0, 1, 2), (1, 2, 1), (3, 5, 4), (8, 15, 3)):
        rows = slice(first, first + count)
        part = mixture.run(x[rows], chosen[rows], weights[rows], threads=threads)
        np.testing.assert_array_equal(part, whole[rows])
