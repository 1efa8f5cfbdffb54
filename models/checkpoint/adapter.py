"""A LoRA adapter folder as PEFT writes it, held against a base model: adapter_config.json, adapter_model.safetensors.

Strict like the checkpoint's reader: a setting that would change the arithmetic and is not implemented is refused by
name, every tensor is expected, every shape checked. It never unpickles, and runs no regular expression of the folder's:
where `target_modules` is one, the tensors say what it matched.
"""

import re
from collections.abc import Callable, Iterable
from math import sqrt
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct

from ..errors import CheckpointError, UnsupportedModel
from .config import Config
from .files import find_file, folder_of, read_json
from .pytorch.file import PytorchFile
from .safetensors import SafetensorsFile, TensorFile, WeightArray
from .spec import ModelSpec

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
FORMS: dict[str, Callable[[Path, str], TensorFile]] = {WEIGHTS_FILE: SafetensorsFile, "adapter_model.bin": PytorchFile}
MAX_CONFIG_BYTES = 1 << 20
MAX_RANK = 256
# Module: its name in a decoder layer, in the order of LayerWeights.
MODULES: Final = {
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "o_proj": "self_attn.o_proj",
    "gate_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "down_proj": "mlp.down_proj",
}
_TENSOR = re.compile(r"base_model\.model\.(model\.layers\.(\d{1,6})\.([a-z_.]+))\.lora_([AB])\.weight")
_PLAIN_NAME = re.compile(r"\^?[\w.]+")
# Settings that say how the adapter was trained or saved, or nothing that matters here.
_INERT = frozenset({
    "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config", "inference_mode",
    "layers_pattern", "loftq_config", "lora_dropout", "lora_ga_config", "megatron_core", "peft_version",
    "qalora_group_size", "revision", "runtime_config", "task_type",
})  # fmt: skip
_READ = frozenset({
    "alpha_pattern", "bias", "exclude_modules", "fan_in_fan_out", "init_lora_weights", "layers_to_transform",
    "lora_alpha", "peft_type", "r", "rank_pattern", "target_modules", "use_rslora",
})  # fmt: skip
_REFUSED = {
    "use_dora": "DoRA's magnitudes are not supported; train without use_dora",
    "modules_to_save": "whole modules beside the low-rank ones are not supported; merge this adapter into its base",
    "trainable_token_indices": "trained embeddings are not supported; merge this adapter into its base",
    "layer_replication": "replicated layers are not supported",
    "lora_bias": "a bias in the low-rank part is not supported",
    "target_parameters": "adapted parameters outside of linear layers are not supported",
    "use_qalora": "QALoRA's pooled inputs are not supported",
    "alora_invocation_tokens": "an adapter that begins at certain tokens is not supported",
    "megatron_config": "Megatron's parallel layers are not supported",
}


class LowRank(Struct, frozen=True):
    """What an adapter adds to one matrix: scale * B A. Arrays are float32 or bfloat16 bits, maybe memory-mapped."""

    a: WeightArray  # [rank, in]
    b: WeightArray  # [out, rank]
    scale: float

    @property
    def rank(self) -> int:
        return int(self.a.shape[0])


class AdapterWeights(Struct, frozen=True):
    """One mapping per layer from a name in MODULES; what an adapter leaves alone is absent."""

    layers: tuple[dict[str, LowRank], ...]

    @property
    def rank(self) -> int:
        """The largest."""
        return max(part.rank for layer in self.layers for part in layer.values())


def module_sizes(spec: ModelSpec) -> dict[str, tuple[int, int]]:
    """(out, in) of the matrices that may be adapted."""
    query, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    hidden, mlp = spec.hidden_size, spec.mlp_size
    gate = {"gate_proj": (mlp, hidden)} if spec.gated else {}
    return {
        "q_proj": (query, hidden),
        "k_proj": (kv, hidden),
        "v_proj": (kv, hidden),
        "o_proj": (hidden, query),
        **gate,
        "up_proj": (mlp, hidden),
        "down_proj": (hidden, mlp),
    }


def load_adapter(path: Path, spec: ModelSpec) -> AdapterWeights:
    """Read the adapter in `path` for a model of this spec. Raises CheckpointError or UnsupportedModel."""
    if spec.latent is not None:
        raise UnsupportedModel("adapter", str(path), f"{spec.family} models, with latent attention, take no adapters")
    folder = folder_of(path, "adapter", CONFIG_FILE)
    config = Config(read_json(folder, CONFIG_FILE, MAX_CONFIG_BYTES))
    _refuse_unsupported(config)
    file = next((form(folder, name) for name, form in FORMS.items() if find_file(folder, name) is not None), None)
    if file is None:
        raise CheckpointError("file", WEIGHTS_FILE, "missing; save the adapter with save_pretrained")
    layers: tuple[dict[str, LowRank], ...] = tuple({} for _ in range(spec.num_layers))
    for name in sorted(_adapted_modules(file, spec)):
        layer, module = _place(name)
        if spec.layers[layer].experts and ".mlp." in name:
            raise UnsupportedModel(name, module, "adapters of layers with experts may change their attention only")
        layers[layer][module] = _read_module(file, config, name, module_sizes(spec)[module])
    _compare_with_targets(config, layers)
    return AdapterWeights(layers)


def _refuse_unsupported(config: Config) -> None:
    config.must_be("peft_type", "LORA", remedy="only LoRA adapters are supported")
    if not config.has("peft_type"):
        raise config.invalid("peft_type", "expected LORA: this is not an adapter's configuration")
    config.must_be("task_type", "CAUSAL_LM", remedy="only adapters of causal language models are supported")
    config.must_be("bias", "none", remedy="trained biases are not supported; train with bias = none")
    config.must_be("fan_in_fan_out", False, remedy="transposed weights are not supported")
    # Other ways to begin (pissa, olora, corda, loftq) change the base model's own weights.
    begun = (True, False, "gaussian", "eva", "orthogonal")
    config.must_be(
        "init_lora_weights", *begun, remedy="this adapter fits a changed base; save it converted to plain LoRA"
    )
    for key, remedy in _REFUSED.items():
        if config.values.get(key):
            raise config.unsupported(key, remedy)
    for key, value in config.values.items():
        if value and key not in _INERT and key not in _READ:
            raise config.unsupported(key, "an unknown setting, which might change the arithmetic")


def _adapted_modules(file: TensorFile, spec: ModelSpec) -> set[str]:
    """Full names of the modules that the file holds tensors of: each in the base, with both matrices."""
    found: dict[str, set[str]] = {}
    places = {MODULES[module] for module in module_sizes(spec)}
    for tensor in file.tensors:
        match = _TENSOR.fullmatch(tensor)
        if match is None or match[3] not in places:
            raise CheckpointError(
                tensor, file.tensors[tensor].shape, f"only lora_A and lora_B of {', '.join(MODULES)} are supported"
            )
        if int(match[2]) >= spec.num_layers:
            raise CheckpointError(tensor, int(match[2]), f"the base model has {spec.num_layers} layers: another base")
        found.setdefault(match[1], set()).add(match[4])
    for name, halves in sorted(found.items()):
        if len(halves) < 2:
            raise CheckpointError(_tensor(name, "A" if "B" in halves else "B"), None, "this weight is missing")
    if not found:
        raise CheckpointError("file", WEIGHTS_FILE, "holds no lora_A and lora_B")
    return set(found)


def _tensor(module: str, half: str) -> str:
    return f"base_model.model.{module}.lora_{half}.weight"


def _place(name: str) -> tuple[int, str]:
    """Layer and module of a full name."""
    parts = name.split(".")
    return int(parts[2]), parts[-1]


def _read_module(file: TensorFile, config: Config, name: str, size: tuple[int, int]) -> LowRank:
    ranked, weighed = _pattern(config, "rank_pattern", name), _pattern(config, "alpha_pattern", name)
    rank = config.size("r", 8) if ranked is None else ranked[0].size(ranked[1])
    if rank > MAX_RANK:
        raise CheckpointError("r", rank, f"ranks up to {MAX_RANK} are supported")
    alpha = config.number("lora_alpha", 8) if weighed is None else weighed[0].number(weighed[1])
    rows, columns = size

    def read(half: str, *shape: int) -> WeightArray:
        tensor = _tensor(name, half)
        found = file.tensors[tensor].shape
        if found != shape:
            remedy = f"the base model and rank {rank} imply the shape {shape}: another base, or a damaged adapter"
            raise CheckpointError(tensor, found, remedy)
        values = file.read(tensor)
        if not _finite(values):
            raise CheckpointError(tensor, "not finite", "holds an infinite value or NaN")
        return values

    scale = alpha / sqrt(rank) if config.flag("use_rslora", False) else alpha / rank
    return LowRank(read("A", rank, columns), read("B", rows, rank), scale)


def _pattern(config: Config, key: str, name: str) -> tuple[Config, str] | None:
    """Where the first entry is whose key is the module's name or the end of it; to PEFT, keys are expressions."""
    patterns = config.mapping(key)
    if patterns is None:
        return None
    for pattern in patterns.values:
        if not _PLAIN_NAME.fullmatch(pattern):
            raise patterns.unsupported(pattern, "only plain module names are supported as keys, no other patterns")
        if name == pattern.removeprefix("^") or (not pattern.startswith("^") and name.endswith("." + pattern)):
            return patterns, pattern
    return None


def _compare_with_targets(config: Config, layers: Iterable[dict[str, LowRank]]) -> None:
    """Where the configuration lists modules of every layer, the file must hold these and no others."""
    targets = config.values.get("target_modules")
    if targets is None:
        raise config.invalid("target_modules", "expected the names of the adapted modules")
    if targets == "all-linear":
        wanted = set(MODULES)
    elif isinstance(targets, str):
        return
    else:
        names = config.texts("target_modules") or []
        wanted = {module for module, path in MODULES.items() if {module, path} & set(names)}
        if len(wanted) < len(names):
            raise config.unsupported("target_modules", f"only {', '.join(MODULES)} are supported")
    if config.values.get("exclude_modules") or config.values.get("layers_to_transform") is not None:
        wanted_somewhere = set[str]()
    else:
        wanted_somewhere = wanted
    for index, layer in enumerate(layers):
        if not wanted_somewhere <= layer.keys() <= wanted:
            differs = ", ".join(sorted(layer.keys() ^ wanted))
            raise config.invalid("target_modules", f"layer {index} of {WEIGHTS_FILE} says otherwise about {differs}")


def _finite(values: WeightArray) -> bool:
    """Whether no value is infinite or NaN: all exponent bits set, in either format."""
    if values.itemsize == 2:
        return not bool(np.any((values.view(np.uint16) & 0x7F80) == 0x7F80))
    return not bool(np.any((values.view(np.uint32) & 0x7F800000) == 0x7F800000))
