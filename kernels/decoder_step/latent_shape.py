"""The description of latent attention for the compiled step: sizes, the table of addresses, working arrays.

The sizes are run-time values. Those called `padded` are multiples of 64, the rotated part's of 32; padding is zeros.
A row of the first projection is the latent vector, the key to rotate, and the queries or their latent vector. A query
as projected has a head's plain part, then its rotated one; a cached row, and a query as attention takes it, has the
latent part first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..simd.formats import CacheTag

# columns of the table of a layer's addresses
QUERY, QUERY_SCALE, QUERY_NORM, NORM, KEYS, KEYS_SCALE, VALUES, VALUES_SCALE = range(8)
LATENT_COLUMNS = 8


class Latent(NamedTuple):
    """Numbers are sizes in values unless the name says bytes, then addresses. The owner keeps the arrays alive."""

    cache_tag: CacheTag
    kv_rank: int
    kv_padded: int  # the latent part of a row
    rope_padded: int
    plain_padded: int
    value_padded: int
    query_rank: int  # 0: queries come from the hidden state directly
    query_padded: int
    query_offset: int  # in a row of the first projection
    queries_padded: int  # channels of all projected queries
    input_rows: int  # of one head's inputs of the product with its matrix
    input_stride: int  # bytes of such a row
    eps: float  # of the norms of latent vectors
    table: npt.NDArray[np.int64]  # [layers, LATENT_COLUMNS]
    heads: int  # [max_tokens, queries_padded] float32, the projected queries where they have a latent vector
    inputs: int  # [heads][input_rows][input_stride] GEMM input
    mixed: int  # [max_tokens][heads][head_padded] float32: latent queries, then what attention makes of them
    still: int  # [kv_padded] float32: a row of a rotary table that turns nothing
    ones: int  # [kv_padded] float32
    zeros: int
