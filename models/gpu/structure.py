"""What of a `ModelSpec` the GPU's kernels implement; everything else is refused by name before anything is loaded."""

from __future__ import annotations

from ..checkpoint.spec import LayerSpec, ModelSpec, WeightNames
from ..errors import UnsupportedModel

REMEDY = "the GPU's kernels do not have this yet; use --device cpu"
# The fields that must have their default, and what they are called in a message.
PLAIN = {
    "layer_norm": "LayerNorm",
    "norm_bias": "a bias in norms",
    "parallel": "attention and MLP side by side",
    "mlp_bias": "a bias in the MLP",
    "rotary_dim": "rotary dimensions",
    "interleaved_rotary": "interleaved rotary pairs",
    "score_cap": "a soft cap of attention scores",
    "sinks": "attention sinks",
    "activation": "the activation",
    "gated": "a gated MLP",
    "embedding_factor": "a factor of embeddings",
    "logit_factor": "a factor of logits",
    "logit_cap": "a soft cap of logits",
}


def refuse_structure(spec: ModelSpec) -> None:
    """Raises UnsupportedModel, naming the first part of the structure that no kernel implements."""
    if spec.latent is not None:
        raise UnsupportedModel("latent attention", spec.family, REMEDY)
    for field, default in zip(ModelSpec.__struct_fields__, _defaults(), strict=True):
        value: object = getattr(spec, field)
        if field in PLAIN and value != default:
            raise UnsupportedModel(PLAIN[field], value, REMEDY)
    if spec.qk_norm not in (None, "head"):
        raise UnsupportedModel("a norm of q and k over", spec.qk_norm, REMEDY)
    if spec.experts is not None:
        raise UnsupportedModel("experts", spec.experts.count, REMEDY)
    names, plain = spec.names, WeightNames()
    for role in ("before_attention", "after_attention", "before_mlp", "after_mlp"):
        if (getattr(names, role) is None) != (getattr(plain, role) is None):
            raise UnsupportedModel(f"norm {role.replace('_', ' ')}", getattr(names, role), REMEDY)
    kinds = set(spec.layers)
    if growing := [
        layer.rope.query_growth for layer in spec.layers if layer.rope is not None and layer.rope.query_growth
    ]:
        raise UnsupportedModel("queries that grow with their position", growing[0], REMEDY)
    if len(kinds) > 1 or any(layer.rope is None for layer in kinds):
        raise UnsupportedModel("layers", _described(kinds), f"layers that differ: {REMEDY}")


def _defaults() -> tuple[object, ...]:
    """Of every field; required ones have none."""
    given = ModelSpec.__struct_defaults__
    return (None,) * (len(ModelSpec.__struct_fields__) - len(given)) + given


def _described(kinds: set[LayerSpec]) -> str:
    windows = sorted({str(layer.window) for layer in kinds})
    return f"windows {', '.join(windows)}, {len({layer.rope for layer in kinds})} rotations"
