"""The CPU runner on weights as they are stored: mixed layouts, a tied embedding of codes, and what its plan says."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest
from msgspec import structs

from triolet.kernels.embedding.cpu import FLOAT32_TABLE
from triolet.loadtest.device.random_stored import LAYOUTS, Held, held
from triolet.models.checkpoint.families.families import spec_from_config
from triolet.models.checkpoint.gguf.checkpoint import GgufCheckpoint
from triolet.models.checkpoint.safetensors import WeightArray
from triolet.models.checkpoint.spec import ModelSpec
from triolet.models.checkpoint.weights import DecoderWeights, load_weights, make_weights
from triolet.models.cpu.cpu import CpuRunner
from triolet.models.cpu.load import described_dtype, plan_on_cpu
from triolet.models.cpu.memory import CpuSizes, make_shape
from triolet.models.cpu.rows import Batch
from triolet.models.cpu.weights import MeasuredWeights
from triolet.models.reference.decoder import reference_logits
from triolet.protocol.settings import EngineSettings

from ..checkpoint.gguf.cases import converted, metadata_of
from ..checkpoint.gguf.written import Tensor, plain, write_gguf
from ..checkpoint.test_fused import mxfp4, write

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 200, "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "eos_token_id": 3,
}  # fmt: skip
# Every expert takes part, so that no choice hangs on a rounding. An output layer of 16 bits, as in gpt-oss.
MIXTURES: dict[str, dict[str, object]] = {
    "qwen3_moe": {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 3, "moe_intermediate_size": 256},
    "gpt_oss": {"architectures": ["GptOssForCausalLM"], "num_local_experts": 3},
}
PLAIN = ("mlp.gate.weight", "router.weight")
LAYOUT_OF = {
    "embed_tokens": "Q6_K", "q_proj": "Q4_K", "k_proj": "Q4_1", "v_proj": "Q6_K", "o_proj": "AWQ", "gate_proj": "Q8_0",
    "up_proj": "Q4_0", "down_proj": "Q4_K", "lm_head": "Q8_0",
}  # fmt: skip
TOKENS = np.array([5, 199, 0, 17, 44, 3], np.int32)
SIZES = CpuSizes(
    weight_format="stored", max_step_tokens=16, max_logit_rows=16, max_model_len=128, threads=2, num_blocks=4
)


def spec(**options: object) -> ModelSpec:
    return spec_from_config({**CONFIG, **options})


def weights(
    model: ModelSpec, *, widened: bool = False, wrong: str = "", embedding: str = LAYOUT_OF["embed_tokens"]
) -> DecoderWeights:
    """Random codes; `widened`: their float32. The matrix with `wrong` in its name has its minima left out."""

    def take(name: str, *shape: int) -> WeightArray:
        if len(shape) == 1:
            return np.random.default_rng(len(name)).uniform(0.5, 1.5, shape).astype(np.float32)
        if name.endswith(PLAIN):
            return np.random.default_rng(7).standard_normal(shape, dtype=np.float32) / np.float32(16)
        kind = next(layout for part, layout in {**LAYOUT_OF, "embed_tokens": embedding}.items() if part in name)
        size = 0.001 if LAYOUTS[kind].scales == "two-level" else 0.02
        matrix = held(LAYOUTS[kind], shape[0], shape[1], seed=sum(name.encode()), size=size)
        if wrong and wrong in name:
            found = matrix.codes(0, shape[0])
            assert found.minima is not None
            matrix = Held(matrix.layout, found._replace(minima=np.zeros_like(found.minima)))
        return matrix.rows(0, shape[0]) if widened else cast("WeightArray", matrix)

    return make_weights(model, take)


def logits(model: ModelSpec, given: DecoderWeights, tokens: npt.NDArray[np.int32] = TOKENS) -> npt.NDArray[np.float32]:
    runner = CpuRunner(model, given, SIZES)
    count = len(tokens)
    positions = np.arange(count, dtype=np.int32)
    tables = np.arange(4, dtype=np.int32)[None, : SIZES.table_width]
    starts = np.array([0, count], np.int32)
    batch = Batch(tokens=tokens, positions=positions, starts=starts, block_tables=tables, logit_rows=positions)
    found = runner.forward(batch).copy()
    runner.close()
    return found


def distance(one: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


@pytest.mark.parametrize(("tied", "embedding"), [(True, "Q6_K"), (False, "Q6_K"), (True, "MXFP4")])
def test_codes_of_all_layouts_give_the_decoders_logits(tied: bool, embedding: str) -> None:
    """Against float32, activations of 8 bits differ by some percent. Against the same weights in 16 bits, less."""
    model = spec(tie_word_embeddings=tied)
    widened = weights(model, widened=True, embedding=embedding)
    found, by_16_bits = logits(model, weights(model, embedding=embedding)), logits(model, widened)
    assert distance(found, reference_logits(model, widened, TOKENS.tolist())) < 0.08
    assert distance(found, by_16_bits) < 0.03
    for wrong in ("k_proj", "o_proj", "down_proj"):
        assert distance(logits(model, weights(model, wrong=wrong, embedding=embedding)), by_16_bits) > 0.05


@pytest.mark.parametrize("family", MIXTURES)
def test_experts_run_as_they_are_stored(family: str) -> None:
    model = spec(model_type=family, num_experts_per_tok=3, **MIXTURES[family])
    widened = weights(model, widened=True)
    found, by_16_bits = logits(model, weights(model)), logits(model, widened)
    assert distance(found, reference_logits(model, widened, TOKENS.tolist())) < 0.08
    error = distance(found, by_16_bits)
    assert error < 0.03
    for expert in (1, 2):
        wrong = logits(model, weights(model, wrong=f"experts.{expert}.down_proj"))
        assert distance(wrong, by_16_bits) > 4 * error


def test_a_folder_in_mxfp4_runs_as_planned(tmp_path: Path) -> None:
    """Its experts as they are; the rest, in float16, as 16-bit integers."""
    tensors = {name: array % 4 + 120 if "scales" in name else array for name, array in mxfp4().items()}
    checkpoint = write(tmp_path / "model", tensors, num_experts_per_tok=4)
    model, given = checkpoint.spec, load_weights(checkpoint)
    sizes, _ = plan_on_cpu(checkpoint, EngineSettings(model="model"), 1 << 30)
    assert sizes.weight_format == "stored"
    assert sizes.stored_bytes == MeasuredWeights(model, make_shape(model, sizes, FLOAT32_TABLE), given).bytes
    tokens = (TOKENS % model.vocab_size).astype(np.int32)
    expected = reference_logits(model, given, tokens.tolist())
    assert distance(logits(model, given, tokens), expected) < 0.03
    sparse = given.layers[0].experts
    assert sparse is not None
    experts = (sparse.experts[1], sparse.experts[0], *sparse.experts[2:])
    swapped = structs.replace(given.layers[0], experts=structs.replace(sparse, experts=experts))
    wrong = logits(model, structs.replace(given, layers=(swapped,)), tokens)
    assert distance(wrong, expected) > 0.05


@pytest.mark.parametrize("family", ["mixtral", "olmoe", "qwen2moe", "qwen3moe"])
def test_mixtures_in_gguf_run_as_they_are_stored(tmp_path: Path, family: str) -> None:
    """One tensor has the codes of all experts. Every expert takes part; those of another order are noticed."""
    rng, tensors = np.random.default_rng(0), dict[str, Tensor]()
    for pattern, shape in converted()[family]["tensors"].items():
        for layer in (0, 1) if "*" in pattern else (0,):
            name = pattern.replace("*", str(layer))
            if len(shape) == 3:
                tensors[name] = q8_0(rng, tuple(shape))
                continue
            values: npt.NDArray[np.float64] = rng.standard_normal(tuple(shape)) / 10
            if len(shape) == 1:
                values[:] = "norm" in name
            tensors[name] = plain(values.astype(np.float32))
    metadata = metadata_of(family)
    prefix = str(metadata["general.architecture"])
    metadata[f"{prefix}.expert_used_count"] = metadata[f"{prefix}.expert_count"]
    file = GgufCheckpoint(write_gguf(tmp_path / "m.gguf", metadata, tensors))
    sizes, _ = plan_on_cpu(file, EngineSettings(model="m", threads=1), 1 << 30)
    assert described_dtype(file, sizes.weight_format) == "GGUF Q8_0 as stored, other matrices in 16 bits"
    tokens = (TOKENS % file.spec.vocab_size).astype(np.int32)
    given = load_weights(file)
    expected = reference_logits(file.spec, given, tokens.tolist())
    assert distance(logits(file.spec, given, tokens), expected) < 0.04
    tensors["blk.1.ffn_up_exps.weight"] = tensors["blk.0.ffn_up_exps.weight"]
    wrong = load_weights(GgufCheckpoint(write_gguf(tmp_path / "wrong.gguf", metadata, tensors)))
    assert distance(logits(file.spec, wrong, tokens), expected) > 0.06


def q8_0(rng: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // 32, 34)).astype(np.uint8)
    blocks[..., :2] = rng.uniform(1e-3, 3e-3, (*blocks.shape[:-1], 1)).astype(np.float16).view(np.uint8)
    return Tensor("Q8_0", shape, blocks.tobytes())
