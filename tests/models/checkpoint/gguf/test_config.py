"""Headers as llama.cpp's converter writes them: the spec is that of the config.json they were made from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from triolet.models.checkpoint.families.families import spec_from_config
from triolet.models.checkpoint.gguf import names
from triolet.models.checkpoint.gguf.checkpoint import GgufCheckpoint
from triolet.models.checkpoint.rope import RopeSpec, inverse_frequencies
from triolet.models.checkpoint.spec import ModelSpec
from triolet.models.checkpoint.weights import load_weights
from triolet.models.errors import CheckpointError, UnsupportedModel

from .cases import converted, metadata_of, tensors_of, write_case
from .written import Tensor, Typed, plain, write_gguf

MODELS = list(converted())


def without_rotation(spec: ModelSpec) -> ModelSpec:
    plain = tuple(replace(layer, rope=None if layer.rope is None else RopeSpec()) for layer in spec.layers)
    return replace(spec, layers=plain, norm_offset=0.0)


@pytest.mark.parametrize("model", MODELS)
def test_the_spec_is_that_of_the_config(tmp_path: Path, model: str) -> None:
    config = converted()[model]["config"]
    expected, found = spec_from_config(config), GgufCheckpoint(write_case(tmp_path, model)).spec
    # Mistral and Ministral become Llama: what differs is in the numbers alone.
    family = found.family if config["model_type"] == "mistral" else expected.family
    assert without_rotation(found) == without_rotation(replace(expected, family=family))
    for ours, theirs in zip(found.layers, expected.layers, strict=True):
        assert (ours.rope is None) == (theirs.rope is None)
        if ours.rope is not None and theirs.rope is not None:
            size = expected.rotary_dim or expected.head_dim
            frequencies = [inverse_frequencies(rope, size) for rope in (ours.rope, theirs.rope)]
            np.testing.assert_allclose(frequencies[0], frequencies[1], rtol=1e-6)  # factors are float32 in the file
            assert ours.rope.attention_factor == pytest.approx(theirs.rope.attention_factor, rel=1e-6)


@pytest.mark.parametrize("model", MODELS)
def test_every_weight_is_found_and_none_is_left(tmp_path: Path, model: str) -> None:
    weights = load_weights(GgufCheckpoint(write_case(tmp_path, model)))
    assert len(weights.layers) == converted()[model]["config"]["num_hidden_layers"]
    tensors = tensors_of(model)
    del tensors["blk.1.attn_output.weight"]
    with pytest.raises(CheckpointError, match=r"layers\.1\.self_attn\.o_proj\.weight"):
        load_weights(GgufCheckpoint(write_gguf(tmp_path / "less.gguf", metadata_of(model), tensors)))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an architecture that is not known": ({"general.architecture": "mamba"}, "general.architecture = 'mamba'"),
    "no string": ({"general.architecture": 7}, "general.architecture = 7"),
    "a key that is not known": ({"llama.attention.clamp_kqv": 8.0}, "llama.attention.clamp_kqv = 8.0"),
    "no length": ({"llama.context_length": 0}, "max_position_embeddings = 0"),
    "no number": ({"llama.rope.dimension_count": float("nan")}, "llama.rope.dimension_count = nan"),
    "no end": ({"llama.attention.key_length": float("inf")}, "llama.attention.key_length = inf"),
    "no whole number": ({"llama.rope.dimension_count": 15.5}, "llama.rope.dimension_count = 15.5"),
    "no dimensions": ({"llama.attention.key_length": 0}, "llama.attention.key_length = 0"),
    "no heads": ({"llama.attention.head_count": 0}, "llama.attention.head_count = 0"),
    "layers that differ": (
        {"llama.attention.head_count_kv": Typed("u32", [1, 2])}, r"llama.attention.head_count_kv = \[1, 2\]",
    ),
    "values of another size": ({"llama.attention.value_length": 8}, "llama.attention.value_length = 8"),
    "no factor": (
        {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 0.0}, "llama.rope.scaling.factor = 0.0",
    ),
    "a magnitude of nothing": ({"llama.rope.scaling.attn_factor": 5.0}, "llama.rope.scaling.attn_factor = 5.0"),
    "another scaling": ({"llama.rope.scaling.type": "dynamic"}, "llama.rope.scaling.type = 'dynamic'"),
    "words for a number": ({"llama.block_count": "two"}, "num_hidden_layers = 'two'"),
    "a huge number of layers": ({"llama.block_count": 2**31}, "num_hidden_layers = 2147483648"),
    "more layers than memory": ({"llama.block_count": 2**31 - 1}, "num_hidden_layers = 2147483647"),
    "a token beyond the vocabulary": ({"tokenizer.ggml.eos_token_id": 64}, "tokenizer.ggml.eos_token_id"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(tmp_path: Path, case: str) -> None:
    metadata, message = WRONG[case]
    with pytest.raises(CheckpointError, match=message):
        GgufCheckpoint(write_case(tmp_path, "llama", **metadata))


def test_values_alike_for_all_layers_are_one_value(tmp_path: Path) -> None:
    path = write_case(tmp_path, "llama", **{"llama.attention.head_count_kv": Typed("u32", [2, 2])})
    assert GgufCheckpoint(path).spec.num_kv_heads == 2


def test_a_tensor_that_is_not_known_is_refused(tmp_path: Path) -> None:
    tensors = tensors_of("llama")
    tensors["blk.0.attn_sinks.weight"] = tensors["blk.0.attn_norm.weight"]
    with pytest.raises(UnsupportedModel, match=r"blk\.0\.attn_sinks\.weight"):
        GgufCheckpoint(write_gguf(tmp_path / "m.gguf", metadata_of("llama"), tensors))


def test_factors_and_another_scaling_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"rope\.scaling\.type.*beside tensors"):
        GgufCheckpoint(write_case(tmp_path, "llama, tied, llama3, biases", **{"llama.rope.scaling.factor": 2.0}))


def test_more_experts_than_any_model_has_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "MAX_PIECES", 10)
    with pytest.raises(CheckpointError, match=r"ffn_.*_exps\.weight = 4: experts; at most 10"):
        GgufCheckpoint(write_case(tmp_path, "qwen2moe"))


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("blk.1.ffn_gate_exps.weight", plain(np.zeros((5, 32, 64), np.float32)), "expected a matrix of each of 4"),
        ("blk.1.ffn_gate_exps.weight", Tensor("Q8_0", (32,), bytes(34)), "expected a matrix of each of 4 experts"),
        (
            "blk.1.ffn_gate_inp_shexp.weight",
            plain(np.zeros((2, 64), np.float32)),
            r"shared_expert_gate.weight = \(2, 64\)",
        ),
        ("blk.01.ffn_gate_exps.weight", plain(np.zeros((4, 32, 64), np.float32)), "two tensors for one weight"),
        ("blk.01.ffn_norm.weight", plain(np.zeros(64, np.float32)), r"'blk\.01\.ffn_norm\.weight'\): two tensors"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused(tmp_path: Path, name: str, tensor: Tensor, message: str) -> None:
    tensors = {**tensors_of("qwen2moe"), name: tensor}
    with pytest.raises(CheckpointError, match=message):
        load_weights(GgufCheckpoint(write_gguf(tmp_path / "m.gguf", metadata_of("qwen2moe"), tensors)))


def test_tokens_that_end_a_sequence_and_sampling_defaults(tmp_path: Path) -> None:
    """The keys, and control tokens by their names; a user's token of that name is text."""
    tokens = ["<|im_end|>" if index == 5 else "<|eot_id|>" if index in (9, 10) else f"t{index}" for index in range(64)]
    more = {
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 5,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": Typed("i32", [3 if index in (2, 5, 9) else 1 for index in range(64)]),
        "general.sampling.temp": 0.6,
        "general.sampling.top_k": Typed("i32", 20),
    }
    generation = GgufCheckpoint(write_case(tmp_path, "llama", **more)).generation
    assert generation.eos_token_ids == (2, 5, 9)
    assert generation.sampling == {"temperature": pytest.approx(0.6), "top_k": 20}
    assert GgufCheckpoint(write_case(tmp_path, "llama")).generation.eos_token_ids == ()


def test_where_calls_and_returns_end_an_answer_the_end_of_a_message_does_not(tmp_path: Path) -> None:
    ends = {3: "<|end|>", 4: "<|return|>", 5: "<|call|>"}

    def of(known: dict[int, str]) -> tuple[int, ...]:
        more = {
            "tokenizer.ggml.tokens": [known.get(index, f"t{index}") for index in range(64)],
            "tokenizer.ggml.token_type": Typed("i32", [3] * 64),
        }
        return GgufCheckpoint(write_case(tmp_path, "llama", **more)).generation.eos_token_ids

    assert of(ends) == (4, 5)
    assert of({3: "<|end|>"}) == (3,)
