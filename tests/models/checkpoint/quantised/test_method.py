"""Quantised folders: every method against weights taken from its parts one by one, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest

from triolet.models.checkpoint.quantised.method import METHODS, read_quantised
from triolet.models.checkpoint.stored import CodedMatrix, StoredMatrix
from triolet.models.errors import CheckpointError, UnsupportedModel

from .cases import COMPRESSED, CORPUS, Array, Held, Parts, decoded, read

OUTPUTS, INPUTS, GROUP = 16, 64, 32
GROUPS = INPUTS // GROUP
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # the column of each nibble of a word, lowest first


def random(seed: int = 0) -> tuple[Array, Array, Array]:
    """Codes [outputs, inputs], zeros and scales [outputs, groups]."""
    rng = np.random.default_rng(seed)
    scales = rng.uniform(0.01, 0.1, (OUTPUTS, GROUPS)).astype(np.float16)
    return rng.integers(0, 16, (OUTPUTS, INPUTS)), rng.integers(1, 16, (OUTPUTS, GROUPS)), scales


def weights(codes: Array, zeros: Array, scales: Array, groups: Array | None = None) -> Array:
    index = np.arange(INPUTS) // GROUP if groups is None else groups
    return (codes - zeros[:, index]) * scales.astype(np.float64)[:, index]


def words(values: Array, order: list[int] | None = None, bits: int = 4) -> npt.NDArray[np.int32]:
    """Each row's integers as words of 32 bits, one by one."""
    per_word = 32 // bits
    result = np.zeros((len(values), values.shape[1] // per_word), np.uint32)
    for row, numbers in enumerate(values):
        for word in range(result.shape[1]):
            for nibble in range(per_word):
                column = nibble if order is None else order[nibble]
                result[row, word] |= np.uint32(int(numbers[word * per_word + column]) << (bits * nibble))
    return result.view(np.int32)


def agree(matrix: StoredMatrix, expected: Array) -> None:
    """All rows, and some in the middle of a word; the planted error is one code."""
    assert matrix.shape == expected.shape
    np.testing.assert_allclose(matrix.rows(0, OUTPUTS), expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(matrix.rows(3, 13), matrix.rows(0, OUTPUTS)[3:13])


def test_awq() -> None:
    codes, zeros, scales = random()
    parts = {"qweight": words(codes.T, AWQ_ORDER), "qzeros": words(zeros.T, AWQ_ORDER), "scales": scales.T.copy()}
    method = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
    agree(read(method, parts), weights(codes, zeros, scales))
    in_order = {**parts, "qweight": words(codes.T)}
    assert np.abs(read(method, in_order).rows(0, OUTPUTS) - weights(codes, zeros, scales)).max() > 0.01


def gptq_parts(codes: Array, zeros: Array, scales: Array, groups: Array, bits: int = 4, less: int = 1) -> Parts:
    packed = words(codes, bits=bits).T.copy()  # along the inputs
    return {
        "qweight": packed, "qzeros": words(zeros.T - less, bits=bits), "scales": scales.T.copy(),
        "g_idx": groups.astype(np.int32),
    }  # fmt: skip


@pytest.mark.parametrize(("version", "less"), [("gptq", 1), ("gptq_v2", 0)])
def test_gptq(version: str, less: int) -> None:
    codes, zeros, scales = random(1)
    method = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "checkpoint_format": version, "desc_act": False}
    matrix = read(method, gptq_parts(codes, zeros, scales, np.arange(INPUTS) // GROUP, less=less))
    assert isinstance(matrix, CodedMatrix)
    agree(matrix, weights(codes, zeros, scales))


def test_gptq_with_act_order_and_with_8_bits() -> None:
    codes, zeros, scales = random(2)
    order = np.random.default_rng(3).permutation(np.arange(INPUTS) // GROUP)
    matrix = read({"quant_method": "gptq", "bits": 4, "desc_act": True}, gptq_parts(codes, zeros, scales, order))
    agree(matrix, weights(codes, zeros, scales, order))
    assert matrix.format == "GPTQ 4-bit with act-order"
    wide = np.random.default_rng(4).integers(0, 256, codes.shape)
    parts = gptq_parts(wide, zeros + 100, scales, np.arange(INPUTS) // GROUP, bits=8)
    agree(read({"quant_method": "gptq", "bits": 8}, parts), weights(wide, zeros + 100, scales))


@pytest.mark.parametrize("bits", [4, 8])
def test_gptqs_zero_points_that_are_all_the_middle_are_left_out(bits: int) -> None:
    _, zeros, scales = random(7)
    codes = np.random.default_rng(6).integers(0, 1 << bits, (OUTPUTS, INPUTS))
    for last, minima in ((1 << (bits - 1), "none"), (3, "zeros")):
        zeros[...] = 1 << (bits - 1)
        zeros[-1, -1] = last
        parts = gptq_parts(codes, zeros, scales, np.arange(INPUTS) // GROUP, bits=bits)
        matrix = read({"quant_method": "gptq", "bits": bits}, parts)
        assert isinstance(matrix, CodedMatrix)
        assert matrix.layout.minima == minima
        agree(matrix, weights(codes, zeros, scales))


@pytest.mark.parametrize("symmetric", [True, False])
def test_compressed_tensors_of_4_bits(symmetric: bool) -> None:
    codes, zeros, scales = random(5)
    bits = (scales.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)  # bfloat16
    parts: Parts = {"weight_packed": words(codes), "weight_scale": bits, "weight_shape": np.array([OUTPUTS, INPUTS])}
    exact = (bits.astype(np.uint32) << 16).view(np.float32)
    if symmetric:
        zeros = np.full_like(zeros, 8)
    else:
        parts["weight_zero_point"] = words(zeros.T).T.copy()  # along the outputs
    agree(read(COMPRESSED, parts), weights(codes, zeros, exact))


def test_int8_per_channel() -> None:
    values = np.random.default_rng(6).integers(-128, 128, (OUTPUTS, INPUTS)).astype(np.int8)
    scales = np.random.default_rng(7).uniform(0.01, 0.1, (OUTPUTS, 1)).astype(np.float32)
    method = {**COMPRESSED, "format": "int-quantized"}
    parts: Parts = {"weight": values, "weight_scale": scales, "input_scale": np.ones(1, np.float32)}
    agree(read(method, parts), values * scales.astype(np.float64))
    agree(
        read({"quant_method": "bitsandbytes", "load_in_8bit": True}, {"weight": values, "SCB": scales[:, 0] * 127}),
        values * (scales.astype(np.float64)),
    )


def e4m3(byte: int) -> float:
    exponent, mantissa = (byte >> 3) & 15, byte & 7
    size = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -size if byte & 128 else size


def test_fp8_with_scales_of_blocks_rows_and_all() -> None:
    values = np.random.default_rng(8).integers(0, 127, (OUTPUTS, INPUTS)).astype(np.uint8)
    values += np.uint8(128) * (np.arange(INPUTS) % 2).astype(np.uint8)
    exact = np.array([[e4m3(int(byte)) for byte in row] for row in values])
    blocks = np.random.default_rng(9).uniform(0.5, 2, (2, 3)).astype(np.float32)
    spread = np.repeat(np.repeat(blocks, 10, axis=0)[:OUTPUTS], 24, axis=1)[:, :INPUTS]
    method = {"quant_method": "fp8", "weight_block_size": [10, 24], "fmt": "e4m3", "activation_scheme": "dynamic"}
    agree(read(method, {"weight": values, "weight_scale_inv": blocks}), exact * spread)
    rows = np.random.default_rng(10).uniform(0.5, 2, (OUTPUTS, 1)).astype(np.float32)
    method = {**COMPRESSED, "format": "float-quantized"}
    agree(read(method, {"weight": values, "weight_scale": rows}), exact * rows)
    agree(read({"quant_method": "fp8"}, {"weight": values, "weight_scale": np.full(1, 2, np.float32)}), exact * 2)


def test_bitsandbytes_nf4_with_nested_scales() -> None:
    rng = np.random.default_rng(11)
    table = np.sort(rng.uniform(-1, 1, 16)).astype(np.float32)
    codes = rng.integers(0, 16, OUTPUTS * INPUTS)
    absmax, nested_table = rng.integers(0, 256, 32).astype(np.uint8), rng.uniform(0, 1, 256).astype(np.float32)
    nested = rng.uniform(1, 2, 2).astype(np.float32)
    state = {
        "quant_type": "nf4", "blocksize": 32, "dtype": "bfloat16", "shape": [OUTPUTS, INPUTS],
        "nested_blocksize": 16, "nested_dtype": "float32", "nested_offset": 0.25,
    }  # fmt: skip
    parts: Parts = {
        "weight": (codes[::2] * 16 + codes[1::2]).astype(np.uint8)[:, None],
        "weight.absmax": absmax,
        "weight.quant_map": table,
        "weight.nested_absmax": nested,
        "weight.nested_quant_map": nested_table,
        "weight.quant_state.bitsandbytes__nf4": np.frombuffer(json.dumps(state).encode(), np.uint8),
    }
    scales = nested_table[absmax].astype(np.float64) * np.repeat(nested, 16) + 0.25
    agree(
        read({"quant_method": "bitsandbytes", "load_in_4bit": True}, parts),
        (table[codes] * np.repeat(scales, 32)).reshape(OUTPUTS, INPUTS),
    )


REFUSED: list[tuple[Mapping[str, object], str]] = [
    ({"quant_method": "hqq"}, "quant_method = 'hqq'"),
    ({"quant_method": "torchao", "quant_type": "int8_weight_only"}, "quant_type = 'int8_weight_only'"),
    (
        {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig", "_data": {}}}},
        "quant_type.default._type = 'Int4WeightOnlyConfig'",
    ),
    (
        {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8WeightOnlyConfig"}, "lm_head": {}}},
        "quant_type = {'default'",
    ),
    ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version = 'gemv'"),
    ({"quant_method": "gptq", "bits": 3}, "bits = 3"),
    ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "checkpoint_format = 'marlin'"),
    ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "format = 'marlin-24'"),
    ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt = 'e5m2'"),
]


@pytest.mark.parametrize(("method", "message"), REFUSED)
def test_other_methods_are_refused_by_name(method: Mapping[str, object], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"quantization_config.{message}"):
        read_quantised({"quantization_config": method}, Held({}))


def test_parts_that_do_not_fit_are_refused() -> None:
    codes, zeros, scales = random()
    method = {"quant_method": "awq", "bits": 4}
    parts = {"qweight": words(codes.T, AWQ_ORDER), "qzeros": words(zeros.T, AWQ_ORDER), "scales": scales.T.copy()}
    wrong: list[tuple[str, Array | None, str]] = [
        ("qzeros", None, "missing beside"),
        ("scales", None, "missing beside"),
        ("qweight", parts["qweight"][:, :1], "does not fit"),
        ("qweight", parts["qweight"].astype(np.int64), "expected int32"),
        ("qweight", parts["qweight"][:33], "groups do not divide"),
        ("scales", np.zeros((0, 16), np.float16), "does not fit"),
        ("scales", np.zeros((2, 4, 4), np.float16), "does not fit"),
        ("g_idx", np.zeros(64, np.int32), "not understood"),
    ]
    for part, array, message in wrong:
        changed = {**parts, **({} if array is None else {part: array})}
        if array is None:
            del changed[part]
        with pytest.raises(CheckpointError, match=message):
            read(method, changed)
    order = np.full(INPUTS, 7)
    with pytest.raises(CheckpointError, match="there are 2 groups"):
        read({"quant_method": "gptq", "bits": 4}, gptq_parts(codes, zeros, scales, order))


def test_the_fuzzers_corpus_has_every_method() -> None:
    found = [decoded(path.read_bytes()) for path in CORPUS.glob("whole*")]
    assert {case[0]["quant_method"] for case in found if case is not None} >= {*METHODS, "mxfp4"}
