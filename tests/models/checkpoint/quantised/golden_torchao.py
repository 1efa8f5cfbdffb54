"""Writes golden_torchao.json: layers quantised by torchao, taken apart as it does for safetensors, and their values.

Run by hand, `python tests/models/checkpoint/quantised/golden_torchao.py`, with torch and torchao 0.18 installed; the
tests only read the file.
"""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

# By name, because the type checkers do not have them.
quantization: Any = import_module("torchao.quantization")
types: Any = torch  # of fewer bits than 8
support: Any = import_module("torchao.prototype.safetensors.safetensors_support")

OUTPUTS, INPUTS = 16, 64
GROUPS = quantization.PerGroup(32)
CASES: dict[str, Any] = {
    "int8 rows": quantization.Int8WeightOnlyConfig(version=2),
    "int8 groups": quantization.Int8WeightOnlyConfig(granularity=GROUPS, version=2),
    "int8 activations": quantization.Int8DynamicActivationInt8WeightConfig(version=2),
    "int4 unpacked": quantization.IntxWeightOnlyConfig(weight_dtype=types.int4, granularity=GROUPS),
    "int4 unpacked, asymmetric": quantization.IntxWeightOnlyConfig(
        weight_dtype=types.int4, granularity=GROUPS, mapping_type=quantization.MappingType.ASYMMETRIC
    ),
    "int8 activations, int3": quantization.Int8DynamicActivationIntxWeightConfig(
        weight_dtype=types.int3, weight_granularity=GROUPS
    ),
    "float8 rows": quantization.Float8WeightOnlyConfig(),
}


def case(config: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    model: Any = torch.nn.Sequential(torch.nn.Linear(INPUTS, OUTPUTS, bias=False))
    quantization.quantize_(model, config)
    parts, _ = support.flatten_tensor_state_dict(model.state_dict())
    whole = model[0].weight.dequantize().detach().float().numpy()
    stored = {name.removeprefix("0."): array_of(tensor) for name, tensor in parts.items()}
    return {
        "type": type(config).__name__,
        "tensor": type(model[0].weight).__name__,
        "parts": {part: [str(array.dtype), array.shape, array.tobytes().hex()] for part, array in stored.items()},
        "weight": whole.astype(np.float32).tobytes().hex(),
    }


def array_of(tensor: torch.Tensor) -> Any:
    """As the reader gives it: bfloat16 and 8-bit floats as their bits."""
    same_size = {torch.float8_e4m3fn: torch.uint8, torch.bfloat16: torch.uint16}
    return tensor.detach().contiguous().view(same_size.get(tensor.dtype, tensor.dtype)).numpy()


if __name__ == "__main__":
    found = {name: case(config) for name, config in CASES.items()}
    Path(__file__).with_name("golden_torchao.json").write_text(json.dumps(found, indent=0) + "\n")
