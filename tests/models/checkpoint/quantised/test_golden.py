"""Quantised layers as the libraries themselves wrote them, and the weights that these make of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from triolet.models.errors import CheckpointError, UnsupportedModel

from .cases import COMPRESSED, Parts, read

GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text())


@pytest.mark.parametrize("name", GOLDEN)
def test_layers_that_compressed_tensors_wrote(name: str) -> None:
    """Bit for bit; written by golden.py."""
    stored = GOLDEN[name]["parts"].items()
    parts = {part: np.frombuffer(bytes.fromhex(data), kind).reshape(shape) for part, (kind, shape, data) in stored}
    matrix = read({**COMPRESSED, "format": name.split()[0]}, parts)
    expected = np.frombuffer(bytes.fromhex(GOLDEN[name]["weight"]), np.float32).reshape(matrix.shape)
    np.testing.assert_array_equal(matrix.rows(0, len(matrix)), expected)


TORCHAO = json.loads(Path(__file__).with_name("golden_torchao.json").read_text())


def torchao(name: str) -> tuple[dict[str, object], Parts]:
    """The settings and the parts of a case."""
    case = TORCHAO[name]
    stored = case["parts"].items()
    parts = {part: np.frombuffer(bytes.fromhex(data), kind).reshape(shape) for part, (kind, shape, data) in stored}
    return {"quant_method": "torchao", "quant_type": {"default": {"_type": case["type"], "_data": {}}}}, parts


@pytest.mark.parametrize("name", TORCHAO)
def test_layers_that_torchao_wrote(name: str) -> None:
    """Bit for bit; written by golden_torchao.py."""
    matrix = read(*torchao(name))
    expected = np.frombuffer(bytes.fromhex(TORCHAO[name]["weight"]), np.float32).reshape(matrix.shape)
    np.testing.assert_array_equal(matrix.rows(0, len(matrix)), expected)


def test_torchaos_factors_of_activations() -> None:
    """Those that quantise activations are dropped, as activations are quantised here in their own way; one that changes
    them is refused."""
    method, parts = torchao("int8 rows")
    one = np.ones(1, np.float32)
    read(method, {**parts, "_weight_act_quant_scale": one})
    with pytest.raises(UnsupportedModel, match=r"_weight_act_pre_scale.*not understood"):
        read(method, {**parts, "_weight_act_pre_scale": one})
    with pytest.raises(CheckpointError, match=r"_weight_zero_point.*the scales are"):
        read(method, {**parts, "_weight_zero_point": np.ones(3, np.int8)})
