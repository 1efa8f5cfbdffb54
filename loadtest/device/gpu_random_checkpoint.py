"""A checkpoint folder of random weights, for what only takes folders: the server. Every token id is a word.

Sixteen gigabytes are written in seconds where there is room in memory (/dev/shm). They are gone with the `with` block;
when this process is killed in it, whoever gave it its folders (gpu_scratch.py) removes them.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from triolet.loadtest.device.gpu_random_model import random_weights
from triolet.loadtest.device.gpu_scratch import given_folders
from triolet.models.checkpoint.safetensors import WeightArray
from triolet.models.checkpoint.spec import ModelSpec
from triolet.models.checkpoint.weights import DecoderWeights

SPARE = 1.25  # of the weights' size: a folder that would be filled to the brim is not taken
WORD = "word"  # token 7 is written "word7": whoever counts these counts tokens
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
PLACES = {
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj", "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm", "input_norm": "input_layernorm", "post_norm": "post_attention_layernorm",
}  # fmt: skip


@contextmanager
def random_checkpoint(spec: ModelSpec) -> Iterator[Path]:
    tensors = named(random_weights(spec))
    size = int(SPARE * sum(array.nbytes for array in tensors.values()))
    places = given_folders()
    home = next((place for place in places if _free(place) > size), None)
    if home is None:
        raise OSError(f"no room for {size / 1e9:.1f} GB of weights in {' or '.join(map(str, places))}")
    with tempfile.TemporaryDirectory(prefix="triolet-random-", dir=home) as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(config_of(spec)))
        words = {f"{WORD}{token}": token for token in range(spec.vocab_size)}
        model = {"type": "WordLevel", "vocab": words, "unk_token": f"{WORD}0"}
        (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
        write_tensors(folder / "model.safetensors", tensors)
        yield folder


def _free(place: Path) -> int:
    return shutil.disk_usage(place).free if place.is_dir() else 0


def named(weights: DecoderWeights) -> dict[str, WeightArray]:
    tensors = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.final_norm}
    if weights.lm_head is not None:
        tensors["lm_head.weight"] = weights.lm_head
    for index, layer in enumerate(weights.layers):
        for field, place in PLACES.items():
            array: WeightArray | None = getattr(layer, field)
            if array is not None:
                tensors[f"model.layers.{index}.{place}.weight"] = array
    return tensors


def config_of(spec: ModelSpec) -> dict[str, object]:
    config: dict[str, object] = {
        "architectures": [ARCHITECTURES[spec.family]], "model_type": spec.family, "torch_dtype": "bfloat16",
        "vocab_size": spec.vocab_size, "hidden_size": spec.hidden_size, "intermediate_size": spec.mlp_size,
        "num_hidden_layers": spec.num_layers, "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads, "head_dim": spec.head_dim, "rms_norm_eps": spec.norm_eps,
        "max_position_embeddings": spec.max_position, "tie_word_embeddings": spec.tied_embeddings,
        "rope_theta": spec.rope.theta,
    }  # fmt: skip
    if spec.rope.kind == "llama3":
        config["rope_scaling"] = {
            "rope_type": "llama3", "factor": spec.rope.factor, "low_freq_factor": spec.rope.low_freq_factor,
            "high_freq_factor": spec.rope.high_freq_factor,
            "original_max_position_embeddings": spec.rope.original_max_position,
        }  # fmt: skip
    return config


def write_tensors(path: Path, tensors: dict[str, WeightArray]) -> None:
    """In the order given; numpy's uint16 is bfloat16 here."""
    header: dict[str, object] = {}
    position = 0
    for name, array in tensors.items():
        kind = "BF16" if array.dtype == np.uint16 else "F32"
        header[name] = {
            "dtype": kind,
            "shape": list(array.shape),
            "data_offsets": [position, position + array.nbytes],
        }
        position += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)  # so that the data is aligned
    with path.open("wb", buffering=0) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            left = array.reshape(-1).view(np.uint8)
            while len(left):
                left = left[file.write(left.data) :]
