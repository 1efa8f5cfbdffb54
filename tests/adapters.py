"""LoRA adapters of the bundled model, as PEFT writes them, for tests."""

import json
from pathlib import Path

import numpy as np

from triolet.cli.options import BUNDLED_MODEL
from triolet.loadtest.device.random_model import write_tensors


def write_adapter(folder: Path, seed: int, rank: int = 2) -> Path:
    """Another seed, other answers. It changes the model's every value projection, and much."""
    config = json.loads((BUNDLED_MODEL / "config.json").read_text())
    random = np.random.default_rng(seed)
    hidden, values = config["hidden_size"], config["num_key_value_heads"] * config["head_dim"]
    tensors: dict[str, np.ndarray] = {}
    for layer in range(config["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.v_proj.lora"
        tensors[f"{name}_A.weight"] = random.standard_normal((rank, hidden)).astype(np.float32) / hidden**0.5
        tensors[f"{name}_B.weight"] = random.standard_normal((values, rank)).astype(np.float32)
    folder.mkdir(parents=True)
    write_tensors(folder / "adapter_model.safetensors", tensors)
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 16 * rank, "target_modules": ["v_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder
