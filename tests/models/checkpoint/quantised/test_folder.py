"""A folder with quantised layers: what the checkpoint shows of it, and what its plan and options say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from triolet.models.checkpoint.checkpoint import CheckpointFolder
from triolet.models.checkpoint.stored import StoredMatrix
from triolet.models.checkpoint.weights import load_weights
from triolet.models.cpu.load import plan_on_cpu
from triolet.models.errors import CheckpointError, UnsupportedDevice
from triolet.protocol.settings import EngineSettings

from .test_method import AWQ_ORDER, words

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64, "hidden_size": 64,
    "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "eos_token_id": 3, "tie_word_embeddings": True,
    "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"},
}  # fmt: skip
LINEARS = [
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
]


def write(folder: Path, **options: object) -> Path:
    """A layer of 4 bits; its down projection is not converted."""
    rng = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {"model.embed_tokens.weight": rng.normal(size=(64, 64)).astype(np.float16)}
    for name in ("model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"):
        tensors[f"{name}.weight"] = np.ones(64, np.float16)
    for name in LINEARS[:-1]:
        codes, zeros = rng.integers(0, 16, (64, 64)), rng.integers(0, 16, (2, 64))
        tensors[f"model.layers.0.{name}.qweight"] = words(codes, AWQ_ORDER)
        tensors[f"model.layers.0.{name}.qzeros"] = words(zeros, AWQ_ORDER)
        tensors[f"model.layers.0.{name}.scales"] = np.full((2, 64), 0.01, np.float16)
    tensors["model.layers.0.mlp.down_proj.weight"] = rng.normal(size=(64, 64)).astype(np.float16)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **options}))
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return folder


def test_layers_are_matrices_and_run_as_they_are(tmp_path: Path) -> None:
    checkpoint = CheckpointFolder(write(tmp_path / "model"))
    assert not [name for name in checkpoint.tensor_names if "qweight" in name]
    layer = load_weights(checkpoint).layers[0]
    assert isinstance(layer.q, StoredMatrix)
    assert layer.q.shape == checkpoint.tensor_shape("model.layers.0.self_attn.q_proj.weight") == (64, 64)
    assert isinstance(layer.down, np.ndarray)
    sizes, memory = plan_on_cpu(checkpoint, EngineSettings(model="model"), 1 << 30)
    assert sizes.weight_format == "stored"
    codes, scales, in_16_bits = 64 * 64 // 2, 2 * 64 * 3, 17 * 64 * 64 // 8
    # 6 parts of 4 bits, the down projection and the head in 16; a table for each of 5 matrices, with 10 segments
    assert sizes.stored_bytes == 6 * (codes + scales) + 2 * in_16_bits + 5 * 64 + 10 * 192
    assert memory.weights_bytes > sizes.stored_bytes + 2 * 64 * 64


def test_quantising_again_is_refused(tmp_path: Path) -> None:
    checkpoint = CheckpointFolder(write(tmp_path / "model"))
    with pytest.raises(UnsupportedDevice, match="--quantize int8: the checkpoint is quantised already"):
        plan_on_cpu(checkpoint, EngineSettings(model="model", quantize="int8"), 1 << 30)
    plain, _ = plan_on_cpu(checkpoint, EngineSettings(model="model", dtype="bfloat16"), 1 << 30)
    assert plain.weight_format == "bfloat16"


def test_a_folder_without_the_setting_has_left_over_tensors(tmp_path: Path) -> None:
    checkpoint = CheckpointFolder(write(tmp_path / "model", quantization_config=None))
    with pytest.raises(CheckpointError, match="this weight is missing"):
        load_weights(checkpoint)
