"""Rotary position embedding: its description in config.json, in all spellings of transformers, and its tables.

Old files say `rope_theta` and `rope_scaling` (with `type` or `rope_type`), new ones `rope_parameters` with the theta
inside. Supported kinds: default, linear, llama3, yarn, longrope, and factors (one per frequency, as GGUF files have
them). Others (`dynamic` depends on the length of the batch) are refused, and so is every key that we would otherwise
ignore.

longrope has factors for short and for long contexts. Keys in a cache cannot change their rotation when a sequence
grows, so a runner decides once, by the longest sequence that it will take.

Tables follow the "rotate half" convention of Hugging Face's Llama: dimensions j and j + head_dim / 2 of a head are pair
j, and
    q'[j] = q[j] cos - q[j + half] sin,    q'[j + half] = q[j + half] cos + q[j] sin.
"""

from math import ceil, floor, log, pi, sqrt
from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from ..errors import CheckpointError
from .config import Config

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.int64]
RopeKind = Literal["default", "linear", "llama3", "yarn", "longrope", "factors"]


class RopeSpec(Struct, frozen=True, kw_only=True):
    """Parameters of the rotation. Fields that a kind does not use keep their defaults."""

    theta: float = 10_000.0
    kind: RopeKind = "default"
    factor: float = 1.0
    original_max_position: int = 0  # llama3, yarn, longrope: the length before scaling
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float = 1.0  # yarn, longrope: multiplies cos and sin, resolved from mscale and factor
    truncate: bool = True  # yarn: round the ramp's ends to whole dimensions
    factors: tuple[float, ...] = ()  # factors: what the frequency of each pair is divided by
    short_factors: tuple[float, ...] = ()  # longrope: of each pair's wavelength, in contexts up to the original length
    long_factors: tuple[float, ...] = ()  # and in longer ones
    query_growth: float = 0.0  # queries at position p are multiplied by 1 + this * ln(1 + p // original_max_position)


LAYER_TYPES = ("full_attention", "sliding_attention")
KEYS = {"rope_theta", "rope_type", "type", "partial_rotary_factor"}
EXTRA_KEYS: dict[str, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    "factors": {"factors"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": {
        "factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale",
        "mscale_all_dim", "truncate", "llama_4_scaling_beta", "max_position_embeddings",
    },
    "longrope": {"factor", "original_max_position_embeddings", "attention_factor", "short_factor", "long_factor"},
}  # fmt: skip


def read_rope(config: Config, max_position: int) -> tuple[RopeSpec, int]:
    """The rotation and the context length, which yarn extends to factor * original length."""
    rope = _parameters(config)
    kind = _kind(rope)
    unknown = {key for key in rope.values if rope.has(key)} - KEYS - EXTRA_KEYS[kind]
    if unknown:
        raise rope.unsupported(min(unknown), f"this key is not supported for rope type {kind!r}")
    theta = rope.number("rope_theta", config.number("rope_theta", 10_000.0, above=1.0), above=1.0)
    if kind == "default":
        return RopeSpec(theta=theta), max_position
    if kind == "factors":
        return RopeSpec(theta=theta, kind="factors", factors=tuple(rope.numbers("factors"))), max_position
    original_key = "original_max_position_embeddings"
    original = config.size(original_key, rope.size(original_key, max_position))
    if kind == "linear":
        return RopeSpec(theta=theta, kind="linear", factor=rope.number("factor")), max_position
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        if high <= low:
            raise rope.invalid("high_freq_factor", f"must be greater than low_freq_factor = {low:g}")
        spec = RopeSpec(
            theta=theta,
            kind="llama3",
            factor=rope.number("factor"),
            original_max_position=original,
            low_freq_factor=low,
            high_freq_factor=high,
        )
        return spec, max_position
    factor = rope.number("factor", max_position / original)
    if kind == "longrope":
        if original < 2:
            raise CheckpointError(original_key, original, "expected a length of more than 1")
        default = 1.0 if factor <= 1 else sqrt(1 + log(factor) / log(original))  # LongRoPE, arXiv 2402.13753
        spec = RopeSpec(
            theta=theta,
            kind="longrope",
            factor=factor,
            original_max_position=original,
            attention_factor=rope.number("attention_factor", default),
            short_factors=tuple(rope.numbers("short_factor")),
            long_factors=tuple(rope.numbers("long_factor")),
        )
        return spec, max_position
    spec = RopeSpec(
        theta=theta,
        kind="yarn",
        factor=factor,
        original_max_position=original,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        attention_factor=rope.number("attention_factor", _yarn_attention_factor(rope, factor)),
        truncate=rope.flag("truncate", True),
        query_growth=rope.optional_number("llama_4_scaling_beta") or 0.0,
    )
    return spec, max(max_position, int(original * factor))


def read_rotary_dim(config: Config, head_dim: int) -> int | None:
    """The rotated dimensions of a head; None: all of them."""
    share = _parameters(config).number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    rotary = int(head_dim * share)
    if not 2 <= rotary <= head_dim or rotary % 2:
        raise config.unsupported(
            "partial_rotary_factor", f"{rotary} of {head_dim} dimensions; an even number is needed"
        )
    return None if rotary == head_dim else rotary


def by_layer_type(config: Config, full_theta: float, sliding_theta: float) -> tuple[Config, Config]:
    """The config as its full and as its sliding layers see it: `rope_parameters` may have an entry for each type.

    Otherwise theta and scaling are those of full attention, and the sliding layers turn plainly with their own theta.
    """
    rope = _parameters(config)
    if set(rope.values) & set(LAYER_TYPES):
        found = [rope.mapping(kind) or Config({}) for kind in LAYER_TYPES]
    else:
        theta = {"rope_theta": config.values["rope_theta"]} if config.has("rope_theta") else {}
        found = [Config({**theta, **rope.values}), Config({})]
    plain = {key: value for key, value in config.values.items() if key not in ("rope_scaling", "rope_theta")}
    full, sliding = (
        Config({**plain, "rope_parameters": {"rope_theta": theta, **own.values}})
        for theta, own in zip((full_theta, sliding_theta), found, strict=True)
    )
    return full, sliding


def _parameters(config: Config) -> Config:
    scaling, parameters = config.mapping("rope_scaling"), config.mapping("rope_parameters")
    if scaling is not None and parameters is not None and scaling.values != parameters.values:
        raise config.invalid("rope_scaling", "differs from rope_parameters; keep one of the two")
    return scaling or parameters or Config({}, "rope_parameters.")


def _kind(rope: Config) -> RopeKind:
    kind = rope.text("rope_type", rope.text("type", "default"))
    old = rope.text("type", kind)
    if old != kind:
        raise rope.invalid("type", f"differs from rope_type = {kind!r}; keep one of the two")
    match kind:
        case "default" | "linear" | "llama3" | "yarn" | "longrope" | "factors":
            return kind
        case _:
            key = "rope_type" if rope.has("rope_type") else "type"
            raise rope.unsupported(key, f"expected one of {', '.join(EXTRA_KEYS)}")


def score_magnitude(config: Config) -> float:
    """By whose square DeepSeek multiplies its scores: YaRN's magnitude of all dimensions, not only the rotated."""
    rope = _parameters(config)
    if _kind(rope) != "yarn" or not rope.values.get("mscale_all_dim"):
        return 1.0
    return _magnitude(rope.number("factor"), rope.number("mscale_all_dim"))


def _magnitude(factor: float, weight: float) -> float:
    """YaRN paper (arXiv 2309.00071), section 3.4: sqrt(1/t) = 0.1 ln(s) + 1; DeepSeek weights the logarithm."""
    return 1.0 if factor <= 1 else 0.1 * weight * log(factor) + 1.0


def _yarn_attention_factor(rope: Config, factor: float) -> float:
    if rope.values.get("mscale") and rope.values.get("mscale_all_dim"):
        return _magnitude(factor, rope.number("mscale")) / _magnitude(factor, rope.number("mscale_all_dim"))
    return _magnitude(factor, 1.0)


def rotary_order(head_dim: int, rotary_dim: int | None = None, interleaved: bool = False) -> IndexArray:
    """[head_dim]: which stored dimension of q and k comes j-th when pairs are j and j + half of the whole head.

    Of each half, the rotated dimensions come first. Scores do not change if q and k are permuted alike, so the other
    conventions need neither kernels nor caches of their own.
    """
    dimensions = np.arange(head_dim)
    rotary = head_dim if rotary_dim is None else rotary_dim
    turned, rest = dimensions[:rotary], dimensions[rotary:]
    pairs = turned.reshape(-1, 2).T if interleaved else turned.reshape(2, -1)
    return np.concatenate([pairs, rest.reshape(2, -1)], axis=1).reshape(-1)


def rope_tables(rope: RopeSpec | None, head_dim: int, length: int, rotary_dim: int | None = None) -> Float32Array:
    """[length, head_dim]: cos of every pair in the first half, sin in the second, multiplied by YaRN's magnitude.

    Pairs beyond the rotary dimensions do not turn, and none does without a rotation: their cos is 1, their sin 0.
    """
    half = head_dim // 2
    table = np.zeros((length, head_dim), np.float32)
    table[:, :half] = 1
    if rope is None:
        return table
    rotary = head_dim if rotary_dim is None else rotary_dim
    frequencies, turned = inverse_frequencies(rope, rotary, length), rotary // 2
    for start in range(0, length, 4096):  # bounds the float64 scratch for million-token contexts
        angles = np.arange(start, min(start + 4096, length), dtype=np.float64)[:, None] * frequencies
        table[start : start + 4096, :turned] = np.cos(angles) * rope.attention_factor
        table[start : start + 4096, half : half + turned] = np.sin(angles) * rope.attention_factor
    return table


def query_scales(rope: RopeSpec | None, length: int) -> Float32Array:
    """[length]: by what the queries of each position are multiplied, as in Llama 4 (its "attention temperature")."""
    if rope is None or not rope.query_growth:
        return np.ones(length, np.float32)
    return (1 + rope.query_growth * np.log1p(np.arange(length) // rope.original_max_position)).astype(np.float32)


def inverse_frequencies(rope: RopeSpec, head_dim: int, length: int = 0) -> Float64Array:
    """[head_dim / 2]: the angle per position of each pair, theta^(-2j / head_dim) (arXiv 2104.09864), then scaled.

    `length` is the longest context, for the kind that depends on it.
    """
    base: Float64Array = rope.theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    match rope.kind:
        case "default":
            return base
        case "linear":
            return base / rope.factor  # position interpolation, arXiv 2306.15595
        case "llama3":
            return _llama3(rope, base)
        case "factors":
            return base / np.array(rope.factors, np.float64)
        case "yarn":
            return _yarn(rope, base, head_dim)
        case "longrope":
            factors = rope.long_factors if length > rope.original_max_position else rope.short_factors
            return base / np.array(factors, np.float64)


def _llama3(rope: RopeSpec, base: Float64Array) -> Float64Array:
    """Llama 3.1: frequencies of long wavelengths are divided by `factor`, of short ones kept, linear blend between.

    Source: `apply_scaling` of Meta's llama-models repository; a wavelength fits `turns` times into the original length.
    """
    turns = rope.original_max_position * base / (2 * pi)
    keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    keep = np.clip(keep, 0.0, 1.0)
    return base * (keep + (1.0 - keep) / rope.factor)


def _yarn(rope: RopeSpec, base: Float64Array, head_dim: int) -> Float64Array:
    """YaRN "NTK by parts" (arXiv 2309.00071, section 3.2), with the ramp over dimensions of the authors' code.

    Pairs turning more than `beta_fast` times within the original length are kept, fewer than `beta_slow` interpolated.
    """

    def dimension(turns: float) -> float:
        return head_dim * log(rope.original_max_position / (turns * 2 * pi)) / (2 * log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = floor(low), ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # as in the authors' code: a step instead of a division by zero
    interpolate = np.clip((np.arange(head_dim // 2) - low) / (high - low), 0.0, 1.0)
    scaled: Float64Array = base * (1.0 - interpolate + interpolate / rope.factor)
    return scaled
