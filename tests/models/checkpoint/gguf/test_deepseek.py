"""DeepSeek as a folder's tensors and as a GGUF file, newer and older, is one checkpoint: names, matrices, logits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from triolet.models.checkpoint.families.families import spec_from_config
from triolet.models.checkpoint.gguf.checkpoint import GgufCheckpoint
from triolet.models.checkpoint.safetensors import WeightArray
from triolet.models.checkpoint.stored import StoredMatrix
from triolet.models.checkpoint.weights import load_weights, make_weights
from triolet.models.cpu.load import plan_on_cpu
from triolet.models.errors import CheckpointError, UnsupportedModel
from triolet.models.gpu.load import sizes_of
from triolet.models.gpu.rehearsal import RehearsalDevice
from triolet.models.gpu.stored import described_formats
from triolet.models.reference.decoder import reference_logits
from triolet.protocol.settings import EngineSettings

from .cases import converted, metadata_of
from .written import Tensor, Typed, plain, write_gguf

FloatArray = npt.NDArray[np.float32]
MODELS = [name for name in converted() if name.startswith("deepseek2")]
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]
HEADS, PLAIN, VALUE, RANK, EXPERTS = 4, 24, 16, 32, 8
NAMES = {  # src/models/deepseek2.cpp of llama.cpp, and gguf-py/gguf/tensor_mapping.py
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "model.layers": "blk",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b", "self_attn.o_proj": "attn_output",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias", "mlp.gate.": "ffn_gate_inp.",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}  # fmt: skip


def own_tensors(model: str) -> dict[str, FloatArray]:
    rng, found = np.random.default_rng(4), dict[str, FloatArray]()

    def take(name: str, *shape: int) -> WeightArray:
        found[name] = (rng.standard_normal(shape) * (0.3 if len(shape) > 1 else 1)).astype(np.float32)
        return found[name]

    make_weights(spec_from_config(converted()[model]["config"]), take)
    return found


def as_converted(tensors: dict[str, FloatArray], *, newer: bool) -> dict[str, FloatArray]:
    found, experts = dict[str, FloatArray](), dict[str, list[FloatArray]]()
    for name, values in tensors.items():
        if ".experts." in name:
            layer, kind = name.split(".")[2], name.split(".")[-2].removesuffix("_proj")
            experts.setdefault(f"blk.{layer}.ffn_{kind}_exps.weight", []).append(values)
            continue
        for own, theirs in NAMES.items():
            name = name.replace(own, theirs)
        if newer and "attn_kv_b" in name:
            whole = values.reshape(HEADS, PLAIN + VALUE, RANK)
            found[name.replace("kv_b", "k_b")] = np.ascontiguousarray(whole[:, :PLAIN].swapaxes(1, 2))
            found[name.replace("kv_b", "v_b")] = np.ascontiguousarray(whole[:, PLAIN:])
        else:
            found[name] = values
    assert all(len(one) == EXPERTS for one in experts.values())
    return found | {name: np.stack(one) for name, one in experts.items()}


def metadata(model: str, *, newer: bool) -> dict[str, Any]:
    """Older files have each head's sizes, and as many keys and values as heads."""
    found = metadata_of(model)
    if not newer:
        for key in ("key_length_mla", "value_length_mla"):
            found[f"deepseek2.attention.{key.removesuffix('_mla')}"] = found.pop(f"deepseek2.attention.{key}")
        found["deepseek2.attention.head_count_kv"] = HEADS
    return found


@pytest.mark.parametrize("newer", [True, False])
@pytest.mark.parametrize("model", MODELS)
def test_the_file_is_the_folder(tmp_path: Path, model: str, newer: bool) -> None:
    own = own_tensors(model)
    theirs = as_converted(own, newer=newer)

    def file(tensors: dict[str, FloatArray]) -> GgufCheckpoint:
        written = {name: plain(values) for name, values in tensors.items()}
        return GgufCheckpoint(write_gguf(tmp_path / "m.gguf", metadata(model, newer=newer), written))

    checkpoint, config = file(theirs), converted()[model]["config"]
    assert (checkpoint.spec, checkpoint.tensor_names) == (spec_from_config(config), frozenset(own))
    given = make_weights(checkpoint.spec, lambda name, *shape: own[name])
    logits = [reference_logits(checkpoint.spec, weights, TOKENS) for weights in (given, load_weights(checkpoint))]
    np.testing.assert_array_equal(logits[0], logits[1])
    key = "blk.1.attn_k_b.weight" if newer else "blk.1.attn_kv_b.weight"
    turned = file({**theirs, key: theirs[key][::-1].copy()})  # the heads in another order
    assert not np.array_equal(reference_logits(turned.spec, load_weights(turned), TOKENS), logits[0])


def test_quantised_keys_and_values_are_read_by_heads(tmp_path: Path) -> None:
    """Keys of 32 dimensions, so that their blocks fit; rows of any heads are those of the whole."""
    model = "deepseek2, sigmoid"
    tensors = {name: plain(values) for name, values in as_converted(own_tensors(model), newer=True).items()}
    rng = np.random.default_rng(1)

    def blocks(*shape: int) -> Tensor:
        scales = np.full((*shape[:-1], shape[-1] // 32, 1), 0.01, np.float16).view(np.uint8)
        codes = rng.integers(0, 256, (*scales.shape[:-1], 32), np.uint8)
        return Tensor("Q8_0", shape, np.concatenate([scales, codes], axis=-1).tobytes())

    for layer in range(3):
        tensors[f"blk.{layer}.attn_k_b.weight"] = blocks(HEADS, RANK, 32)
        tensors[f"blk.{layer}.attn_v_b.weight"] = blocks(HEADS, VALUE, RANK)
        for name, shape in (("q_a", (32, 64)), ("q_a_norm", (32,)), ("q_b", (HEADS * 40, 32))):
            tensors[f"blk.{layer}.attn_{name}.weight"] = plain(np.zeros(shape, np.float32))
    more = {"deepseek2.attention.key_length_mla": 40, "deepseek2.attention.q_lora_rank": 32}
    checkpoint = GgufCheckpoint(write_gguf(tmp_path / "m.gguf", {**metadata_of(model), **more}, tensors))
    name = "model.layers.1.self_attn.kv_b_proj.weight"
    whole, stored = load_weights(checkpoint).layers[1].latent, checkpoint.stored_matrix(name)
    assert whole is not None
    assert isinstance(stored, StoredMatrix)
    assert (stored.format, stored.shape) == ("GGUF Q8_0", (HEADS * 48, RANK))
    data = np.frombuffer(tensors["blk.1.attn_v_b.weight"].data, np.uint8).reshape(HEADS, VALUE, 34)
    values = data[..., 2:].view(np.int8).astype(np.float32) * np.float32(np.float16(0.01))
    rows = stored.rows(0, len(stored)).reshape(HEADS, 48, RANK)
    np.testing.assert_array_equal(rows[:, 32:], values)
    np.testing.assert_array_equal(stored.rows(40, 101), rows.reshape(-1, RANK)[40:101])

    as_it_is, widened = (EngineSettings(model="", max_model_len=64, dtype=dtype) for dtype in ("auto", "bfloat16"))
    assert plan_on_cpu(checkpoint, as_it_is, 1 << 28)[0].weight_format == "float32"  # no product takes these integers
    tensors["blk.1.attn_q_b.weight"] = blocks(HEADS * 40, 32)
    checkpoint = GgufCheckpoint(write_gguf(tmp_path / "m.gguf", {**metadata_of(model), **more}, tensors))
    with pytest.raises(UnsupportedModel, match=r"GGUF Q8_0.*--dtype bfloat16 widens"):
        plan_on_cpu(checkpoint, as_it_is, 1 << 28)
    assert plan_on_cpu(checkpoint, widened, 1 << 28)[0].weight_format == "bfloat16"
    gpu = RehearsalDevice()
    with pytest.raises(UnsupportedModel, match=r"GGUF Q8_0.*--dtype bfloat16 widens"):
        sizes_of(checkpoint, as_it_is, gpu)
    assert not sizes_of(checkpoint, widened, gpu).stored
    wide = (3 * HEADS * 48 * RANK + HEADS * 40 * 32) * 2 / 1024
    assert (
        described_formats(checkpoint, {}) == f"GGUF Q8_0 widened to bfloat16 ({wide:g}KiB); other matrices in bfloat16"
    )


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    model = "deepseek2, lite"
    tensors = {name: plain(values) for name, values in as_converted(own_tensors(model), newer=True).items()}

    def refused(
        message: str, without: str = "", changed: Mapping[str, tuple[int, ...]] | None = None, **more: Any
    ) -> None:
        """`changed`: shapes of other tensors. `more`: metadata, with `__` for a dot."""
        left = {name: tensor for name, tensor in tensors.items() if name != without}
        left |= {name: plain(np.zeros(shape, np.float32)) for name, shape in (changed or {}).items()}
        pairs = {f"deepseek2.{key.replace('__', '.')}": value for key, value in more.items()}
        path = write_gguf(tmp_path / "m.gguf", {**metadata_of(model), **pairs}, left)
        with pytest.raises(CheckpointError, match=message):
            load_weights(GgufCheckpoint(path))

    refused("expert_gating_func = 3", expert_gating_func=3)
    refused("e_score_correction_bias", expert_gating_func=2)  # of V3, which this is not
    refused("attn_v_b", without="blk.2.attn_v_b.weight")
    refused("attn_v_b", without="blk.2.attn_k_b.weight")
    refused("qk_nope_head_dim = -8", rope__dimension_count=40, attention__key_length=RANK + 40)
    refused("key_length = 48: expected 40", attention__key_length=48)
    refused("value_length = 16: expected 32", attention__value_length=16)
    refused("head_count_kv = 2: expected 1", attention__head_count_kv=2)
    refused("attn_factor = 5.0", rope__scaling__attn_factor=5.0)  # whose place the logarithm's weight has
    refused("yarn_log_multiplier = 0.0707", rope__scaling__type="linear")
    # As many weights as the settings imply, shared out among keys, values and heads in another way.
    for heads, keys, values in ((HEADS, 32, 8), (HEADS // 2, 40, 40)):
        shapes = {"blk.1.attn_k_b.weight": (heads, RANK, keys), "blk.1.attn_v_b.weight": (heads, values, RANK)}
        refused(r"blk\.1\.attn_k_b.*imply the shapes", changed=shapes)
    whole = {"blk.1.attn_kv_b.weight": (HEADS * (PLAIN + VALUE), RANK)}
    refused(r"kv_b_proj.*'blk\.1\.attn_kv_b\.weight'\): two tensors", changed=whole)


def test_files_without_groups_are_of_the_models_that_had_them(tmp_path: Path) -> None:
    found = metadata_of("deepseek2, sigmoid")
    for key in ("expert_group_count", "expert_group_used_count"):
        del found[f"deepseek2.{key}"]
    tensors = {"token_embd.weight": plain(np.zeros((64, 64), np.float32))}
    groups = list[tuple[int, int]]()
    for count in (8, 256):
        path = write_gguf(tmp_path / "m.gguf", {**found, "deepseek2.expert_count": Typed("u32", count)}, tensors)
        experts = GgufCheckpoint(path).spec.experts
        assert experts is not None
        groups.append((experts.routing.groups, experts.routing.chosen_groups))
    assert groups == [(1, 1), (8, 4)]
