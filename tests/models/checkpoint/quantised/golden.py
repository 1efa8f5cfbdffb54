"""Writes golden.json: small layers compressed by compressed-tensors itself, and what it makes of them again.

Run by hand, `python tests/models/checkpoint/quantised/golden.py`, with torch and compressed-tensors 0.20 installed; the
tests only read the file.
"""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

# By name, because the type checkers do not have them.
compressors: Any = import_module("compressed_tensors.compressors.base")
quantization: Any = import_module("compressed_tensors.quantization")

OUTPUTS, INPUTS, GROUP = 16, 32, 16
CASES: dict[str, dict[str, Any]] = {
    "pack-quantized": {"num_bits": 4, "symmetric": True, "strategy": "group", "group_size": GROUP},
    "pack-quantized asymmetric": {"num_bits": 4, "symmetric": False, "strategy": "group", "group_size": GROUP},
    "pack-quantized 8 bits": {"num_bits": 8, "symmetric": True, "strategy": "channel"},
    "int-quantized": {"num_bits": 8, "symmetric": True, "strategy": "channel"},
    "float-quantized": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"},
}


def layer(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(len(name))
    groups = INPUTS // GROUP if arguments["strategy"] == "group" else 1
    weight = torch.randn(OUTPUTS, INPUTS, generator=generator)
    largest = 448 if arguments.get("type") == "float" else 2 ** (arguments["num_bits"] - 1) - 1
    scale = weight.reshape(OUTPUTS, groups, -1).abs().amax(2) / largest
    zero = torch.zeros(OUTPUTS, groups, dtype=torch.int8)
    if not arguments["symmetric"]:
        zero = torch.randint(-5, 6, (OUTPUTS, groups), generator=generator).to(torch.int8)
    weights = quantization.QuantizationArgs(**arguments)
    scheme: Any = quantization.QuantizationScheme(targets=["Linear"], weights=weights)
    compressor: Any = compressors.BaseCompressor.get_value_from_registry(name.split()[0])
    parts: dict[str, Any] = compressor.compress(
        {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}, scheme
    )
    whole: Any = compressor.decompress(parts, scheme)["weight"].float().numpy()
    stored = {part: array_of(tensor) for part, tensor in parts.items() if isinstance(tensor, torch.Tensor)}
    return {
        "parts": {part: [str(array.dtype), array.shape, array.tobytes().hex()] for part, array in stored.items()},
        "weight": whole.astype(np.float32).tobytes().hex(),
    }


def array_of(tensor: torch.Tensor) -> Any:
    """As the reader gives it: 8-bit floats as their bits."""
    return tensor.view(torch.uint8).numpy() if tensor.dtype == torch.float8_e4m3fn else tensor.numpy()


if __name__ == "__main__":
    found = {name: layer(name, arguments) for name, arguments in CASES.items()}
    Path(__file__).with_name("golden.json").write_text(json.dumps(found, indent=0) + "\n")
