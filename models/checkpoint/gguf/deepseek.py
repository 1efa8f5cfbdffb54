"""DeepSeek-V2 and -V3 in GGUF: what their metadata means, and each layer's matrix of keys and values.

Newer files have that matrix in two tensors, as llama.cpp applies them: the values' of each head, and the keys' of each
head turned round. Older ones have it as the family does, and sizes of heads where newer have those of the cached rows.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ..stored import FloatArray, StoredMatrix, Weight, float_part
from .settings import Settings

LOG_MULTIPLIER: Final = "rope.scaling.yarn_log_multiplier"
SCORES: Final = {1: "softmax", 2: "sigmoid"}
# Groups of experts, and how many of them are chosen, by the number of experts: files from before the converter wrote
# them are of DeepSeek-V2, V2.5 and Coder-V2 (160), V3 and R1 (256), or of models without groups.
OLD_GROUPS: Final = {160: (8, 3), 256: (8, 4)}


def deepseek_config(settings: Settings) -> dict[str, object]:
    """The settings of config.json that are no single key here."""
    rotated, rank = settings.size("rope.dimension_count"), settings.size("attention.kv_lora_rank")
    heads = settings.size("attention.head_count")
    newer = any(settings.get(f"attention.{part}_length_mla") is not None for part in ("key", "value"))
    suffix = "_mla" if newer else ""
    for key, size in (("attention.key_length", rank + rotated), ("attention.value_length", rank)):
        if newer and settings.size(key, size) != size:
            raise settings.invalid(key, f"expected {size}, as in a cached row")
    if settings.size("attention.head_count_kv", 1) not in (1, heads):
        raise settings.invalid("attention.head_count_kv", f"expected 1 or attention.head_count = {heads}")
    gating = settings.get("expert_gating_func")
    if gating not in (None, *SCORES):
        raise settings.invalid("expert_gating_func", "expected 1 (softmax) or 2 (sigmoid)")
    old_groups = OLD_GROUPS.get(settings.size("expert_count"), (1, 1))
    groups = settings.size("expert_group_count", old_groups[0])
    chosen = settings.size("expert_group_used_count", old_groups[1] if groups == old_groups[0] else 1)
    found: dict[str, object] = {
        "num_key_value_heads": heads,
        "q_lora_rank": settings.get("attention.q_lora_rank"),
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": settings.size(f"attention.key_length{suffix}") - rotated,
        "v_head_dim": settings.size(f"attention.value_length{suffix}"),
        "scoring_func": SCORES[2 if gating == 2 else 1],
        "n_group": groups,
        "topk_group": chosen,
    }
    if gating != 2:
        found["topk_method"] = "greedy" if groups == 1 else "group_limited_greedy"
    return found


def yarn_magnitudes(settings: Settings) -> dict[str, object] | None:
    """The weights of YaRN's logarithm: of a scaled score, and of cos and sin. The format has one number for both."""
    tenth = settings.number(LOG_MULTIPLIER, 0.0)
    if not tenth:
        return None
    weight = float(f"{10 * tenth:.6g}")  # the converter's tenth of it is a float32
    return {"mscale": weight, "mscale_all_dim": weight}


class KeysAndValues(StoredMatrix):
    """[heads * (plain + value), rank] from keys [heads * rank, plain] and values [heads * value, rank]."""

    def __init__(self, heads: int, keys: Weight, values: Weight) -> None:
        self._heads, self._keys, self._values = heads, keys, values
        self._rank, self._plain, self._value = values.shape[1], keys.shape[1], values.shape[0] // heads
        self.shape = (heads * (self._plain + self._value), self._rank)
        formats = {part.format: None for part in (keys, values) if isinstance(part, StoredMatrix)}
        self.format = " and ".join(formats) or "GGUF"

    def rows(self, first: int, last: int) -> FloatArray:
        size = self._plain + self._value
        begin, end = first // size, -(-last // size)
        found: FloatArray = np.empty((max(0, end - begin), size, self._rank), np.float32)
        for head in range(begin, end):
            turned = float_part(self._keys, head * self._rank, (head + 1) * self._rank)
            found[head - begin, : self._plain] = turned.T
            found[head - begin, self._plain :] = float_part(self._values, head * self._value, (head + 1) * self._value)
        return found.reshape(-1, self._rank)[first - begin * size : last - begin * size]
