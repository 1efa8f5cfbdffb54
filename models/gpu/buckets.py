"""The shapes of a step on a GPU: all are compiled and captured before the worker is ready.

A step is padded to the next larger shape. Decode-only steps (one token per chunk) have their own shape for
every few rows. Others pad their tokens, by at most a quarter from 64 tokens on. A pass uses two graphs: layers do not
depend on logit rows, nor the head on tokens, so the number of graphs is a sum and not a product. Imports no torch.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import product, zip_longest
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from ...protocol.settings import BLOCK_SIZE, AdapterPlaces

if TYPE_CHECKING:
    from .stored import StoredFormats


class LayersShape(NamedTuple):
    """What the launches of the layers depend on."""

    tokens: int
    decode: bool
    strict: bool
    adapted: bool


class HeadShape(NamedTuple):
    """What the launches of the head depend on."""

    rows: int
    strict: bool


class PassShape(NamedTuple):
    """Padded sizes of one forward pass."""

    tokens: int
    chunks: int
    rows: int  # rows of logits
    decode: bool  # one token per chunk
    strict: bool = False  # every launch is batch-invariant, because some row is under strict determinism
    adapted: bool = False  # with the launches of LoRA adapters, because some row has one

    @property
    def layers(self) -> LayersShape:
        return LayersShape(self.tokens, self.decode, self.strict, self.adapted)

    @property
    def head(self) -> HeadShape:
        return HeadShape(self.rows, self.strict)


class Buckets:
    """All shapes of a worker, derived from its largest step."""

    def __init__(self, *, max_tokens: int, max_chunks: int, max_rows: int, adapters: bool = False) -> None:
        """`adapters`: rows may have some."""
        self._adapted = (False, True) if adapters else (False,)
        self.chunks = min(max_chunks, max_tokens)
        self.decode = row_sizes(min(self.chunks, max_rows))
        self.tokens = token_sizes(max_tokens)
        self.rows = row_sizes(max_rows)

    def shape(self, lengths: list[int], rows: int, *, strict: bool = False, adapted: bool = False) -> PassShape:
        """The smallest shape for chunks of these lengths."""
        if max(lengths) == 1 and rows <= len(lengths) <= self.decode[-1]:
            size = _least(self.decode, len(lengths))
            return PassShape(size, size, size, True, strict, adapted)
        return PassShape(
            _least(self.tokens, sum(lengths)), self.chunks, _least(self.rows, rows), False, strict, adapted
        )

    @property
    def graph_count(self) -> int:
        """Number of captured graphs: one per size of each half."""
        shapes = self.every()
        return len({shape.layers for shape in shapes}) + len({shape.head for shape in shapes})

    @property
    def kinds(self) -> list[tuple[bool, bool]]:
        """(strict, adapted) of all shapes."""
        return list(product((False, True), self._adapted))

    def every(self) -> list[PassShape]:
        """Shapes that together cover every size; after they have run, nothing more is compiled."""
        return [shape for kind in self.kinds for shape in self.mixed(*kind) + self.decoding(*kind)]

    def mixed(self, strict: bool, adapted: bool = False) -> list[PassShape]:
        """Every number of tokens, and every number of rows: one with adapters, which the head does not know."""
        pairs = zip_longest(self.tokens, self.rows[: 1 if adapted else None])
        return [
            PassShape(tokens or self.tokens[0], self.chunks, rows or self.rows[0], False, strict, adapted)
            for tokens, rows in pairs
        ]

    def decoding(self, strict: bool, adapted: bool = False) -> list[PassShape]:
        return [PassShape(size, size, size, True, strict, adapted) for size in reversed(self.decode)]


class GpuSizes(Struct, frozen=True, kw_only=True):
    """A GPU model's parameters: its number formats and the shapes of its steps."""

    quantize: str = "none"
    stored: StoredFormats = {}  # of matrices that the checkpoint stores quantised
    kv_cache_dtype: str = "bfloat16"
    max_model_len: int
    buckets: Buckets
    adapters: AdapterPlaces = AdapterPlaces()
    num_blocks: int = 0  # of the KV cache; set by the memory plan

    @property
    def table_width(self) -> int:
        """Blocks of the longest sequence."""
        return -(-self.max_model_len // BLOCK_SIZE)

    @property
    def slots(self) -> int:
        """Slots for three steps, two of them in flight. The first third have counts of seen tokens."""
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
