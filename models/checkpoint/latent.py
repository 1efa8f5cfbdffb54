"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): its description, and its weights as a
checkpoint has them. Knows no devices.

A token's keys and values are linear functions of one latent vector, the same for all heads, and of one rotated key
beside it. So a cache needs only these: `LatentSpec.row_dim` numbers per token, whatever the number of heads.
"""

from collections.abc import Callable

from msgspec import Struct

from .safetensors import WeightArray


class LatentSpec(Struct, frozen=True, kw_only=True):
    """Sizes of one layer's attention, the same in all layers."""

    kv_rank: int  # of the latent vector of keys and values
    query_rank: int | None  # of the queries' own latent vector; None: they come from the hidden state directly
    plain_dim: int  # dimensions of a query and a key that are not rotated
    rope_dim: int  # and those that are, behind them; the key's are the same for all heads
    value_dim: int  # of a head's value
    norm_eps: float = 1e-6  # of the norms of latent vectors: a constant in the models' own code

    @property
    def query_dim(self) -> int:
        return self.plain_dim + self.rope_dim

    @property
    def row_dim(self) -> int:
        """What is cached of a token."""
        return self.kv_rank + self.rope_dim

    def parameters(self, hidden: int, heads: int) -> int:
        """Of a layer's attention without its output projection."""
        rank = self.query_rank
        query = heads * self.query_dim * (hidden if rank is None else rank)
        down = 0 if rank is None else rank * (hidden + 1)
        up = heads * (self.plain_dim + self.value_dim) * self.kv_rank
        return query + down + self.row_dim * hidden + self.kv_rank + up


class LatentWeights(Struct, frozen=True, kw_only=True):
    """One layer's; matrices are [out, in]."""

    query: WeightArray  # [heads * query_dim, query_rank, or hidden without it]; of a head the plain dimensions first
    down: WeightArray  # [row_dim, hidden]: the latent vector, then the key that will be rotated
    norm: WeightArray  # [kv_rank]
    up: WeightArray  # [heads * (plain_dim + value_dim), kv_rank]: of each head its keys, then its values
    query_down: WeightArray | None = None  # [query_rank, hidden]
    query_norm: WeightArray | None = None  # [query_rank]


def take_latent(
    take: Callable[..., WeightArray], spec: LatentSpec, prefix: str, hidden: int, heads: int
) -> LatentWeights:
    """The weights of one layer, each from `take(name, *shape)`."""
    rank, queries, query_down, query_norm = spec.query_rank, heads * spec.query_dim, None, None
    if rank is None:
        query = take(f"{prefix}q_proj.weight", queries, hidden)
    else:
        query_down = take(f"{prefix}q_a_proj.weight", rank, hidden)
        query_norm = take(f"{prefix}q_a_layernorm.weight", rank)
        query = take(f"{prefix}q_b_proj.weight", queries, rank)
    return LatentWeights(
        query=query,
        query_down=query_down,
        query_norm=query_norm,
        down=take(f"{prefix}kv_a_proj_with_mqa.weight", spec.row_dim, hidden),
        norm=take(f"{prefix}kv_a_layernorm.weight", spec.kv_rank),
        up=take(f"{prefix}kv_b_proj.weight", heads * (spec.plain_dim + spec.value_dim), spec.kv_rank),
    )
