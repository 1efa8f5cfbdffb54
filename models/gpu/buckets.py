"""The shapes that a step may have on a GPU: each is compiled, and captured, before the worker is ready.

A step is padded to the next larger shape. Decode-only steps (one token of every chunk) have a shape of their own for
every few rows and are one graph. The others pad their tokens, by a quarter at most from 64 tokens on, and are two
graphs: layers do not depend on the rows of logits, nor the head on the tokens, so sizes add up and do not multiply.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import zip_longest
from typing import NamedTuple

from msgspec import Struct

from ...protocol.settings import BLOCK_SIZE


class PassShape(NamedTuple):
    """Padded sizes of one forward pass."""

    tokens: int
    chunks: int
    rows: int  # of logits
    decode: bool  # one token per chunk
    strict: bool = False  # every launch batch-invariant: some row is under strict determinism


class Buckets:
    """All shapes of a worker, from its largest step."""

    def __init__(self, *, max_tokens: int, max_chunks: int, max_rows: int) -> None:
        self.chunks = min(max_chunks, max_tokens)
        self.decode = row_sizes(min(self.chunks, max_rows))
        self.tokens = token_sizes(max_tokens)
        self.rows = row_sizes(max_rows)

    def shape(self, lengths: list[int], rows: int, *, strict: bool = False) -> PassShape:
        """The least shape for chunks of these lengths."""
        if max(lengths) == 1 and rows <= len(lengths) <= self.decode[-1]:
            size = _least(self.decode, len(lengths))
            return PassShape(size, size, size, True, strict)
        return PassShape(_least(self.tokens, sum(lengths)), self.chunks, _least(self.rows, rows), False, strict)

    @property
    def graph_count(self) -> int:
        """Graphs that are captured: one for each decode shape, one for each size of the two halves of mixed ones."""
        return 2 * (len(self.decode) + len(self.tokens) + len(self.rows))

    def every(self) -> list[PassShape]:
        """Shapes that between them have every size: what must have run before nothing is compiled any more."""
        return [shape for strict in (False, True) for shape in self.mixed(strict) + self.decoding(strict)]

    def mixed(self, strict: bool) -> list[PassShape]:
        """Every number of tokens, and every number of rows."""
        pairs = zip_longest(self.tokens, self.rows)
        return [
            PassShape(tokens or self.tokens[0], self.chunks, rows or self.rows[0], False, strict)
            for tokens, rows in pairs
        ]

    def decoding(self, strict: bool) -> list[PassShape]:
        return [PassShape(size, size, size, True, strict) for size in reversed(self.decode)]


class GpuSizes(Struct, frozen=True, kw_only=True):
    """What a model on a GPU is made for: its number formats and the shapes of its steps."""

    quantize: str = "none"
    kv_cache_dtype: str = "bfloat16"
    max_model_len: int
    buckets: Buckets
    num_blocks: int = 0  # of the KV cache; the memory plan says how many

    @property
    def table_width(self) -> int:
        """Blocks of the longest sequence."""
        return -(-self.max_model_len // BLOCK_SIZE)

    @property
    def slots(self) -> int:
        """Those of three steps, two of them in flight, of which the first third have counts of seen tokens."""
        return 3 * self.buckets.chunks


def row_sizes(most: int) -> list[int]:
    """1, 2, 4, 8, 16, 24, 32, … and the largest itself."""
    return sorted({size for size in (1, 2, 4, *range(8, most, 8)) if size < most} | {most})


def token_sizes(most: int) -> list[int]:
    """Four sizes for every doubling, from 16 on, and the largest itself."""
    sizes, size = {most}, 16
    while size < most:
        sizes.add(size)
        size += max(16, 1 << (size.bit_length() - 3))
    return sorted(sizes)


def _least(sizes: list[int], wanted: int) -> int:
    return sizes[bisect_left(sizes, wanted)]
