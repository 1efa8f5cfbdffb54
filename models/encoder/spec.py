"""The description of an encoder: `EncoderSpec`, and one small function per family that reads it from config.json.

An encoder reads a whole text at once, every token seeing both sides. Like checkpoint/spec.py, a family's function
refuses what the encoder does not implement, naming the key and the value.
"""

from collections.abc import Callable, Mapping
from typing import Literal

from msgspec import Struct, ValidationError, convert
from msgspec.structs import replace

from ..checkpoint.config import MAX_LAYERS, Config
from ..checkpoint.rope import RopeSpec
from .names import BERT, DISTILBERT, MODERNBERT, ROBERTA, TensorNames

Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
# transformers' names of activation functions
ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
EVERYTHING = 1 << 30  # a reach beyond any text
MOST_LABELS = 4096


class EncoderLayerSpec(Struct, frozen=True):
    """What differs from layer to layer."""

    reach: int = EVERYTHING  # a token sees those at most this far to either side
    rope: RopeSpec | None = None


class Classifier(Struct, frozen=True, kw_only=True):
    """A head on the pooled text: a dense layer with its activation and perhaps a norm, then a score per label."""

    pooling: Literal["cls", "mean"]
    dense: str  # names of tensors, without .weight and .bias
    dense_bias: bool = True
    activation: Activation | Literal["tanh"]
    norm: str | None = None
    out: str
    labels: tuple[str, ...]
    several: bool = False  # labels may apply together: each score by itself is a probability
    raw_scores: bool = False  # of pairs: the files say that scores stay as they are


class EncoderSpec(Struct, frozen=True, kw_only=True):
    """One encoder: LayerNorm before or after its blocks, an MLP with or without a gate, learned or rotary positions."""

    family: str
    vocab_size: int
    hidden_size: int
    num_heads: int
    mlp_size: int
    norm_eps: float
    activation: Activation
    layers: tuple[EncoderLayerSpec, ...]
    max_position: int  # tokens of the longest text
    token_types: int = 1  # 1: one type, or none in the file
    first_position: int = 0  # row of the learned positions that belongs to a text's first token
    gated: bool = False
    attention_bias: bool = True
    mlp_bias: bool = True
    norm_bias: bool = True
    norms_after: bool = True  # False: before each block, and once at the end
    names: TensorNames
    classifier: Classifier | None = None

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def parameters(self) -> int:
        """Number of weights in matrices, without biases and norms."""
        layer = 4 * self.hidden_size**2 + (2 + self.gated) * self.hidden_size * self.mlp_size
        return self.vocab_size * self.hidden_size + len(self.layers) * layer


def _bert(config: Config) -> EncoderSpec:
    spec = _encoder(config, BERT)
    return replace(
        spec,
        token_types=config.size("type_vocab_size", 2),
        classifier=_classifier(config, dense="bert.pooler.dense", activation="tanh", out="classifier"),
    )


def _roberta(config: Config) -> EncoderSpec:
    """RoBERTa, XLM-RoBERTa, CamemBERT: positions begin behind the padding token's."""
    first = int(config.number("pad_token_id", 1, above=-1)) + 1
    spec = _encoder(config, ROBERTA, padding=first, position=514, eps=1e-5)
    return replace(
        spec,
        token_types=config.size("type_vocab_size", 1),
        first_position=first,
        classifier=_classifier(config, dense="classifier.dense", activation="tanh", out="classifier.out_proj"),
    )


def _distilbert(config: Config) -> EncoderSpec:
    config.must_be("sinusoidal_pos_embds", False, True, remedy="expected true or false")  # both are stored as weights
    renamed = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
    renamed |= {"intermediate_size": "hidden_dim", "hidden_act": "activation"}
    spec = _encoder(
        Config({**config.values, **{new: config.values.get(old) for new, old in renamed.items()}}), DISTILBERT
    )
    return replace(
        spec,
        classifier=_classifier(config, dense="pre_classifier", activation="relu", out="classifier"),
    )


def _modernbert(config: Config) -> EncoderSpec:
    """ModernBERT (arXiv:2412.13663): some layers see everything, others half of `local_attention` to either side."""
    layers = config.size("num_hidden_layers", 22, most=MAX_LAYERS)
    every = config.size("global_attn_every_n_layers", 3)
    kinds = config.texts("layer_types") or [
        "sliding_attention" if index % every else "full_attention" for index in range(layers)
    ]
    if len(kinds) != layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise config.invalid("layer_types", f"expected full_attention or sliding_attention for each of {layers} layers")
    config.must_be("rope_scaling", {}, remedy="scaled rotary embeddings of this family are not supported")
    reach = config.size("local_attention", 128) // 2
    by_kind = {
        "full_attention": EncoderLayerSpec(
            rope=_modernbert_rope(config, "full_attention", "global_rope_theta", 160_000.0)
        ),
        "sliding_attention": EncoderLayerSpec(
            reach=reach, rope=_modernbert_rope(config, "sliding_attention", "local_rope_theta", 10_000.0)
        ),
    }
    activation = _activation(config, "classifier_activation")
    pooling = config.text("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise config.unsupported("classifier_pooling", "expected cls or mean")
    return EncoderSpec(
        family="modernbert",
        vocab_size=config.size("vocab_size", 50_368),
        hidden_size=config.size("hidden_size", 768),
        num_heads=config.size("num_attention_heads", 12),
        mlp_size=config.size("intermediate_size", 1152),
        norm_eps=config.number("norm_eps", 1e-5),
        activation=_activation(config, "hidden_activation"),
        layers=tuple(by_kind[kind] for kind in kinds),
        max_position=config.size("max_position_embeddings", 8192),
        gated=True,
        attention_bias=config.flag("attention_bias", False),
        mlp_bias=config.flag("mlp_bias", False),
        norm_bias=config.flag("norm_bias", False),
        norms_after=False,
        names=MODERNBERT,
        classifier=_classifier(
            config,
            pooling="cls" if pooling == "cls" else "mean",
            dense="head.dense",
            dense_bias=config.flag("classifier_bias", False),
            activation=activation,
            norm="head.norm",
            out="classifier",
        ),
    )


def _modernbert_rope(config: Config, kind: str, old_key: str, default: float) -> RopeSpec:
    parameters = config.mapping("rope_parameters")
    own = None if parameters is None else parameters.mapping(kind)
    if own is None:
        return RopeSpec(theta=config.number(old_key, default))
    own.must_be("rope_type", "default", remedy="scaled rotary embeddings of this family are not supported")
    return RopeSpec(theta=own.number("rope_theta", default))


def _encoder(
    config: Config, names: TensorNames, *, padding: int = 0, position: int = 512, eps: float = 1e-12
) -> EncoderSpec:
    """What BERT and its descendants share; defaults are those of transformers' configuration classes."""
    config.must_be("position_embedding_type", "absolute", remedy="relative positions are not supported")
    config.must_be("is_decoder", False, remedy="only encoders that see both sides are supported")
    config.must_be("add_cross_attention", False, remedy="cross attention is not supported")
    config.must_be("embedding_size", config.values.get("hidden_size"), remedy="must be hidden_size")
    positions = config.size("max_position_embeddings", position)
    if positions <= padding:
        raise config.invalid("max_position_embeddings", f"expected more than the {padding} before a text's first token")
    return EncoderSpec(
        family=config.text("model_type", ""),
        vocab_size=config.size("vocab_size", 30_522),
        hidden_size=config.size("hidden_size", 768),
        num_heads=config.size("num_attention_heads", 12),
        mlp_size=config.size("intermediate_size", 3072),
        norm_eps=config.number("layer_norm_eps", eps),
        activation=_activation(config, "hidden_act"),
        layers=(EncoderLayerSpec(),) * config.size("num_hidden_layers", 12, most=MAX_LAYERS),
        max_position=positions - padding,
        names=names,
    )


def _activation(config: Config, key: str) -> Activation:
    name = config.text(key, "gelu")
    if name not in ACTIVATIONS:
        raise config.unsupported(key, f"expected one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _classifier(
    config: Config,
    *,
    pooling: Literal["cls", "mean"] = "cls",
    dense: str,
    dense_bias: bool = True,
    activation: Activation | Literal["tanh"],
    norm: str | None = None,
    out: str,
) -> Classifier:
    """Labels as transformers names them; what becomes of a pair's score as sentence-transformers says."""
    names = config.mapping("id2label")
    try:
        labels = ("LABEL_0", "LABEL_1") if names is None else _labels(convert(names.values, dict[str, str]))
    except (ValidationError, ValueError):
        raise config.invalid("id2label", f"expected names for 0, 1, …; at most {MOST_LABELS}") from None
    several = config.text("problem_type", "single_label_classification") == "multi_label_classification"
    cross = config.mapping("sentence_transformers")
    function = "" if cross is None else cross.text("activation_fn", "")
    function = function or config.text("sbert_ce_default_activation_function", "") or "Sigmoid"
    kind = function.rsplit(".", 1)[-1]
    if kind not in ("Identity", "Sigmoid"):
        key = "sentence_transformers" if cross is not None else "sbert_ce_default_activation_function"
        raise config.unsupported(key, "expected Identity or Sigmoid on the score of a pair")
    return Classifier(
        pooling=pooling,
        dense=dense,
        dense_bias=dense_bias,
        activation=activation,
        norm=norm,
        out=out,
        labels=labels,
        several=several,
        raw_scores=kind == "Identity",
    )


def _labels(names: Mapping[str, str]) -> tuple[str, ...]:
    if not 1 <= len(names) <= MOST_LABELS or set(names) != {str(number) for number in range(len(names))}:
        raise ValueError
    return tuple(names[str(number)] for number in range(len(names)))


# model_type, and its architectures: embeddings come from the first kind, scores from the second
FAMILIES: dict[str, tuple[Callable[[Config], EncoderSpec], tuple[str, ...], str]] = {
    "bert": (_bert, ("BertModel", "BertForMaskedLM"), "BertForSequenceClassification"),
    "roberta": (_roberta, ("RobertaModel", "RobertaForMaskedLM"), "RobertaForSequenceClassification"),
    "xlm-roberta": (_roberta, ("XLMRobertaModel", "XLMRobertaForMaskedLM"), "XLMRobertaForSequenceClassification"),
    "camembert": (_roberta, ("CamembertModel", "CamembertForMaskedLM"), "CamembertForSequenceClassification"),
    "distilbert": (
        _distilbert,
        ("DistilBertModel", "DistilBertForMaskedLM"),
        "DistilBertForSequenceClassification",
    ),
    "modernbert": (
        _modernbert,
        ("ModernBertModel", "ModernBertForMaskedLM"),
        "ModernBertForSequenceClassification",
    ),
}


def is_encoder(values: Mapping[str, object]) -> bool:
    """Whether a config.json describes an encoder of a known family, of whatever architecture."""
    return values.get("model_type") in tuple(FAMILIES)  # which compares: it may be a list


def encoder_from_config(values: Mapping[str, object]) -> EncoderSpec:
    """The spec of a config.json for which `is_encoder` holds."""
    config = Config(values)
    config.must_be("auto_map", {}, remedy="this model needs code from its folder, which Triolet never runs")
    config.must_be("quantization_config", remedy="quantised encoders are not read; use the original and --quantize")
    read, embedders, classifier = FAMILIES[config.text("model_type")]
    architectures = config.texts("architectures") or [embedders[0]]
    if len(architectures) != 1 or architectures[0] not in (*embedders, classifier):
        raise config.unsupported("architectures", f"expected one of {', '.join((*embedders, classifier))}")
    spec = read(config)
    if spec.hidden_size % spec.num_heads or spec.head_dim % 2:
        raise config.invalid("num_attention_heads", f"must divide hidden_size = {spec.hidden_size} into even heads")
    return spec if architectures[0] == classifier else replace(spec, classifier=None)
