"""A file's metadata as a config.json of Hugging Face, which the families' own functions then read and check.

Every key of the model's architecture is understood or refused: none is passed over, except those that say nothing about
the arithmetic. Numbers that were written as float32 come back as the shortest decimal that means the same, 1e-06.
"""

from __future__ import annotations

from math import log

from ...errors import CheckpointError
from .architectures import KEYS, Architecture
from .deepseek import LOG_MULTIPLIER, deepseek_config, yarn_magnitudes
from .matrix import plain_weight
from .metadata import Value
from .parts import Gguf
from .settings import Settings

FACTORS, LONG_FACTORS, SHORT_FACTORS = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
ROPE_TENSORS = {FACTORS, LONG_FACTORS, SHORT_FACTORS}
# Keys that not every scaling has a use for: what they say if they say nothing, and the setting that has read them.
_MAGNITUDES = (("rope.scaling.attn_factor", 1, "attention_factor"), (LOG_MULTIPLIER, 0, "mscale"))


def config_of(file: Gguf) -> tuple[dict[str, object], Architecture]:
    """What config.json would say, and the table's row. Raises CheckpointError and UnsupportedModel, naming the key."""
    settings = Settings(file)
    settings.refuse_unknown()
    row = settings.architecture
    config: dict[str, object] = {"architectures": [row.name], "model_type": row.model_type, **row.constants}
    for key, name in {**KEYS, **row.keys}.items():
        if (value := settings.get(key)) is not None:
            if isinstance(value, list):
                raise settings.invalid(key, "a value of its own for each layer is not supported")
            config[name] = value
    if "token_embd.weight" not in file.tensors:
        raise CheckpointError("token_embd.weight", None, "this tensor is missing: it is no whole model")
    config["vocab_size"] = file.tensor("token_embd.weight").shape[0]
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    if "blk.0.attn_q.bias" in file.tensors or "blk.0.attn_qkv.bias" in file.tensors:
        config[row.bias_key] = True
    if row.qk_norm_key is not None:
        config[row.qk_norm_key] = "blk.0.attn_q_norm.weight" in file.tensors
    head_dim = settings.size("rope.dimension_count") if row.latent else _head_dim(settings)
    config["head_dim"] = head_dim
    if row.latent:
        config.update(deepseek_config(settings))
    if row.wide_queries is not None:
        wide = settings.size("block_count") == row.wide_queries
        heads = settings.size("attention.head_count")
        config["query_pre_attn_scalar"] = settings.size("embedding_length") // heads if wide else head_dim
    if row.window_pattern is not None and "sliding_window" in config:
        config["layer_types"] = _layer_types(settings, row.window_pattern)
    config.update(_rope(settings, file, head_dim))
    return config, row


def _head_dim(settings: Settings) -> int:
    heads, hidden = settings.size("attention.head_count"), settings.size("embedding_length")
    size = settings.size("attention.key_length", hidden // heads)
    if settings.size("attention.value_length", size) != size:
        raise settings.invalid("attention.value_length", f"keys and values of different sizes ({size} for keys)")
    return size


def _layer_types(settings: Settings, pattern: int) -> list[str]:
    """Which layers have the window. A file may say it for each, or as the length of the pattern."""
    layers = settings.size("block_count")
    said = settings.get("attention.sliding_window_pattern")
    if isinstance(said, int) and not isinstance(said, bool):
        pattern = said
    if pattern < 1 or layers >= 1 << 16:
        raise settings.invalid("attention.sliding_window_pattern", "expected a positive number, for a number of layers")
    windows: list[Value] = [index % pattern != pattern - 1 for index in range(layers)]
    if isinstance(said, list):
        windows = said
    elif isinstance(said, bool):
        windows = [said] * layers
    return ["sliding_attention" if window else "full_attention" for window in windows]


def _rope(settings: Settings, file: Gguf, head_dim: int) -> dict[str, object]:
    """The rotation. Llama 3's scaling and Phi's long rotation are tensors in the file: a divisor for each frequency."""
    row, theta = settings.architecture, settings.number("rope.freq_base", 10_000.0)
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": theta}
    config: dict[str, object] = {"rope_parameters": rope}
    rotary = settings.size("rope.dimension_count", head_dim)
    if rotary != head_dim:
        rope["partial_rotary_factor"] = config["partial_rotary_factor"] = rotary / head_dim
    kind, original = settings.get("rope.scaling.type"), settings.get("rope.scaling.original_context_length")
    factor = settings.get("rope.scaling.factor") or settings.get("rope.scale_linear")
    scaled = kind in ("linear", "yarn") or factor not in (None, 0, 1)
    if scaled and ROPE_TENSORS & file.tensors.keys():
        raise settings.invalid("rope.scaling.type", "a scaling beside tensors with factors is not supported")
    if LONG_FACTORS in file.tensors:
        rope |= {
            "rope_type": "longrope",
            "long_factor": _factors(file, LONG_FACTORS, rotary),
            "short_factor": _factors(file, SHORT_FACTORS, rotary),
            "attention_factor": settings.get("rope.scaling.attn_factor"),
        }
        config["original_max_position_embeddings"] = original
    elif FACTORS in file.tensors:
        rope |= {"rope_type": "factors", "factors": _factors(file, FACTORS, rotary)}
    elif kind == "yarn":
        if (growth := settings.number("rope.scaling.factor")) <= 0:
            raise settings.invalid("rope.scaling.factor", "expected a number greater than 0")
        rope |= {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
            "beta_fast": settings.get("rope.scaling.yarn_beta_fast"),
            "beta_slow": settings.get("rope.scaling.yarn_beta_slow"),
            "attention_factor": (0.1 * log(growth) + 1) * settings.number("rope.scaling.attn_factor", 1.0),
            "truncate": row.rounded_ramp,
        }
        if row.latent and (magnitudes := yarn_magnitudes(settings)) is not None:
            rope |= {**magnitudes, "attention_factor": None}
    elif kind == "linear" or (kind is None and factor not in (None, 0, 1)):
        rope |= {"rope_type": "linear", "factor": factor}
    elif kind not in (None, "none"):
        raise settings.invalid("rope.scaling.type", "expected none, linear or yarn, or tensors with factors")
    for key in [key for key, value in rope.items() if value is None]:
        del rope[key]
    for key, neutral, name in _MAGNITUDES:
        if name not in rope and settings.number(key, neutral) != neutral:
            raise settings.invalid(key, f"has no meaning beside this scaling, expected {neutral}")
    if row.local_theta is not None:
        local = {"rope_type": "default", "rope_theta": settings.number("rope.freq_base_swa", row.local_theta)}
        config["rope_parameters"] = {"full_attention": rope, "sliding_attention": local}
    elif settings.number("rope.freq_base_swa", theta) != theta:
        raise settings.invalid("rope.freq_base_swa", "another rotation in layers with a window is not supported")
    return config


def _factors(file: Gguf, name: str, rotary: int) -> list[float]:
    if name not in file.tensors:
        raise CheckpointError(name, None, "this tensor is missing")
    if (shape := file.tensor(name).shape) != (rotary // 2,):
        raise CheckpointError(name, shape, f"expected a number for each of {rotary // 2} frequencies")
    return [float(value) for value in plain_weight(name, file.tensor(name).type, file.read(name))]
