"""Decoders that make embeddings, against transformers: hidden states, vectors, any batch, and errors that must show."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace

from triolet.models.checkpoint.rope import RopeSpec
from triolet.models.checkpoint.spec import LayerSpec, ModelSpec
from triolet.models.checkpoint.weights import DecoderWeights, load_weights
from triolet.models.encoder.causal import CausalCheckpoint, CausalRunner, plan_causal
from triolet.models.encoder.checkpoint import holds_encoder, makes_vectors
from triolet.models.encoder.head import apply_head
from triolet.models.encoder.load import open_vector_checkpoint, plan_vectors, pooling_of
from triolet.models.encoder.runner import Text
from triolet.models.errors import UnsupportedModel
from triolet.models.reference.decoder import reference_states
from triolet.protocol.settings import EngineSettings

FloatArray = npt.NDArray[np.float32]
TOLERANCE = 1e-4
LENGTHS = (150, 3, 64, 1)
SETTINGS = EngineSettings(model="", max_step_tokens=300, max_running=8, threads=2)
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]
# As Qwen3-Embedding is published (the causal class in config.json, names of tensors without it), and as E5-Mistral is.
KINDS: dict[str, tuple[str, bool]] = {"Qwen3": ("Qwen3ForCausalLM", True), "Mistral": ("MistralModel", False)}


class Case:
    """A folder, texts, and the hidden states that transformers has for them."""

    def __init__(self, kind: str, folder: Path) -> None:
        import torch
        import transformers

        torch.manual_seed(len(kind))
        architecture, tied = KINDS[kind]
        config: Any = getattr(transformers, f"{kind}Config")(
            vocab_size=120, hidden_size=96, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, head_dim=24, max_position_embeddings=400, tie_word_embeddings=tied,
            attn_implementation="eager",
        )  # fmt: skip
        model: Any = getattr(transformers, f"{kind}Model")(config).eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.normal_(1.0 if "norm" in name else 0.0, 0.25)
        model.save_pretrained(folder)
        saved = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(saved | {"architectures": [architecture]}))
        (folder / "modules.json").write_text(json.dumps(MODULES))
        (folder / "1_Pooling").mkdir()
        pooling = {"word_embedding_dimension": 96, "pooling_mode_lasttoken": True, "include_prompt": True}
        (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
        rng = np.random.default_rng(5)
        self.folder, self.texts = folder, [rng.integers(0, 120, length).astype(np.int32) for length in LENGTHS]
        with torch.no_grad():
            inputs = [torch.from_numpy(text.astype(np.int64))[None] for text in self.texts]
            self.hidden: list[FloatArray] = [model(ids).last_hidden_state[0].numpy() for ids in inputs]


@pytest.fixture(scope="module", params=list(KINDS))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(str(request.param), tmp_path_factory.mktemp("causal"))


def distance(found: list[FloatArray], wanted: list[FloatArray]) -> float:
    return max(float(np.abs(one - other).max()) for one, other in zip(found, wanted, strict=True))


def test_hidden_states_and_vectors_are_those_of_transformers_in_any_batch(case: Case) -> None:
    checkpoint = CausalCheckpoint(case.folder)
    weights = load_weights(checkpoint)
    definition = [reference_states(checkpoint.spec, weights, text.tolist()) for text in case.texts]
    assert distance(definition, case.hidden) < TOLERANCE
    sizes, texts, _ = plan_causal(checkpoint, SETTINGS, 1 << 40)
    runner = CausalRunner(checkpoint, sizes, texts)
    together = runner.forward([Text(text) for text in case.texts])
    assert distance(together, case.hidden) < TOLERANCE
    for text, found in zip(case.texts, together, strict=True):
        assert np.array_equal(runner.forward([Text(text)])[0], found)
    backwards = runner.forward([Text(text) for text in case.texts[::-1]])[::-1]
    assert all(np.array_equal(one, other) for one, other in zip(backwards, together, strict=True))
    runner.close()
    for found, wanted in zip(together, case.hidden, strict=True):
        vector, last = apply_head(checkpoint.head(), found), wanted[-1] / np.linalg.norm(wanted[-1])
        assert 1 - float(vector @ last) < 1e-5
        if len(wanted) > 1:
            assert 1 - float(vector @ wanted[0]) / float(np.linalg.norm(wanted[0])) > 1e-3


Planted = Callable[[ModelSpec, DecoderWeights], tuple[ModelSpec, DecoderWeights]]
PLANTED: dict[str, Planted] = {
    "no last norm's gain": lambda spec, weights: (
        spec, replace(weights, final_norm=replace(weights.final_norm, gain=np.ones(96, np.float32)))
    ),
    "another rotary base": lambda spec, weights: (
        replace(spec, layers=(LayerSpec(rope=RopeSpec(theta=9e3)),) * len(spec.layers)), weights
    ),
}  # fmt: skip


@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_error_shows(case: Case, plant: str) -> None:
    checkpoint = CausalCheckpoint(case.folder)
    spec, weights = PLANTED[plant](checkpoint.spec, load_weights(checkpoint))
    found = [reference_states(spec, weights, text.tolist()) for text in case.texts]
    assert distance(found, case.hidden) > 3 * TOLERANCE


def test_what_a_front_and_a_planner_learn_of_it(case: Case) -> None:
    assert makes_vectors(case.folder)
    assert not holds_encoder(case.folder)
    checkpoint = open_vector_checkpoint(case.folder)
    pooling = pooling_of(checkpoint)
    assert (pooling.task, pooling.size, pooling.pooling, pooling.normalised) == ("embed", 96, "lasttoken", True)
    length, memory = plan_vectors(checkpoint, SETTINGS, 1 << 40)
    assert (length, memory.sequences_at_full_length) == (300, 8)
    assert memory.kv_bytes == (300 // 64 + 8) * 64 * 3 * 2 * 2 * 32 * 4  # blocks, tokens, layers, kv heads, padded


def test_a_model_without_its_lm_head_does_not_generate(tmp_path: Path) -> None:
    case = Case("Mistral", tmp_path)
    (case.folder / "modules.json").unlink()
    assert not makes_vectors(case.folder)
    from triolet.models.checkpoint.open import open_checkpoint

    with pytest.raises(UnsupportedModel, match="MistralModel"):
        open_checkpoint(case.folder)
