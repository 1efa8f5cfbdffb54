"""DeepSeek's config.json and checkpoints: what is read as what, what is refused, the sizes of published models."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy

from triolet.models.checkpoint.adapter import load_adapter
from triolet.models.checkpoint.families.families import spec_from_config
from triolet.models.checkpoint.latent import LatentSpec
from triolet.models.checkpoint.open import open_checkpoint
from triolet.models.checkpoint.spec import ModelSpec
from triolet.models.checkpoint.stored import StoredMatrix, same_values
from triolet.models.checkpoint.weights import DecoderWeights, load_weights
from triolet.models.cpu.cpu import CpuRunner
from triolet.models.cpu.load import plan_on_cpu
from triolet.models.cpu.memory import CpuSizes
from triolet.models.cpu.rows import Batch
from triolet.models.errors import CheckpointError, UnsupportedDevice, UnsupportedModel
from triolet.protocol.settings import EngineSettings

from ..parity_cases import ParityCase, make_case

Options = dict[str, Any]  # a config.json
YARN: Options = {
    "type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 4096,
}  # fmt: skip
LITE: Options = {  # DeepSeek-V2-Lite as published
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "auto_map": {"AutoConfig": "code"},
    "attention_bias": False, "aux_loss_alpha": 0.001, "first_k_dense_replace": 1, "hidden_act": "silu",
    "hidden_size": 2048, "intermediate_size": 10944, "kv_lora_rank": 512, "max_position_embeddings": 163840,
    "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2,
    "norm_topk_prob": False, "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27,
    "num_key_value_heads": 16, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "rope_scaling": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}, "rope_theta": 10000,
    "routed_scaling_factor": 1.0, "scoring_func": "softmax", "topk_group": 1, "topk_method": "greedy",
    "v_head_dim": 128, "vocab_size": 102400,
}  # fmt: skip
V3: Options = {  # DeepSeek-V3
    **LITE, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "first_k_dense_replace": 3,
    "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_group": 8, "topk_group": 4,
    "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 128,
    "num_key_value_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536, "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}, "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "vocab_size": 129280,
}  # fmt: skip


def test_published_models() -> None:
    """Sizes as the authors give them: 15.7 billion parameters of which 2.4 are used, and 671 of which 37 are."""
    lite, v3 = spec_from_config(LITE), spec_from_config(V3)
    assert lite.latent == LatentSpec(kv_rank=512, query_rank=None, plain_dim=128, rope_dim=64, value_dim=128)
    assert (lite.head_dim, lite.num_kv_heads, lite.max_position) == (576, 1, 163840)
    assert abs(lite.score_scale - 192**-0.5 * (0.0707 * np.log(40) + 1) ** 2) < 1e-9
    assert lite.layers[0].rope == lite.layers[26].rope
    assert lite.layers[0].rope is not None
    assert lite.layers[0].rope.attention_factor == 1.0
    assert [layer.experts for layer in lite.layers] == [False] + [True] * 26
    assert lite.parameters == 15_706_484_224
    assert 2.6e9 < lite.active_parameters < 2.7e9  # the authors leave out the input embedding
    assert v3.latent is not None
    assert (v3.latent.query_rank, v3.unused_layers) == (1536, 1)
    assert v3.experts is not None
    assert (v3.experts.routing.scores, v3.experts.routing.group_best, v3.experts.corrected) == ("sigmoid", 2, True)
    assert 671.0e9 < v3.parameters < 671.1e9
    assert 37.5e9 < v3.active_parameters < 38.6e9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({**LITE, "norm_topk_prob": True}, "norm_topk_prob = True"),
        ({**LITE, "topk_method": "noaux_tc"}, "topk_method = 'noaux_tc'"),
        ({**LITE, "scoring_func": "sigmoid"}, "scoring_func = 'sigmoid'"),
        ({**LITE, "moe_layer_freq": 2}, "moe_layer_freq = 2"),
        ({**LITE, "attention_bias": True}, "attention_bias = True"),
        ({**LITE, "num_key_value_heads": 4}, "num_key_value_heads = 4"),
        ({**LITE, "qk_rope_head_dim": 63}, "qk_rope_head_dim = 63"),
        ({**LITE, "sliding_window": 64}, "sliding_window = 64"),
        ({**LITE, "topk_method": "group_limited_greedy", "n_group": 7}, "n_group = 7"),
        ({**V3, "topk_group": 9}, "topk_group = 9"),
        ({**V3, "topk_group": 1, "num_experts_per_tok": 33}, "topk_group = 1"),
        ({**V3, "n_group": 256}, "n_group = 256"),
        ({**V3, "scoring_func": "softmax"}, "scoring_func = 'softmax'"),
        ({**V3, "topk_method": "greedy"}, "topk_method = 'greedy'"),
        ({**V3, "rope_scaling": {**YARN, "llama_4_scaling_beta": 0.1}}, "rope_scaling = .*llama_4_scaling_beta"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_settings_that_no_model_has_are_refused(options: Options, message: str) -> None:
    with pytest.raises((CheckpointError, UnsupportedModel), match=message):
        spec_from_config(options)


def test_adapters_do_not_have_it_yet() -> None:
    spec = spec_from_config(LITE)
    with pytest.raises(UnsupportedModel, match="adapter = 'tuned': deepseek_v2 models"):
        load_adapter(Path("tuned"), spec)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> ParityCase:
    return make_case("deepseek-v3", 1, tmp_path_factory.mktemp("deepseek"), (3,))


def test_layers_for_further_tokens_stay_in_the_file(case: ParityCase, tmp_path: Path) -> None:
    """Those right behind the last, as many as the config says; others are left over."""
    tensors, layers = safetensors.numpy.load_file(case.folder / "model.safetensors"), open_checkpoint(case.folder).spec
    (tmp_path / "config.json").write_bytes((case.folder / "config.json").read_bytes())
    for behind, fits in ((0, True), (1, False)):
        name = f"model.layers.{layers.num_layers + behind}.eh_proj.weight"
        safetensors.numpy.save_file({**tensors, name: np.ones((2, 2), np.float32)}, tmp_path / "model.safetensors")
        if fits:
            load_weights(open_checkpoint(tmp_path))
            continue
        with pytest.raises(CheckpointError, match=f"{name} = .*left over"):
            load_weights(open_checkpoint(tmp_path))


def test_no_int8_cache(case: ParityCase) -> None:
    settings = EngineSettings(model=str(case.folder), kv_cache_dtype="int8")
    with pytest.raises(UnsupportedDevice, match="--kv-cache-dtype int8: not for the latent vectors of deepseek_v3"):
        plan_on_cpu(open_checkpoint(case.folder), settings, 1 << 34)


def test_weights_in_fp8_are_those_numbers(case: ParityCase, tmp_path: Path) -> None:
    """As DeepSeek-V3 is published: E4M3 with a scale for each block, of all matrices but embeddings and routers."""
    import torch
    from safetensors import torch as files

    height, width = 16, 12  # rows and columns of a block; some blocks are cut off
    tensors, plain = dict[str, Any](), dict[str, Any]()
    for name, array in safetensors.numpy.load_file(case.folder / "model.safetensors").items():
        weight = torch.from_numpy(array)
        tensors[name] = plain[name] = weight
        if weight.ndim < 2 or name.endswith(("embed_tokens.weight", "lm_head.weight", "mlp.gate.weight")):
            continue
        scales = torch.rand(-(-weight.shape[0] // height), -(-weight.shape[1] // width)) + 0.5
        spread = scales.repeat_interleave(height, 0).repeat_interleave(width, 1)[: weight.shape[0], : weight.shape[1]]
        tensors[name] = (weight / spread).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale_inv"] = scales
        plain[name] = tensors[name].float() * spread
    config = json.loads((case.folder / "config.json").read_text())
    method = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
    found = list[DecoderWeights]()
    for folder, saved, more in (
        (tmp_path / "fp8", tensors, {"quantization_config": {**method, "weight_block_size": [height, width]}}),
        (tmp_path / "plain", plain, {}),
    ):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({**config, **more}))
        files.save_file(saved, folder / "model.safetensors")
        found.append(load_weights(open_checkpoint(folder)))
    for quantised, wanted in zip(found[0].layers, found[1].layers, strict=True):
        assert quantised.latent is not None
        assert wanted.latent is not None
        assert isinstance(quantised.latent.up, StoredMatrix)
        for name in ("query", "query_down", "down", "up"):
            assert same_values(getattr(quantised.latent, name), getattr(wanted.latent, name)), name
        assert same_values(quantised.o, wanted.o)
    fp8, exact = (first_logits(open_checkpoint(case.folder).spec, weights) for weights in found)
    np.testing.assert_array_equal(fp8, exact)


def first_logits(spec: ModelSpec, weights: DecoderWeights) -> npt.NDArray[np.float32]:
    """Of a few tokens, by the runner: its packing reads a stored matrix by its rows."""
    sizes = CpuSizes(weight_format="float32", max_step_tokens=4, max_logit_rows=4, max_model_len=64)
    runner, four = CpuRunner(spec, weights, sizes), np.arange(4, dtype=np.int32)
    starts, table = np.array([0, 4], np.int32), np.zeros((1, 1), np.int32)
    batch = Batch(tokens=four + 1, positions=four, starts=starts, block_tables=table, logit_rows=four)
    logits = runner.forward(batch).copy()
    runner.close()
    return logits
