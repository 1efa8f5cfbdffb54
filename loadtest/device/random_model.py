"""Models of random weights in real shapes, in memory or as a checkpoint folder: speed does not depend on the values.

All matrices of a model are views of one block of values, so the host holds a gigabyte and no more. Imports no torch.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from math import prod
from pathlib import Path

import numpy as np

from triolet.models.checkpoint.rope import RopeSpec
from triolet.models.checkpoint.safetensors import WeightArray
from triolet.models.checkpoint.spec import ModelSpec, alike
from triolet.models.checkpoint.weights import DecoderWeights, make_weights

LLAMA_8B = ModelSpec(
    family="llama", vocab_size=128256, hidden_size=4096, num_heads=32, num_kv_heads=8, head_dim=128,
    mlp_size=14336, norm_eps=1e-5, max_position=131072,
    layers=alike(32, RopeSpec(theta=500_000.0, kind="llama3", factor=8.0, original_max_position=8192)),
)  # fmt: skip
QWEN_600M = ModelSpec(
    family="qwen3", vocab_size=151936, hidden_size=1024, num_heads=16, num_kv_heads=8, head_dim=128, mlp_size=3072,
    norm_eps=1e-6, max_position=40960, layers=alike(28, RopeSpec(theta=1_000_000.0)), qk_norm="head",
    tied_embeddings=True,
)  # fmt: skip
TINY = ModelSpec(  # for the interpreter
    family="qwen3", vocab_size=120, hidden_size=64, layers=alike(1), num_heads=2, num_kv_heads=1, head_dim=64,
    mlp_size=64, norm_eps=1e-5, max_position=192, qk_norm="head",
)  # fmt: skip
DEVIATION = 0.02  # of the weights: the order of a trained model's, so that nothing overflows
DISTINCT = 1 << 22  # values
SPARE = 1.25  # of the weights' size: a folder that would be filled to the brim is not taken
WORD = "word"  # token 7 is written "word7": whoever counts these counts tokens
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def bfloat16_bits(values: WeightArray) -> WeightArray:
    """Of float32 values, cut off."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def random_tensors(spec: ModelSpec) -> Callable[..., WeightArray]:
    """What `make_weights` takes each weight from: bfloat16 bits; of norms and biases, float32 ones."""
    rows = max(spec.vocab_size, spec.mlp_size, spec.num_heads * spec.head_dim)
    largest = rows * spec.hidden_size
    values = DEVIATION * np.random.default_rng(0).standard_normal(min(DISTINCT, largest), dtype=np.float32)
    bits = np.resize(bfloat16_bits(values), largest).astype(np.uint16, copy=False)  # for the checker: resize forgets

    def take(_name: str, *shape: int) -> WeightArray:
        if len(shape) == 1:
            return np.ones(shape, np.float32)
        return bits[: prod(shape)].reshape(shape)

    return take


def random_weights(spec: ModelSpec) -> DecoderWeights:
    return make_weights(spec, random_tensors(spec))


def named_tensors(spec: ModelSpec) -> dict[str, WeightArray]:
    """The same by the names of a checkpoint."""
    tensors: dict[str, WeightArray] = {}
    take = random_tensors(spec)

    def keep(name: str, *shape: int) -> WeightArray:
        tensors[name] = take(name, *shape)
        return tensors[name]

    make_weights(spec, keep)
    return tensors


@contextmanager
def random_checkpoint(spec: ModelSpec, places: Iterable[Path]) -> Generator[Path]:
    """A folder in the first place with room, for what only takes folders. Every token id is a word.

    Sixteen gigabytes are written in seconds in memory (/dev/shm). They are gone with the `with` block; where this
    process is killed in it, whoever gave it the places empties them.
    """
    tensors = named_tensors(spec)
    size = int(SPARE * sum(array.nbytes for array in tensors.values()))
    places = list(places)
    home = next((place for place in places if place.is_dir() and shutil.disk_usage(place).free > size), None)
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


def config_of(spec: ModelSpec) -> dict[str, object]:
    rope = spec.layers[0].rope or RopeSpec()
    config: dict[str, object] = {
        "architectures": [ARCHITECTURES[spec.family]], "model_type": spec.family, "torch_dtype": "bfloat16",
        "vocab_size": spec.vocab_size, "hidden_size": spec.hidden_size, "intermediate_size": spec.mlp_size,
        "num_hidden_layers": spec.num_layers, "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads, "head_dim": spec.head_dim, "rms_norm_eps": spec.norm_eps,
        "max_position_embeddings": spec.max_position, "tie_word_embeddings": spec.tied_embeddings,
        "rope_theta": rope.theta,
    }  # fmt: skip
    if rope.kind == "llama3":
        config["rope_scaling"] = {
            "rope_type": "llama3", "factor": rope.factor, "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_max_position,
        }  # fmt: skip
    return config


def write_tensors(path: Path, tensors: dict[str, WeightArray]) -> None:
    """In the order given; numpy's uint16 is bfloat16 here."""
    header: dict[str, object] = {}
    position = 0
    for name, array in tensors.items():
        kind, end = "BF16" if array.dtype == np.uint16 else "F32", position + array.nbytes
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)  # so that the data is aligned
    with path.open("wb", buffering=0) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            left = array.reshape(-1).view(np.uint8)
            while len(left):
                left = left[file.write(left.data) :]
