"""FP8 checkpoints with a scale per 128 x 128 weights run as they are stored, where the whole model is of this kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from msgspec.structs import replace

from triolet.kernels.gemm.gpu_weights import quantise_fp8
from triolet.loadtest.device.gpu_model_values import small_weights
from triolet.loadtest.device.random_model import TINY, config_of
from triolet.models.checkpoint.open import open_checkpoint
from triolet.models.checkpoint.safetensors import WeightArray
from triolet.models.checkpoint.weights import load_weights
from triolet.models.errors import UnsupportedDevice, UnsupportedModel
from triolet.models.gpu.fill import fill_weights
from triolet.models.gpu.load import gpu_sizes, load_on_gpu, sizes_of
from triolet.models.gpu.rehearsal import RehearsalDevice
from triolet.models.gpu.staging import Staging, host_tensor
from triolet.models.gpu.weights import place_weights
from triolet.protocol.settings import AdapterPlaces, EngineSettings
from triolet.protocol.steps import ignore_progress

from ..checkpoint.test_fused import mxfp4, write
from .gpu_house import SPEC

WHOLE_BLOCKS = replace(TINY, hidden_size=128, num_kv_heads=2, mlp_size=256, max_position=64)  # a Qwen3 of one layer
SETTINGS = EngineSettings(model="", max_running=1, max_step_tokens=2)
Tensors = dict[str, torch.Tensor]


def tensors_of(block: int = 128, plain: str = "") -> Tensors:
    """All matrices of the layer in blocks; the matrix `plain` is in bfloat16."""
    arrays: dict[str, WeightArray] = {}
    small_weights(WHOLE_BLOCKS, arrays)
    found = {name: host_tensor(array) for name, array in arrays.items()}
    for name in [name for name in found if "proj" in name and not (plain and plain in name)]:
        found[name], found[f"{name}_scale_inv"] = quantise_fp8(found[name].float(), block, block)
    return found


def written(folder: Path, tensors: Tensors, block: int = 128) -> Path:
    quantised = {
        "quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [block, block], "activation_scheme": "dynamic",
    }  # fmt: skip
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_of(WHOLE_BLOCKS) | {"quantization_config": quantised}))
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    return folder


def test_bytes_and_scales_are_those_of_the_file(tmp_path: Path) -> None:
    tensors = tensors_of()
    file, device = open_checkpoint(written(tmp_path / "model", tensors)), RehearsalDevice()
    assert sizes_of(file, SETTINGS, device).quantize == "fp8-block"
    room, _ = place_weights(device, file.spec, "fp8-block", {})
    with Staging(device) as staging:
        fill_weights(staging, file.spec, room, load_weights(file), "fp8-block", {}, ignore_progress)
    device.synchronize()
    for place, names in {"qkv": "qkv", "o": "o"}.items():
        parts = [f"model.layers.0.self_attn.{name}_proj.weight" for name in names]
        weight, scales = room[f"0.{place}.weight"], room[f"0.{place}.scales"]
        stacked = torch.cat([tensors[part].view(torch.uint8) for part in parts])
        assert torch.equal(weight.view(torch.uint8), stacked)
        assert torch.equal(scales, torch.cat([tensors[f"{part}_scale_inv"] for part in parts]))
        assert not torch.equal(weight.view(torch.uint8), stacked.roll(1, 0))
    loaded = load_on_gpu(file, SETTINGS, device, ignore_progress)
    loaded.stepper.close()
    assert loaded.dtype == "FP8 as stored (161KiB); other matrices in bfloat16"


@pytest.mark.parametrize(
    ("given", "capability", "asked"),
    [
        ({}, 80, {}),  # it multiplies no float8
        ({}, 90, {"dtype": "bfloat16"}),
        ({}, 90, {"adapter_places": AdapterPlaces(count=1)}),
        ({"plain": "mlp.down_proj"}, 90, {}),  # rounding it would lose more
        ({"block": 64}, 90, {}),
    ],
)
def test_other_models_are_widened(
    tmp_path: Path, given: dict[str, Any], capability: int, asked: dict[str, Any]
) -> None:
    folder = written(tmp_path / "model", tensors_of(**given), given.get("block", 128))
    file, device = open_checkpoint(folder), RehearsalDevice(capability=capability)
    sizes = sizes_of(file, EngineSettings(model="", **asked), device)
    assert (sizes.quantize, sizes.stored) == ("none", {})


def test_what_does_not_run_is_refused(tmp_path: Path) -> None:
    def refuse(quantize: Any, message: str, capability: int = 90, **more: Any) -> None:  # Any: options
        settings = EngineSettings(model="", quantize=quantize, adapter_places=more.pop("places", AdapterPlaces()))
        with pytest.raises((UnsupportedDevice, UnsupportedModel), match=message):
            gpu_sizes(more.pop("spec", SPEC), settings, RehearsalDevice(capability=capability))

    mixture = write(tmp_path / "mixture", mxfp4()).spec
    refuse("fp8-block", "hidden_size = 64: fp8-block has blocks of 128 inputs; use --quantize fp8")
    refuse("fp8-block", "--quantize fp8-block: a GPU of compute capability 8.0 multiplies no float8", 80)
    refuse("fp8-block", "LoRA adapters read no blocks", places=AdapterPlaces(count=1))
    for quantize in ("fp8-block", "w8a8"):
        refuse(quantize, f"--quantize {quantize}: not for experts; use --quantize fp8", spec=mixture)
    refuse("int4-128", "the GPU runs none, int8, int4, fp8, fp8-block, w8a8")
