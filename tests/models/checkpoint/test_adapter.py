"""Reading PEFT's adapter folders: scales and ranks by their rules, and every refusal by name."""

from __future__ import annotations

import json
from math import sqrt
from pathlib import Path

import msgspec
import numpy as np
import pytest

from triolet.loadtest.device.random_adapter import random_adapter
from triolet.loadtest.device.random_model import TINY, write_tensors
from triolet.models.checkpoint.adapter import MODULES, LowRank, load_adapter
from triolet.models.checkpoint.safetensors import WeightArray
from triolet.models.checkpoint.spec import LayerSpec, alike
from triolet.models.errors import CheckpointError, UnsupportedModel

from ..adapter_cases import WRITTEN_BY_PEFT, tensors_of, write_adapter

SPEC = msgspec.structs.replace(TINY, layers=alike(2))
ADAPTER = random_adapter(SPEC, 1, rank=4)
Q = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    read = load_adapter(write_adapter(tmp_path, ADAPTER), SPEC)
    assert read.rank == 4
    for layer, written in zip(read.layers, ADAPTER.layers, strict=True):
        assert set(layer) == set(MODULES)
        for module, part in layer.items():
            np.testing.assert_array_equal(part.a, written[module].a)
            np.testing.assert_array_equal(part.b, written[module].b)
            assert part.scale == pytest.approx(0.2)


def test_weights_that_torch_saved(tmp_path: Path) -> None:
    import torch

    folder = write_adapter(tmp_path, ADAPTER)
    (folder / "adapter_model.safetensors").unlink()
    torch.save({name: torch.tensor(array) for name, array in tensors_of(ADAPTER).items()}, folder / "adapter_model.bin")
    for layer, written in zip(load_adapter(folder, SPEC).layers, ADAPTER.layers, strict=True):
        for module, part in layer.items():
            np.testing.assert_array_equal(part.a, written[module].a)
            np.testing.assert_array_equal(part.b, written[module].b)


def test_scale_and_rank_follow_pefts_rules(tmp_path: Path) -> None:
    """alpha / r, or alpha / sqrt(r); a pattern is a name's end or all of it, and the first one that fits counts."""
    mixed = tuple(dict(layer) for layer in ADAPTER.layers)
    for layer in mixed:
        part = layer["q_proj"]
        layer["q_proj"] = LowRank(part.a[:2].copy(), part.b[:, :2].copy(), part.scale)
    adapter = msgspec.structs.replace(ADAPTER, layers=mixed)
    whole = "model.layers.1.mlp.up_proj"
    folder = write_adapter(
        tmp_path, adapter, r=4, lora_alpha=6, rank_pattern={"q_proj": 2},
        alpha_pattern={f"^{whole}": 10, "mlp.up_proj": 5, "proj": 1}, target_modules="all-linear",
    )  # fmt: skip
    layers = load_adapter(folder, SPEC).layers
    assert [layers[1][name].scale for name in ("q_proj", "k_proj", "up_proj")] == [3, 1.5, 2.5]
    assert layers[0]["up_proj"].scale == 1.25
    config = json.loads((folder / "adapter_config.json").read_text()) | {"use_rslora": True}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    assert load_adapter(folder, SPEC).layers[0]["q_proj"].scale == 6 / sqrt(2)


def test_adapters_of_experts_are_refused(tmp_path: Path) -> None:
    """Those of the attention beside them are not."""
    mixture = msgspec.structs.replace(SPEC, layers=(LayerSpec(), LayerSpec(experts=True)))
    attention = random_adapter(SPEC, 1, modules=("q_proj", "v_proj"))
    assert load_adapter(write_adapter(tmp_path, attention), mixture).layers[1].keys() == {"q_proj", "v_proj"}
    with pytest.raises(UnsupportedModel, match="may change their attention only"):
        load_adapter(write_adapter(tmp_path, ADAPTER), mixture)


def test_some_modules_of_some_layers(tmp_path: Path) -> None:
    chosen = ("q_proj", "v_proj")
    adapter = random_adapter(SPEC, 1, modules=chosen)
    assert set(load_adapter(write_adapter(tmp_path / "a", adapter), SPEC).layers[0]) == set(chosen)
    by_pattern = write_adapter(tmp_path / "b", adapter, target_modules=r".*\.(q|v)_proj")
    assert set(load_adapter(by_pattern, SPEC).layers[0]) == set(chosen)
    one_layer = msgspec.structs.replace(adapter, layers=(adapter.layers[0], {}))
    assert load_adapter(write_adapter(tmp_path / "c", one_layer, layers_to_transform=[0]), SPEC).layers[1] == {}
    with pytest.raises(CheckpointError, match=r"layer 1 .* says otherwise about q_proj, v_proj"):
        load_adapter(write_adapter(tmp_path / "d", one_layer), SPEC)
    with pytest.raises(CheckpointError, match=r"layer 0 .* says otherwise about v_proj"):
        load_adapter(write_adapter(tmp_path / "e", adapter, target_modules=["q_proj"]), SPEC)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type = 'IA3': only LoRA"),
        ({"peft_type": None}, "not an adapter's configuration"),
        ({"task_type": "SEQ_CLS"}, "task_type"),
        ({"bias": "all"}, "bias = 'all'"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"init_lora_weights": "pissa_niter_4"}, "fits a changed base"),
        ({"use_dora": True}, "use_dora = True: DoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"use_bdlora": {"a": 1}}, "use_bdlora .* an unknown setting"),
        ({"target_modules": ["q_proj", "lm_head"]}, "target_modules"),
        ({"target_modules": None}, "target_modules = None"),
        ({"alpha_pattern": {"q_pro.*": 2}}, r"alpha_pattern.q_pro\.\* = 2: only plain module names"),
        ({"lora_alpha": -1}, "lora_alpha = -1"),
        ({"lora_alpha": "16"}, "lora_alpha = '16'"),
        ({"r": 0}, "r = 0"),
        ({"r": 257}, "ranks up to 256"),
        ({"r": 8}, r"rank 8 imply the shape \(8, 64\)"),
        ({"use_rslora": "yes"}, "use_rslora"),
    ],
)
def test_settings_that_are_not_supported_are_refused(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_adapter(write_adapter(tmp_path, ADAPTER, **changes), SPEC)


def test_tensors_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_adapter(tmp_path, ADAPTER)
    tensors = tensors_of(ADAPTER)

    def refused(message: str, *without: str, **added: WeightArray) -> None:
        kept = {name: values for name, values in tensors.items() if name not in without}
        write_tensors(tmp_path / "adapter_model.safetensors", kept | added)
        with pytest.raises(CheckpointError, match=message):
            load_adapter(tmp_path, SPEC)

    refused("lora_A.weight = None: this weight is missing", Q)
    refused("the base model has 2 layers", **{Q.replace("layers.1.", "layers.2."): tensors[Q]})
    refused("only lora_A and lora_B of", **{"base_model.model.lm_head.lora_A.weight": tensors[Q]})
    refused("only lora_A and lora_B of", **{Q.replace("lora_A", "lora_magnitude_vector"): tensors[Q]})
    refused("another base", **{Q: np.zeros((4, 128), np.float32)})
    refused("holds an infinite value or NaN", **{Q: np.full((4, 64), np.inf, np.float32)})
    refused("holds no lora_A", *tensors)


def test_folders_without_an_adapter_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"adapter = .*there is no such folder"):
        load_adapter(tmp_path / "none", SPEC)
    with pytest.raises(CheckpointError, match=r"adapter_config\.json.*missing"):
        load_adapter(tmp_path, SPEC)
    (tmp_path / "adapter_config.json").write_text(WRITTEN_BY_PEFT)
    with pytest.raises(CheckpointError, match="missing; save the adapter"):
        load_adapter(tmp_path, SPEC)
    (tmp_path / "adapter_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"adapter_model\.bin.*no file of torch\.save"):
        load_adapter(tmp_path, SPEC)


def test_another_base_is_refused(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path, ADAPTER)
    with pytest.raises(CheckpointError, match="another base"):
        load_adapter(folder, msgspec.structs.replace(SPEC, hidden_size=128))
    with pytest.raises(CheckpointError, match="the base model has 1 layers"):
        load_adapter(folder, TINY)


def test_unsupported_is_told_from_damaged(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel):
        load_adapter(write_adapter(tmp_path, ADAPTER, use_dora=True), SPEC)
