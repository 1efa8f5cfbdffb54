"""Checkpoint folders: single and sharded, links, missing and left-over weights, sampling defaults."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from triolet.models.checkpoint.open import open_checkpoint
from triolet.models.checkpoint.weights import load_weights
from triolet.models.errors import CheckpointError
from triolet.protocol.steps import LoadProgress

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 20, "hidden_size": 8,
    "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "eos_token_id": 3,
}  # fmt: skip
LAYER = {
    "self_attn.q_proj": (8, 8), "self_attn.k_proj": (4, 8), "self_attn.v_proj": (4, 8), "self_attn.o_proj": (8, 8),
    "mlp.gate_proj": (12, 8), "mlp.up_proj": (12, 8), "mlp.down_proj": (8, 12), "input_layernorm": (8,),
    "post_attention_layernorm": (8,),
}  # fmt: skip
Tensors = dict[str, np.ndarray]


def make_tensors() -> Tensors:
    shapes = {"model.embed_tokens.weight": (20, 8), "model.norm.weight": (8,), "lm_head.weight": (20, 8)}
    for layer in range(2):
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in LAYER.items()}
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write(folder: Path, tensors: Tensors | None = None, **options: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **options}))
    safetensors.numpy.save_file(make_tensors() if tensors is None else tensors, folder / "model.safetensors")
    return folder


def shard(folder: Path) -> dict[str, str]:
    """Split model.safetensors in two; the index's weight_map."""
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map: dict[str, str] = {}
    for index in range(2):
        name = f"model-{index}.safetensors"
        part = {key: value for place, (key, value) in enumerate(sorted(tensors.items())) if place % 2 == index}
        safetensors.numpy.save_file(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    write_index(folder, weight_map)
    return weight_map


def write_index(folder: Path, weight_map: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def load(folder: Path) -> Tensors:
    checkpoint = open_checkpoint(folder)
    weights = load_weights(checkpoint)
    head = {} if weights.lm_head is None else {"head": weights.lm_head}
    return {"embedding": weights.embedding, "down": weights.layers[1].down, "v": weights.layers[0].v, **head}


def test_single_and_sharded_hold_the_same(tmp_path: Path) -> None:
    single = load(write(tmp_path / "single"))
    tensors = make_tensors()
    np.testing.assert_array_equal(single["head"], tensors["lm_head.weight"])
    np.testing.assert_array_equal(single["down"], tensors["model.layers.1.mlp.down_proj.weight"])
    np.testing.assert_array_equal(single["v"], tensors["model.layers.0.self_attn.v_proj.weight"])
    shard(write(tmp_path / "sharded"))
    for name, value in load(tmp_path / "sharded").items():
        np.testing.assert_array_equal(value, single[name])


def test_progress_is_reported(tmp_path: Path) -> None:
    seen: list[LoadProgress] = []
    checkpoint = open_checkpoint(write(tmp_path))
    load_weights(checkpoint, seen.append)
    assert seen == [LoadProgress(stage="reading weights", done=done, total=2) for done in (1, 2)]
    assert checkpoint.name == tmp_path.name
    assert (checkpoint.dtype, checkpoint.widened_bytes) == ("float32", 0)


def test_every_missing_weight_is_named(tmp_path: Path) -> None:
    for index, name in enumerate(make_tensors()):
        tensors = make_tensors()
        del tensors[name]
        with pytest.raises(CheckpointError, match=f"^{name} = None: this weight is missing"):
            load(write(tmp_path / str(index), tensors))


def test_left_over_and_misshapen_weights_are_refused(tmp_path: Path) -> None:
    extra = {**make_tensors(), "model.layers.2.mlp.up_proj.weight": np.zeros((12, 8), np.float32)}
    with pytest.raises(CheckpointError, match=r"model\.layers\.2\.mlp\.up_proj\.weight .*left over"):
        load(write(tmp_path, extra))
    bias = {**make_tensors(), "model.layers.0.self_attn.q_proj.bias": np.zeros(8, np.float32)}
    with pytest.raises(CheckpointError, match=r"q_proj\.bias .*left over"):
        load(write(tmp_path, bias))
    shape = {**make_tensors(), "model.norm.weight": np.zeros(9, np.float32)}
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight = \(9,\): config.json implies the shape \(8,\)"):
        load(write(tmp_path, shape))


def test_harmless_left_overs(tmp_path: Path) -> None:
    old = {**make_tensors(), "model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(2, np.float32)}
    load(write(tmp_path / "inv_freq", old))
    tied = make_tensors()
    with pytest.raises(CheckpointError, match="tie_word_embeddings is true, yet"):
        load(write(tmp_path / "other head", tied, tie_word_embeddings=True))
    tied["lm_head.weight"] = tied["model.embed_tokens.weight"].copy()
    assert "head" not in load(write(tmp_path / "tied", tied, tie_word_embeddings=True))


def test_nan_weights_are_loaded(tmp_path: Path) -> None:
    """A broken weight breaks rows, which fail by themselves; it is no reason to scan every weight at every start."""
    tensors = make_tensors()
    tensors["lm_head.weight"][:] = np.nan
    assert np.isnan(load(write(tmp_path, tensors))["head"]).all()


def damage_missing_file(folder: Path, weight_map: dict[str, str]) -> None:
    (folder / "model-1.safetensors").unlink()


def damage_outside(folder: Path, weight_map: dict[str, str]) -> None:
    write_index(folder, {**weight_map, "lm_head.weight": "../model-0.safetensors"})


def damage_absolute(folder: Path, weight_map: dict[str, str]) -> None:
    write_index(folder, {**weight_map, "lm_head.weight": "/etc/passwd"})


def damage_wrong_shard(folder: Path, weight_map: dict[str, str]) -> None:
    name, home = next(iter(weight_map.items()))
    write_index(folder, {**weight_map, name: f"model-{1 - int(home[6])}.safetensors"})


def damage_unlisted(folder: Path, weight_map: dict[str, str]) -> None:
    write_index(folder, {name: home for name, home in weight_map.items() if name != "model.norm.weight"})


def damage_no_map(folder: Path, weight_map: dict[str, str]) -> None:
    write_index(folder, [1])


def damage_numbers(folder: Path, weight_map: dict[str, str]) -> None:
    write_index(folder, dict.fromkeys(weight_map, 5))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_missing_file, "'model-1.safetensors': missing"),
        (damage_outside, "plain file name"),
        (damage_absolute, "plain file name"),
        (damage_wrong_shard, "the index says"),
        (damage_unlisted, "does not place there"),
        (damage_no_map, "weight_map = "),
        (damage_numbers, "weight_map = "),
    ],
)
def test_damaged_indexes(damage: Callable[[Path, dict[str, str]], None], message: str, tmp_path: Path) -> None:
    damage(tmp_path, shard(write(tmp_path)))
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path)


def test_files_outside_the_folder_are_not_read(tmp_path: Path) -> None:
    real = write(tmp_path / "real")
    linked = write(tmp_path / "linked")
    (linked / "model.safetensors").unlink()
    (linked / "model.safetensors").symlink_to(real / "model.safetensors")
    with pytest.raises(CheckpointError, match="outside the checkpoint folder"):
        load(linked)
    (linked / "model.safetensors").unlink()
    (linked / "model.safetensors").symlink_to("nowhere")
    with pytest.raises(CheckpointError, match="leads nowhere"):
        load(linked)
    (linked / "model.safetensors").unlink()
    os.mkfifo(linked / "model.safetensors")
    with pytest.raises(CheckpointError, match="not a regular file"):
        load(linked)


def test_the_cache_layout_of_hugging_face_is_followed(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "models--a--b/blobs", tmp_path / "models--a--b/snapshots/abc"
    write(blobs)
    snapshot.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    load(snapshot)
    (snapshot / "config.json").unlink()
    (tmp_path / "models--a--b/secret").write_text("{}")
    (snapshot / "config.json").symlink_to("../../secret")
    with pytest.raises(CheckpointError, match="outside"):
        load(snapshot)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_files(name: str, tmp_path: Path) -> None:
    (write(tmp_path) / name).unlink()
    with pytest.raises(CheckpointError, match=f"'{name}': missing"):
        load(tmp_path)
    with pytest.raises(CheckpointError, match="no such folder"):
        open_checkpoint(tmp_path / "nowhere")


def defaults(folder: Path, generation: object | None) -> tuple[tuple[int, ...], dict[str, float | int]]:
    write(folder)
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    found = open_checkpoint(folder).generation
    return found.eos_token_ids, found.sampling


def test_generation_defaults(tmp_path: Path) -> None:
    assert defaults(tmp_path, None) == ((3,), {})
    assert defaults(tmp_path, {}) == ((3,), {})
    assert defaults(tmp_path, {"eos_token_id": 7}) == ((7,), {})
    sampling = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.05}
    assert defaults(tmp_path, {"eos_token_id": [7, 9, 7], "do_sample": True, **sampling, "max_new_tokens": 50}) == (
        (7, 9),
        {**sampling, "max_new_tokens": 50},
    )
    assert defaults(tmp_path, {"do_sample": False, "temperature": 0.6})[1] == {"temperature": 0}


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        ({"eos_token_id": 20}, "eos_token_id = 20: expected token ids below vocab_size = 20"),
        ({"eos_token_id": [-1]}, "eos_token_id"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"eos_token_id": True}, "eos_token_id"),
        ({"temperature": -1}, r"generation_config\.temperature = -1"),
        ({"temperature": "hot"}, "temperature = 'hot'"),
        ({"top_k": 1.5}, "top_k = 1.5"),
        ({"top_p": 2}, "top_p = 2"),
        ({"do_sample": 1}, "do_sample = 1"),
    ],
)
def test_bad_generation_defaults(generation: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        defaults(tmp_path, generation)
