"""Random LoRA adapters, in memory, merged into their base, and as folders that PEFT could have written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from triolet.loadtest.device.random_model import write_tensors
from triolet.models.checkpoint.adapter import MODULES, AdapterWeights, LowRank, module_sizes
from triolet.models.checkpoint.safetensors import WeightArray
from triolet.models.checkpoint.spec import ModelSpec
from triolet.models.checkpoint.weights import DecoderWeights

# As PEFT 0.21.2 writes it for LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM").
WRITTEN_BY_PEFT = """
{"alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null, "auto_mapping": null,
"base_model_name_or_path": "base", "bias": "none", "corda_config": null, "ensure_weight_tying": false,
"eva_config": null, "exclude_modules": null, "fan_in_fan_out": false, "inference_mode": true,
"init_lora_weights": true, "kasa_config": null, "layer_replication": null, "layers_pattern": null,
"layers_to_transform": null, "loftq_config": {}, "lora_alpha": 8, "lora_bias": false, "lora_dropout": 0.0,
"lora_ga_config": null, "megatron_config": null, "megatron_core": "megatron.core", "modules_to_save": null,
"monteclora_config": null, "peft_type": "LORA", "peft_version": "0.21.2", "qalora_group_size": 16, "r": 4,
"rank_pattern": {}, "revision": null, "target_modules": ["k_proj", "down_proj", "v_proj", "up_proj", "o_proj",
"gate_proj", "q_proj"], "target_parameters": null, "task_type": "CAUSAL_LM", "trainable_token_indices": null,
"use_bdlora": null, "use_dora": false, "use_qalora": false, "use_rslora": false, "velora_config": null}
"""


def random_adapter(
    spec: ModelSpec, seed: int, rank: int = 16, modules: tuple[str, ...] = tuple(MODULES), scale: float = 0.2
) -> AdapterWeights:
    """It changes each of these matrices by about its scale, relatively."""
    rng = np.random.default_rng(seed)
    layers: list[dict[str, LowRank]] = []
    for _ in range(spec.num_layers):
        layer: dict[str, LowRank] = {}
        for module in modules:
            rows, columns = module_sizes(spec)[module]
            a = rng.standard_normal((rank, columns), dtype=np.float32) * np.float32(columns**-0.5)
            b = rng.standard_normal((rows, rank), dtype=np.float32) * np.float32(rank**-0.5)
            layer[module] = LowRank(a, b, scale)
        layers.append(layer)
    return AdapterWeights(tuple(layers))


def scaled(adapter: AdapterWeights, factor: float) -> AdapterWeights:
    return AdapterWeights(
        tuple(
            {module: replace(part, scale=part.scale * factor) for module, part in layer.items()}
            for layer in adapter.layers
        )
    )


def merged(base: DecoderWeights, adapter: AdapterWeights) -> DecoderWeights:
    """The base with scale * B A added to its matrices."""
    layers = list(base.layers)
    for index, parts in enumerate(adapter.layers):
        for module, part in parts.items():
            name = module.removesuffix("_proj")
            changed = getattr(layers[index], name) + np.float32(part.scale) * (part.b @ part.a)
            layers[index] = replace(layers[index], **{name: changed})
    return replace(base, layers=tuple(layers))


def tensors_of(adapter: AdapterWeights) -> dict[str, WeightArray]:
    """By PEFT's names."""
    return {
        f"base_model.model.model.layers.{index}.{MODULES[module]}.lora_{half}.weight": values
        for index, layer in enumerate(adapter.layers)
        for module, part in layer.items()
        for half, values in (("A", part.a), ("B", part.b))
    }


def write_adapter(folder: Path, adapter: AdapterWeights, **changes: object) -> Path:
    """A folder whose configuration fits the adapter's rank and scale, but for the changes."""
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads(WRITTEN_BY_PEFT)
    layer = next(layer for layer in adapter.layers if layer)
    part = next(iter(layer.values()))
    config |= {"r": part.rank, "lora_alpha": part.scale * part.rank, "target_modules": list(layer), **changes}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    write_tensors(folder / "adapter_model.safetensors", tensors_of(adapter))
    return folder
