"""Greedy tokens of rows without penalties, bias, bans or scores: what `sample_rows` gives them, called with less.

numba takes apart every argument of every call, in memory that a step has driven out of the caches: for one row the
twenty of `sample_rows` cost as much as finding the largest logit.
"""

from ..compile_cache import compiled
from .keys import scan
from .rows import NOT_FINITE, OK


@compiled
def greedy_rows(bits, stride, width, tokens, status):
    """One token for every entry of `tokens`; row i is bits[i * stride :][:width], the logits as int32."""
    for index in range(tokens.size):
        tokens[index], usable = scan(bits[index * stride :][:width])
        status[index] = OK if usable else NOT_FINITE
