"""LoRA adapters as folders that PEFT could have written."""

from __future__ import annotations

import json
from pathlib import Path

from triolet.loadtest.device.random_model import write_tensors
from triolet.models.checkpoint.adapter import MODULES, AdapterWeights
from triolet.models.checkpoint.safetensors import WeightArray

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
