"""What each family calls its tensors. `{}` is a layer's number; `.weight` and `.bias` are added where they belong."""

from msgspec import Struct


class TensorNames(Struct, frozen=True, kw_only=True):
    """Names behind the prefix, which files of a bare encoder leave out."""

    prefix: str
    embedding: str
    embedding_norm: str
    positions: str | None = None  # learned
    types: str | None = None
    qkv: tuple[str, ...]  # of query, key and value; or one, of all three
    out: str
    mix_norm: str  # behind the attention
    up: str  # gate and up in one, where the MLP has a gate
    down: str
    next_norm: str  # behind the MLP of a layer…
    last_norm: str | None = None  # …except the last, where it has another name
    next_of: int = 0  # the number in next_norm is this much larger than the layer's
    unused: tuple[str, ...] = ()  # beginnings of names, with prefix, that embeddings do not need


BERT = TensorNames(
    prefix="bert.",
    embedding="embeddings.word_embeddings",
    embedding_norm="embeddings.LayerNorm",
    positions="embeddings.position_embeddings",
    types="embeddings.token_type_embeddings",
    qkv=tuple(f"encoder.layer.{{}}.attention.self.{part}" for part in ("query", "key", "value")),
    out="encoder.layer.{}.attention.output.dense",
    mix_norm="encoder.layer.{}.attention.output.LayerNorm",
    up="encoder.layer.{}.intermediate.dense",
    down="encoder.layer.{}.output.dense",
    next_norm="encoder.layer.{}.output.LayerNorm",
    unused=("cls.", "pooler.", "bert.pooler.", "embeddings.position_ids", "bert.embeddings.position_ids"),
)
ROBERTA = TensorNames(
    prefix="roberta.",
    embedding=BERT.embedding,
    embedding_norm=BERT.embedding_norm,
    positions=BERT.positions,
    types=BERT.types,
    qkv=BERT.qkv,
    out=BERT.out,
    mix_norm=BERT.mix_norm,
    up=BERT.up,
    down=BERT.down,
    next_norm=BERT.next_norm,
    unused=("lm_head.", "pooler.", "roberta.pooler.", "embeddings.position_ids", "roberta.embeddings.position_ids"),
)
DISTILBERT = TensorNames(
    prefix="distilbert.",
    embedding="embeddings.word_embeddings",
    embedding_norm="embeddings.LayerNorm",
    positions="embeddings.position_embeddings",
    qkv=tuple(f"transformer.layer.{{}}.attention.{part}_lin" for part in "qkv"),
    out="transformer.layer.{}.attention.out_lin",
    mix_norm="transformer.layer.{}.sa_layer_norm",
    up="transformer.layer.{}.ffn.lin1",
    down="transformer.layer.{}.ffn.lin2",
    next_norm="transformer.layer.{}.output_layer_norm",
    unused=("vocab_",),
)
MODERNBERT = TensorNames(
    prefix="model.",
    embedding="embeddings.tok_embeddings",
    embedding_norm="embeddings.norm",
    qkv=("layers.{}.attn.Wqkv",),
    out="layers.{}.attn.Wo",
    mix_norm="layers.{}.mlp_norm",
    up="layers.{}.mlp.Wi",
    down="layers.{}.mlp.Wo",
    next_norm="layers.{}.attn_norm",
    last_norm="final_norm",
    next_of=1,
    unused=("head.", "decoder."),
)
