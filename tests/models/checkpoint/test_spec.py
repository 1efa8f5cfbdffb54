"""config.json to ModelSpec: families as transformers writes them; what we do not implement is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from triolet.models.checkpoint.families.families import FAMILIES, load_spec, spec_from_config
from triolet.models.checkpoint.rope import RopeSpec
from triolet.models.checkpoint.spec import ModelSpec, alike
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
    assert spec.layers == alike(3, RopeSpec(theta=5e5))
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


def windows(spec: ModelSpec) -> list[int | None]:
    return [layer.window for layer in spec.layers]


def test_windows() -> None:
    assert windows(spec_from_config(config("mistral", sliding_window=77))) == [77] * 3
    assert windows(spec_from_config(config("mistral", sliding_window=None))) == [None] * 3
    assert windows(spec_from_config(config("mistral"))) == [4096] * 3  # transformers' default
    qwen = {"sliding_window": 77, "use_sliding_window": True}
    off = config("qwen2", sliding_window=77, use_sliding_window=False)
    assert windows(spec_from_config(off)) == [None] * 3
    for first, expected in ((0, [77] * 3), (1, [None, 77, 77]), (3, [None] * 3), (None, [None] * 3)):
        assert windows(spec_from_config(config("qwen2", **qwen, max_window_layers=first))) == expected
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    assert windows(spec_from_config(config("qwen3", **qwen, layer_types=kinds))) == [77, None, 77]
    assert windows(spec_from_config(config("qwen3", **qwen, layer_types=["full_attention"] * 3))) == [None] * 3


def test_gpt_oss() -> None:
    """The numbers of the 20B model where its config.json leaves them to transformers."""
    spec = spec_from_config(config("gpt_oss"))
    assert windows(spec) == [128, None, 128]
    rope = spec.layers[0].rope
    assert rope is not None
    assert (rope.kind, rope.factor, rope.theta, rope.original_max_position) == ("yarn", 32.0, 1.5e5, 4096)
    assert not rope.truncate
    assert spec.max_position == 131_072
    assert spec.sinks
    assert spec.experts is not None
    assert (spec.experts.gate_limit, spec.experts.gate_slope, spec.experts.up_offset) == (7.0, 1.702, 1.0)
    old = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}
    assert spec_from_config(config("gpt_oss", rope_scaling=old, rope_theta=150_000)).layers == spec.layers
    assert spec_from_config(config("gpt_oss", rope_scaling={**old, "truncate": True})).layers != spec.layers


def test_qwen3() -> None:
    spec = spec_from_config(config("qwen3"))
    assert spec.head_dim == 128
    assert spec.qk_norm == "head"


def rope_of(options: Options) -> RopeSpec:
    (rope,) = {layer.rope for layer in spec_from_config(options).layers}
    assert rope is not None
    return rope


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
    assert rope_of(config("llama", **options)) == RopeSpec(theta=2e4, kind="linear", factor=2.0)


def test_yarn_and_llama3() -> None:
    yarn = config("qwen2", max_position_embeddings=128, rope_scaling=YARN)
    assert spec_from_config(yarn).max_position == 512  # 4 times the original length
    assert abs(rope_of(yarn).attention_factor - 1.1386294) < 1e-6  # 0.1 ln 4 + 1
    assert rope_of(config("qwen2", rope_scaling={**YARN, "attention_factor": 1.5})).attention_factor == 1.5
    weighted = rope_of(config("qwen2", rope_scaling={**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}))
    assert abs(weighted.attention_factor - 1.1386294 / 1.0693147) < 1e-6
    assert rope_of(config("qwen2", rope_scaling={**YARN, "factor": None})).factor == 4.0
    llama3 = config("llama", rope_scaling=LLAMA3)
    assert (rope_of(llama3).factor, rope_of(llama3).original_max_position) == (8.0, 128)
    assert spec_from_config(llama3).max_position == 512


OTHERS = (
    "Arcee", "Cohere", "Cohere2", "Gemma", "Gemma2", "Gemma3Text", "Glm", "Glm4", "GptOss", "Granite", "Ministral",
    "Ministral3", "Nemotron", "Olmo2", "Olmo3", "Olmoe", "Phi3", "SmolLM3", "StableLm",
)  # fmt: skip
REFUSED: list[tuple[str, Options, str]] = [
    ("llama", {"hidden_act": "quick_gelu"}, "hidden_act = 'quick_gelu'"),
    ("qwen2", {"mlp_bias": True}, "mlp_bias = True"),
    ("llama", {"pretraining_tp": 2}, "pretraining_tp = 2"),
    ("llama", {"sliding_window": 64}, "sliding_window = 64"),
    ("llama", {"layer_types": ["full_attention", "chunked_attention"]}, "layer_types = "),
    ("llama", {"auto_map": {"AutoModel": "evil.Model"}}, "auto_map = "),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
    ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, r"rope_scaling.rope_type = 'dynamic'"),
    ("llama", {"rope_scaling": {"type": "su"}}, r"rope_scaling.type = 'su'"),
    ("llama", {"rope_parameters": {"rope_type": "su"}}, r"rope_parameters.rope_type = 'su'"),
    ("llama", {"rope_parameters": {"rope_type": "default", "factor": 2.0}}, "rope_parameters.factor = 2.0"),
    ("llama", {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "rope_parameters.full_attention = "),
    ("qwen2", {"rope_scaling": {**YARN, "mrope_section": [1]}}, "rope_scaling.mrope_section"),
    ("llama", {"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0"),
    ("llama", {"num_local_experts": 8}, "num_local_experts = 8"),
    ("mistral", {"attention_bias": True}, "attention_bias = True"),
    ("qwen2", {"attention_bias": False}, "attention_bias = False"),
    ("qwen2", {"layer_types": ["linear_attention"] * 3}, "layer_types = .*linear_attention is not supported"),
    ("llama", {"head_dim": 15}, "head_dim = 15"),
    ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
    ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
    ("glm", {"partial_rotary_factor": 0.55, "head_dim": 20}, "partial_rotary_factor = 0.55"),
    ("olmo2", {"clip_qkv": 8.0}, "clip_qkv = 8.0"),
    ("olmoe", {"clip_qkv": 8.0}, "clip_qkv = 8.0: olmoe models with this key are not supported"),
    ("gpt_oss", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
    ("phi3", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, r"rope_scaling.type = 'dynamic'"),
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
    ("qwen2", {"max_window_layers": -1}, "max_window_layers = -1"),
    ("qwen3", {"layer_types": ["full_attention"]}, "layer_types = .*expected 3 times"),
    ("llama", {"architectures": "LlamaForCausalLM"}, "architectures = "),
    ("gpt_oss", {"num_local_experts": 1 << 15}, r"experts = 98304: in all layers; at most 65536"),
    ("gpt_oss", {"num_local_experts": 3}, "num_experts_per_tok = None: there are 3 experts"),
    ("gpt_oss", {"swiglu_limit": -1.0}, "swiglu_limit = -1.0"),
    ("granite", {"residual_multiplier": 1e-320}, "residual_multiplier = 1e-320: .* of a size from 1e-30"),
    ("smollm3", {"no_rope_layers": [1, 2, 0]}, "no_rope_layers = .*expected 3 times 0 or 1"),
    (
        "phi3",
        {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0] * 8}},
        "short_factor = 1",
    ),
    ("phi3", {"rope_scaling": {"type": "longrope", "short_factor": [0.0], "long_factor": [1.0]}}, "short_factor"),
]


@pytest.mark.parametrize(("family", "options", "message"), INVALID)
def test_nonsense_is_refused(family: str, options: Options, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        spec_from_config(config(family, **options))
    assert caught.value.code == "invalid_checkpoint"


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3", *OTHERS])
def test_transformers_own_defaults_load(family: str, tmp_path: Path) -> None:
    """A config as transformers writes it, with none of our choices in it."""
    import transformers

    theirs = getattr(transformers, f"{family}Config")()
    theirs.architectures = [family.removesuffix("Text") + "ForCausalLM"]
    theirs.save_pretrained(tmp_path)
    spec = load_spec(tmp_path)
    assert (spec.hidden_size, spec.num_heads) == (theirs.hidden_size, theirs.num_attention_heads)
    head_dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    assert (spec.num_kv_heads, spec.head_dim) == (theirs.num_key_value_heads or spec.num_heads, head_dim)
    kinds = getattr(theirs, "layer_types", None) or ["sliding_attention"] * spec.num_layers
    window = getattr(theirs, "sliding_window", None)
    assert windows(spec) == [window if kind == "sliding_attention" else None for kind in kinds]
    assert spec.tied_embeddings == theirs.tie_word_embeddings
    eps = getattr(theirs, "layer_norm_eps", None) or getattr(theirs, "norm_eps", None)
    assert spec.norm_eps == (eps or theirs.rms_norm_eps)


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
