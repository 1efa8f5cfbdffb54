"""The description of a decoder as data: `ModelSpec`, and `LayerSpec` for what may differ between its layers.

A family (families/) reads it from a config.json; the loader, the reference decoder and the runners only follow it. So
none of them asks which family a model is of. Knows neither weights nor devices.
"""

from typing import Literal

from msgspec import Struct

from .experts import ExpertSpec
from .latent import LatentSpec
from .rope import IndexArray, RopeSpec, rotary_order

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]
# What q and k are normalised over before the rotation: a head with one gain for all heads ("head"), or with a gain for
# each ("heads"); all heads together ("row").
QkNorm = Literal["head", "heads", "row"]


class LayerSpec(Struct, frozen=True, kw_only=True):
    """What may differ from layer to layer."""

    rope: RopeSpec | None = RopeSpec()  # None: q and k are not rotated
    experts: bool = False  # a mixture of experts instead of the MLP
    window: int | None = None  # position p sees p - window < j <= p


def alike(count: int, rope: RopeSpec | None = None, window: int | None = None) -> tuple[LayerSpec, ...]:
    """Layers that are all the same; without `rope` they have the plain rotation."""
    return (LayerSpec(rope=rope or RopeSpec(), window=window),) * count


class WeightNames(Struct, frozen=True, kw_only=True):
    """Names of a layer's tensors where families differ. None: the family has no such norm, or no fused matrix."""

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None
    q_norm: str = "self_attn.q_norm"  # "{}" stands for the head where each has its own tensor
    k_norm: str = "self_attn.k_norm"
    qkv: str | None = None  # q, k and v in one matrix
    gate_up: str | None = None  # gate, then up, in one matrix


class ModelSpec(Struct, frozen=True, kw_only=True):
    """One decoder: rotary attention with grouped heads and an MLP, each added to a residual stream, with norms before
    or after them."""

    family: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int  # of a query and a cached key
    mlp_size: int
    norm_eps: float
    max_position: int  # context length, including rotary scaling
    names: WeightNames = WeightNames()
    layer_norm: bool = False  # norms subtract the mean (LayerNorm) instead of only scaling (RMSNorm)
    norm_bias: bool = False
    norm_offset: float = 0.0  # what is added to the norms' stored gains
    parallel: bool = False  # attention and MLP read the same norm; both results are added
    qkv_bias: bool = False
    out_bias: bool = False  # of the attention's output projection
    mlp_bias: bool = False  # of all the MLP's projections
    qk_norm: QkNorm | None = None
    rotary_dim: int | None = None  # the first dimensions of a head, which are rotated; None: all
    interleaved_rotary: bool = False  # pairs are dimensions 2j and 2j + 1 instead of j and j + half
    query_scale: float | None = None  # of scores; None: head_dim ** -0.5
    score_cap: float | None = None  # scores become cap * tanh(score / cap)
    sinks: bool = False  # each head has one more score, of no key: it takes a share of the softmax and gives nothing
    latent: LatentSpec | None = None  # queries and keys are made from latent vectors; the cached one has one kv head
    experts: ExpertSpec | None = None  # of the layers that have experts
    activation: Activation = "silu"
    gated: bool = True  # activation(gate) * up, otherwise activation(up)
    tied_embeddings: bool = False
    unused_layers: int = 0  # behind the last, in the checkpoint: they predict further tokens
    embedding_factor: float = 1.0
    logit_factor: float = 1.0
    logit_cap: float | None = None  # logits, after the factor, become cap * tanh(logit / cap)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def score_scale(self) -> float:
        return self.head_dim**-0.5 if self.query_scale is None else self.query_scale

    @property
    def rotary_order(self) -> IndexArray:
        """[turned_dim]: the stored dimension that comes j-th when pairs are j and j + half of the whole head."""
        return rotary_order(self.turned_dim, self.rotary_dim, self.interleaved_rotary)

    @property
    def turned_dim(self) -> int:
        """Dimensions of the part of a head that goes through the rotation."""
        return self.head_dim if self.latent is None else self.latent.rope_dim

    @property
    def mixed_dim(self) -> int:
        """Of a head's result, which the output projection reads."""
        return self.head_dim if self.latent is None else self.latent.value_dim

    @property
    def parameters(self) -> int:
        """Number of weights; a tied embedding counts once."""
        return self._parameters(0 if self.experts is None else self.experts.count)

    @property
    def active_parameters(self) -> int:
        """Weights that one token uses: those of the experts it takes; the embedding counts as a whole."""
        return self._parameters(0 if self.experts is None else self.experts.routing.chosen)

    def _parameters(self, experts: int) -> int:
        """With that many experts in a layer that has some."""
        query, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = self.hidden_size * (2 * query + 2 * kv)
        if self.latent is not None:
            attention = self.latent.parameters(self.hidden_size, self.num_heads)
            attention += self.hidden_size * self.num_heads * self.mixed_dim
        attention += (query + 2 * kv) * self.qkv_bias + self.hidden_size * self.out_bias + self.num_heads * self.sinks
        matrices = 3 if self.gated else 2
        mlp = matrices * self.hidden_size * self.mlp_size
        mlp += ((matrices - 1) * self.mlp_size + self.hidden_size) * self.mlp_bias
        names, norm = self.names, self.hidden_size * (2 if self.norm_bias else 1)
        roles = (names.before_attention, names.after_attention, names.before_mlp, names.after_mlp)
        norms = norm * sum(role is not None for role in roles)
        norms += 0 if self.qk_norm is None else 2 * self.head_dim if self.qk_norm == "head" else query + kv
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)
        sparse = sum(layer.experts for layer in self.layers)
        layers = self.num_layers * (attention + norms) + (self.num_layers - sparse) * mlp
        if self.experts is not None:
            layers += sparse * self.experts.parameters(self.hidden_size, experts)
        return embeddings + layers + norm
