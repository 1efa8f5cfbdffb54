"""config.json to ModelSpec: families as transformers writes them; what we do not implement is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from triolet.models.checkpoint.rope import RopeSpec
from triolet.models.checkpoint.spec import FAMILIES, load_spec, spec_from_config
from triolet.models.errors import CheckpointError, UnsupportedModel

Options = dict[str, Any]  # a config.json

BASE: Options = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
YARN: Options = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LLAMA3: Options = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


def config(family: str, **options: object) -> Options:
    architecture = next(name for name, (model_type, _) in FAMILIES.items() if model_type == family)
    return {**BASE, "architectures": [architecture], "model_type": family, **options}


def test_llama() -> None:
    spec = spec_from_config(config("llama", tie_word_embeddings=True, rope_theta=5e5))
    assert (spec.family, spec.hidden_size, spec.mlp_size, spec.num_layers) == ("llama", 64, 96, 3)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.max_position) == (4, 2, 16, 512)
    assert spec.rope == RopeSpec(theta=5e5)
    assert spec.tied_embeddings
    assert not spec.qkv_bias
    assert spec_from_config(config("llama", attention_bias=True)).qkv_bias
    assert spec_from_config(config("llama", num_key_value_heads=None)).num_kv_heads == 4
    assert spec_from_config({**config("llama"), "architectures": None}).family == "llama"


def test_parameters_are_counted() -> None:
    """Every matrix of the config, written out."""
    layer = 64 * 64 * 2 + 2 * 64 * 32 + 3 * 64 * 96 + 2 * 64
    assert spec_from_config(config("llama")).parameters == 2 * 100 * 64 + 3 * layer + 64
    assert spec_from_config(config("llama", tie_word_embeddings=True)).parameters == 100 * 64 + 3 * layer + 64
    assert spec_from_config(config("qwen2")).parameters == 2 * 100 * 64 + 3 * (layer + 64 + 2 * 32) + 64
    layer += 64 * 64 * 2 + 2 * 64 * 32 + 2 * 32  # heads of 32, and their norms
    assert spec_from_config(config("qwen3", head_dim=32)).parameters == 2 * 100 * 64 + 3 * layer + 64


def test_windows() -> None:
    assert spec_from_config(config("mistral", sliding_window=77)).sliding_window == 77
    assert spec_from_config(config("mistral", sliding_window=None)).sliding_window is None
    assert spec_from_config(config("mistral")).sliding_window == 4096  # transformers' default
    qwen = {"sliding_window": 77, "use_sliding_window": True}
    assert spec_from_config(config("qwen2", sliding_window=77, use_sliding_window=False)).sliding_window is None
    assert spec_from_config(config("qwen2", **qwen, max_window_layers=0)).sliding_window == 77
    assert spec_from_config(config("qwen2", **qwen, max_window_layers=3)).sliding_window is None
    assert spec_from_config(config("qwen3", **qwen, layer_types=["sliding_attention"] * 3)).sliding_window == 77
    assert spec_from_config(config("qwen3", **qwen, layer_types=["full_attention"] * 3)).sliding_window is None


def test_qwen3() -> None:
    spec = spec_from_config(config("qwen3"))
    assert spec.head_dim == 128
    assert spec.qk_norm


@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_scaling with type", "rope_parameters"])
def test_rope_spellings(spelling: str) -> None:
    scaling = {"factor": 2.0}
    match spelling:
        case "rope_scaling":
            options = {"rope_theta": 2e4, "rope_scaling": {"rope_type": "linear", **scaling}}
        case "rope_scaling with type":
            options = {"rope_theta": 2e4, "rope_scaling": {"type": "linear", **scaling}}
        case _:
            options = {"rope_parameters": {"rope_type": "linear", "rope_theta": 2e4, **scaling}}
    assert spec_from_config(config("llama", **options)).rope == RopeSpec(theta=2e4, kind="linear", factor=2.0)


def test_yarn_and_llama3() -> None:
    spec = spec_from_config(config("qwen2", max_position_embeddings=128, rope_scaling=YARN))
    assert spec.max_position == 512  # 4 times the original length
    assert abs(spec.rope.attention_factor - 1.1386294) < 1e-6  # 0.1 ln 4 + 1
    given = spec_from_config(config("qwen2", rope_scaling={**YARN, "attention_factor": 1.5}))
    assert given.rope.attention_factor == 1.5
    weighted = spec_from_config(config("qwen2", rope_scaling={**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}))
    assert abs(weighted.rope.attention_factor - 1.1386294 / 1.0693147) < 1e-6
    implied = spec_from_config(config("qwen2", rope_scaling={**YARN, "factor": None}))
    assert implied.rope.factor == 4.0
    llama3 = spec_from_config(config("llama", rope_scaling=LLAMA3))
    assert (llama3.rope.factor, llama3.rope.original_max_position, llama3.max_position) == (8.0, 128, 512)


REFUSED: list[tuple[str, Options, str]] = [
    ("llama", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
    ("llama", {"mlp_bias": True}, "mlp_bias = True"),
    ("llama", {"pretraining_tp": 2}, "pretraining_tp = 2"),
    ("llama", {"sliding_window": 64}, "sliding_window = 64"),
    ("llama", {"layer_types": ["full_attention", "chunked_attention"]}, "layer_types = "),
    ("llama", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config = "),
    ("llama", {"auto_map": {"AutoModel": "evil.Model"}}, "auto_map = "),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
    ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, r"rope_scaling.rope_type = 'dynamic'"),
    ("llama", {"rope_scaling": {"type": "longrope"}}, r"rope_scaling.type = 'longrope'"),
    ("llama", {"rope_parameters": {"rope_type": "su"}}, r"rope_parameters.rope_type = 'su'"),
    ("llama", {"rope_parameters": {"rope_type": "default", "factor": 2.0}}, "rope_parameters.factor = 2.0"),
    ("llama", {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "rope_parameters.full_attention = "),
    ("qwen2", {"rope_scaling": {**YARN, "mrope_section": [1]}}, "rope_scaling.mrope_section"),
    ("llama", {"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0"),
    ("llama", {"num_local_experts": 8}, "num_local_experts = 8"),
    ("mistral", {"attention_bias": True}, "attention_bias = True"),
    ("qwen2", {"attention_bias": False}, "attention_bias = False"),
    ("qwen2", {"use_sliding_window": True, "max_window_layers": 1}, "max_window_layers = 1"),
    (
        "qwen3",
        {"use_sliding_window": True, "layer_types": ["full_attention", "full_attention", "sliding_attention"]},
        "layer_types = .*mixture",
    ),
    ("llama", {"head_dim": 15}, "head_dim = 15"),
    ("llama", {"architectures": ["GPT2LMHeadModel"]}, "architectures = .*expected one of LlamaForCausalLM"),
    ("llama", {"architectures": ["LlamaForCausalLM", "MistralForCausalLM"]}, "architectures = "),
    ("llama", {"model_type": "gemma"}, "model_type = 'gemma'"),
]


@pytest.mark.parametrize(("family", "options", "message"), REFUSED)
def test_unsupported_settings_are_refused(family: str, options: Options, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        spec_from_config(config(family, **options))


INVALID: list[tuple[str, Options, str]] = [
    ("llama", {"vocab_size": None}, "vocab_size = None: expected an integer"),
    ("llama", {"hidden_size": -1}, "hidden_size = -1"),
    ("llama", {"hidden_size": 64.0}, "hidden_size = 64.0"),
    ("llama", {"num_hidden_layers": True}, "num_hidden_layers = True"),
    ("llama", {"num_hidden_layers": 2**31}, "num_hidden_layers = "),
    ("llama", {"num_key_value_heads": 3}, "num_key_value_heads = 3: must divide"),
    ("llama", {"hidden_size": 66}, "head_dim = None: needed"),
    ("llama", {"rms_norm_eps": 0}, "rms_norm_eps = 0"),
    ("llama", {"rms_norm_eps": "small"}, "rms_norm_eps = 'small'"),
    ("llama", {"tie_word_embeddings": "yes"}, "tie_word_embeddings = 'yes'"),
    ("llama", {"rope_theta": 1.0}, "rope_theta = 1.0"),
    ("llama", {"rope_scaling": [1]}, "rope_scaling = "),
    ("llama", {"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor = None"),
    ("llama", {"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor = 1.0"),
    ("llama", {"rope_scaling": {"type": "linear", "rope_type": "yarn"}}, "rope_scaling.type = 'linear'"),
    ("llama", {"rope_scaling": LLAMA3, "rope_parameters": YARN}, "rope_scaling = .*differs"),
    ("mistral", {"sliding_window": 8, "layer_types": ["full_attention"] * 3}, "layer_types = .*contradicts"),
    ("qwen3", {"layer_types": ["sliding_attention"] * 3}, "layer_types = .*needs use_sliding_window"),
    ("qwen3", {"layer_types": ["full_attention"]}, "layer_types = .*expected 3 times"),
    ("llama", {"architectures": "LlamaForCausalLM"}, "architectures = "),
]


@pytest.mark.parametrize(("family", "options", "message"), INVALID)
def test_nonsense_is_refused(family: str, options: Options, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        spec_from_config(config(family, **options))
    assert caught.value.code == "invalid_checkpoint"


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_transformers_own_defaults_load(family: str, tmp_path: Path) -> None:
    """A config as transformers writes it, with none of our choices in it."""
    import transformers

    theirs = getattr(transformers, f"{family}Config")()
    theirs.architectures = [f"{family}ForCausalLM"]
    theirs.save_pretrained(tmp_path)
    spec = load_spec(tmp_path)
    assert (spec.hidden_size, spec.num_heads) == (theirs.hidden_size, theirs.num_attention_heads)
    assert (spec.num_kv_heads, spec.head_dim) == (theirs.num_key_value_heads, getattr(theirs, "head_dim", 128))
    assert spec.sliding_window == theirs.sliding_window if family == "Mistral" else spec.sliding_window is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a valid JSON object"),
        ("[1]", "not a valid JSON object"),
        ('{"a": NaN}', "NaN"),
        ('{"vocab_size": 1, "vocab_size": 2}', "duplicate key"),
        ("[" * 100_000, "not a valid JSON object"),
        ('{"a": ' + "1" * 5000 + "}", "not a valid JSON object"),
        ("\xff", "not a valid JSON object"),
        (json.dumps({"a": "x" * (5 << 20)}), "larger than"),
    ],
)
def test_hostile_json(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=message) as caught:
        load_spec(tmp_path)
    assert len(str(caught.value)) < 1000
