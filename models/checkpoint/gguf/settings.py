"""The settings of a GGUF file's architecture, by keys without its name; one that nothing understands is refused."""

from __future__ import annotations

from math import isfinite

import numpy as np

from ...errors import CheckpointError, UnsupportedModel
from .architectures import ARCHITECTURES, IDLE_KEYS, KEYS, Architecture, architecture_of
from .deepseek_names import OWN_KEYS
from .metadata import Value
from .parts import Gguf

ROPE_KEYS = {
    "rope.dimension_count", "rope.freq_base", "rope.freq_base_swa", "rope.scale_linear", "rope.scaling.type",
    "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.attn_factor",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
}  # fmt: skip
OTHER_KEYS = {"attention.value_length", "attention.sliding_window_pattern", "expert_count"}


class Settings:
    """The metadata of the file's architecture, by keys without its name."""

    def __init__(self, file: Gguf) -> None:
        name = file.metadata.get("general.architecture")
        if not isinstance(name, str):
            raise CheckpointError("general.architecture", name, "missing: this file does not say what it is")
        self._metadata, self._prefix = file.metadata, name + "."
        sigmoid = self.get("expert_gating_func") == 2
        row = architecture_of(name, experts=bool(self.get("expert_count")), sigmoid=sigmoid)
        if row is None:
            known = ", ".join(key for key in ARCHITECTURES if " " not in key)
            raise UnsupportedModel("general.architecture", name, f"expected one of {known}")
        self.architecture: Architecture = row

    def get(self, key: str) -> Value | None:
        """One value for all layers: a list is taken if its elements are equal. None: absent."""
        value = self._metadata.get(self._prefix + key)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        return _shortest(value) if isinstance(value, float) else value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value):
            raise self.invalid(key, "expected a number")
        return value

    def size(self, key: str, default: int | None = None) -> int:
        value = self.number(key, default)
        if not isinstance(value, int) or value < 1:
            raise self.invalid(key, "expected a positive integer")
        return value

    def invalid(self, key: str, remedy: str) -> CheckpointError:
        return CheckpointError(self._prefix + key, self.get(key), remedy)

    def refuse_unknown(self) -> None:
        known = {*KEYS, *self.architecture.keys, *IDLE_KEYS, *ROPE_KEYS, *OTHER_KEYS}
        if self.architecture.latent:
            known.update(OWN_KEYS)
        for key in self._metadata:
            if key.startswith(self._prefix) and key[len(self._prefix) :] not in known:
                remedy = "this key is not supported: the model may need something that the decoder does not do"
                raise UnsupportedModel(key, self._metadata[key], remedy)


def _shortest(value: float) -> float:
    """The shortest decimal that is the same float32, if the value is one."""
    with np.errstate(over="ignore"):
        narrow = np.float32(value)
    return float(str(narrow)) if float(narrow) == value else value
