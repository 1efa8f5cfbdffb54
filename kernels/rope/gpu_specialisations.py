"""Rope and cache write of real models, as serving launches them."""

from __future__ import annotations

from collections.abc import Iterator

from ..gpu.compiling import Specialisation
from ..gpu.language import next_power_of_2
from ..gpu.table import choose
from .gpu import TABLE, rope_cache_kernel

# (heads, kv_heads, head_dim, type of the cache, bias?, norm?)
FORMS = (
    (32, 8, 128, "bf16", False, False),  # Llama-3.1-8B
    (32, 8, 128, "fp8e4nv", False, False),
    (32, 8, 128, "u8", False, False),  # e4m3 on sm_80
    (32, 8, 128, "i8", False, False),
    (16, 8, 128, "bf16", False, True),  # Qwen3-0.6B
    (14, 2, 64, "bf16", True, False),  # Qwen2.5-0.5B
    (8, 4, 256, "bf16", False, True),  # head_dim of Gemma
    (32, 32, 96, "bf16", False, False),  # Phi-3-mini: a padded half
)


def specialisations() -> Iterator[Specialisation]:
    for heads, kv_heads, head_dim, cache, has_bias, has_norm in FORMS:
        for tokens in (64, 8192):
            launch = choose(TABLE, 90, tokens)
            kv_tile = min(launch.kv_tile, next_power_of_2(kv_heads))
            constants = {
                "HEADS": heads,
                "KV_HEADS": kv_heads,
                "HEAD_DIM": head_dim,
                "PAGE": 64,
                "KV_TILE": kv_tile,
                "Q_TILE": next_power_of_2(kv_tile * (heads // kv_heads)),
                "HALF": next_power_of_2(head_dim // 2),
                "HAS_BIAS": has_bias,
                "HAS_NORM": has_norm,
            }
            yield Specialisation(
                kernel=rope_cache_kernel,
                signature={
                    **dict.fromkeys(("qkv", "bias", "q_norm", "k_norm"), "*bf16"),
                    "table": "*fp32",
                    **dict.fromkeys(("positions", "slots"), "*i32"),
                    **dict.fromkeys(("keys", "values"), f"*{cache}"),
                    **dict.fromkeys(("key_scales", "value_scales", "eps"), "*fp32"),
                    "eps": "fp32",
                    **dict.fromkeys(constants, "constexpr"),
                },
                constants=constants,
                num_warps=launch.num_warps,
                num_stages=3,
                capabilities={"fp8e4nv": (90,), "u8": (80,)}.get(cache, (80, 90)),
            )
