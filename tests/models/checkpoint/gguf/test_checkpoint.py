"""The same weights as safetensors and as GGUF are the same checkpoint: names, rows, experts, logits."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy

from triolet.models.checkpoint.gguf.checkpoint import GgufCheckpoint
from triolet.models.checkpoint.open import open_checkpoint
from triolet.models.checkpoint.stored import StoredMatrix
from triolet.models.checkpoint.weights import load_weights
from triolet.models.errors import CheckpointError
from triolet.models.reference.decoder import reference_logits

from .cases import converted, metadata_of
from .golden import random_bytes
from .written import Tensor, plain, write_gguf

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # scales of every kind
FloatArray = npt.NDArray[np.float32]
HEADS = {"attn_q": 4, "attn_k": 2}
HEAD_DIM = 16
# Written out a second time: the reader's own table would hide its errors.
OWN_NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "blk.0.attn_norm": "model.layers.0.input_layernorm", "blk.0.ffn_norm": "model.layers.0.post_attention_layernorm",
    "blk.0.attn_q": "model.layers.0.self_attn.q_proj", "blk.0.attn_k": "model.layers.0.self_attn.k_proj",
    "blk.0.attn_v": "model.layers.0.self_attn.v_proj", "blk.0.attn_output": "model.layers.0.self_attn.o_proj",
    "blk.0.ffn_gate": "model.layers.0.mlp.gate_proj", "blk.0.ffn_up": "model.layers.0.mlp.up_proj",
    "blk.0.ffn_down": "model.layers.0.mlp.down_proj",
}  # fmt: skip


def own_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    return f"{OWN_NAMES[stem.replace('blk.1.', 'blk.0.')].replace('layers.0', 'layers.' + name[4])}.{kind}"


def own_tensors() -> dict[str, FloatArray]:
    """The llama case as its family names the tensors; every value is exact in bfloat16."""
    rng = np.random.default_rng(3)
    found: dict[str, FloatArray] = {}
    for pattern, shape in converted()["llama"]["tensors"].items():
        for layer in (0, 1) if "*" in pattern else (0,):
            values: FloatArray = rng.standard_normal(tuple(shape), np.float32)
            values.view(np.uint16)[..., ::2] = 0  # the lower half of each float32
            found[own_name(pattern.replace("*", str(layer)))] = values
    return found


def as_converted(tensors: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """By the format's names, with the rows of a rotary pair side by side, as the converter reorders them."""
    found: dict[str, FloatArray] = {}
    for pattern in converted()["llama"]["tensors"]:
        for layer in (0, 1) if "*" in pattern else (0,):
            name = pattern.replace("*", str(layer))
            values = tensors[own_name(name)]
            heads = HEADS.get(name.split(".")[-2])
            if heads is not None:
                halves = values.reshape(heads, 2, HEAD_DIM // 2, -1)
                values = halves.swapaxes(1, 2).reshape(values.shape)
            found[name] = values
    return found


def write_folder(folder: Path, tensors: dict[str, FloatArray]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(converted()["llama"]["config"]))
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return folder


def bfloat16(values: FloatArray) -> npt.NDArray[np.uint16]:
    return (np.ascontiguousarray(values).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("kind", ["F32", "BF16"])
def test_float_weights_are_those_of_the_folder(tmp_path: Path, kind: str) -> None:
    tensors = own_tensors()
    folder = open_checkpoint(write_folder(tmp_path / "folder", tensors))
    converted_tensors = {
        name: plain(bfloat16(values) if kind == "BF16" and values.ndim == 2 else np.ascontiguousarray(values))
        for name, values in as_converted(tensors).items()
    }
    file = open_checkpoint(write_gguf(tmp_path / "twin.gguf", metadata_of("llama"), converted_tensors))
    assert isinstance(file, GgufCheckpoint)
    assert (file.name, file.spec, file.tensor_names) == ("twin", folder.spec, folder.tensor_names)
    assert file.dtype == {"F32": "float32", "BF16": "bfloat16"}[kind]
    for name, values in tensors.items():
        found = file.read_tensor(name)
        assert isinstance(found, np.ndarray)
        assert file.tensor_shape(name) == values.shape
        np.testing.assert_array_equal(found, bfloat16(values) if found.dtype == np.uint16 else values)
    logits = [reference_logits(one.spec, load_weights(one), [3, 1, 4, 1, 5, 9]) for one in (folder, file)]
    np.testing.assert_array_equal(logits[0], logits[1])
    swapped = {**converted_tensors, "blk.1.attn_q.weight": converted_tensors["blk.0.attn_q.weight"]}
    other = open_checkpoint(write_gguf(tmp_path / "other.gguf", metadata_of("llama"), swapped))
    assert not np.array_equal(reference_logits(other.spec, load_weights(other), [3, 1, 4, 1, 5, 9]), logits[0])


def test_quantised_matrices_come_as_they_are_stored(tmp_path: Path) -> None:
    tensors = {name: plain(values) for name, values in as_converted(own_tensors()).items()}
    blocks = Tensor("Q8_0", (64, 64), random_bytes("quantised", 64 * 2 * 34))
    tensors |= dict.fromkeys(("blk.0.attn_q.weight", "blk.0.attn_v.weight", "blk.0.ffn_norm.weight"), blocks)
    tensors["blk.0.ffn_norm.weight"] = Tensor("Q8_0", (64,), blocks.data[:68])
    tensors["blk.0.attn_v.weight"] = Tensor("Q8_0", (32, 64), blocks.data[: 32 * 68])
    file = GgufCheckpoint(write_gguf(tmp_path / "m.gguf", metadata_of("llama"), tensors))
    query = file.read_tensor("model.layers.0.self_attn.q_proj.weight")
    value = file.stored_matrix("model.layers.0.self_attn.v_proj.weight")
    assert isinstance(query, StoredMatrix)
    assert isinstance(value, StoredMatrix)
    assert (query.format, query.shape, value.shape) == ("GGUF Q8_0", (64, 64), (32, 64))
    plain_rows = value.rows(0, 16)  # the first head, as it is in the file
    halves = plain_rows.reshape(8, 2, 64).swapaxes(0, 1).reshape(16, 64)
    np.testing.assert_array_equal(query.rows(0, 16), halves)
    assert file.stored_matrix("model.layers.0.input_layernorm.weight") is None
    assert isinstance(file.read_tensor("model.layers.0.post_attention_layernorm.weight"), np.ndarray)
    assert not file.quantised
    assert file.bytes_by_type()["Q8_0"] == 64 * 68 + 32 * 68 + 68
    file.release_pages()
    np.testing.assert_array_equal(query.rows(0, 16), halves)


def test_rows_that_are_no_heads_are_refused(tmp_path: Path) -> None:
    tensors = {name: plain(values) for name, values in as_converted(own_tensors()).items()}
    tensors["blk.0.attn_k.weight"] = plain(np.zeros((40, 64), np.float32))
    file = GgufCheckpoint(write_gguf(tmp_path / "m.gguf", metadata_of("llama"), tensors))
    with pytest.raises(CheckpointError, match="k_proj"):
        load_weights(file)
    with pytest.raises(CheckpointError, match="no multiple of the head size"):
        file.read_tensor("model.layers.0.self_attn.k_proj.weight")
