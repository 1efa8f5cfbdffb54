"""Matrices that stay as a checkpoint stores them: quantised, mapped from its file, read by rows.

A consumer that does not know the format takes `rows`, a few hundred at a time: no large matrix is ever whole in
float32. One that runs integers as they are takes the `codes` of a `CodedMatrix` (kernels/gemm/codes.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ...kernels.gemm.codes import CodeLayout, CodeRows, float_rows
from .safetensors import WeightArray

FloatArray = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.int64]
CHUNK_ROWS = 512  # read at a time: 16 MB of float32 at 8192 inputs


class StoredMatrix(ABC):
    """[outputs, inputs] weights in a format of their file."""

    shape: tuple[int, int]
    format: str  # for reports: "GGUF Q4_K", "AWQ 4-bit"

    @abstractmethod
    def rows(self, first: int, last: int) -> FloatArray:
        """Rows first to last - 1 as float32 [last - first, inputs], exactly what the file's own library gives."""

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, part: slice) -> StoredMatrix:
        """Some rows, which nothing copies. Raises ValueError for a step."""
        first, last, step = part.indices(self.shape[0])
        if step != 1:
            raise ValueError(f"a step of {step}: only neighbouring rows are one matrix")
        return self.ordered(np.arange(first, max(first, last)))

    def ordered(self, order: IndexArray) -> StoredMatrix:
        """The rows in this order. Neighbours should stay near each other: what lies between them is read too."""
        return _OrderedMatrix(self, order)


class CodedMatrix(StoredMatrix):
    """A matrix of integers with scales."""

    layout: CodeLayout
    file_bits: int | None = None  # of a code in the file, where they are fewer than the layout's

    @abstractmethod
    def codes(self, first: int, last: int) -> CodeRows:
        """Rows first to last - 1 as they are."""

    def rows(self, first: int, last: int) -> FloatArray:
        return float_rows(self.layout, self.codes(first, last))

    def ordered(self, order: IndexArray) -> CodedMatrix:
        return _OrderedCodes(self, order)


def _around(order: IndexArray, first: int, last: int) -> tuple[int, int, IndexArray]:
    """For rows first to last - 1 of an order: the rows to read, and the places of the wanted ones among them."""
    wanted = order[first:last]
    begin = int(wanted.min()) if len(wanted) else 0
    return begin, int(wanted.max()) + 1 if len(wanted) else 0, wanted - begin


class _OrderedMatrix(StoredMatrix):
    def __init__(self, matrix: StoredMatrix, order: IndexArray) -> None:
        self._matrix, self._order = matrix, order
        self.shape, self.format = (len(order), matrix.shape[1]), matrix.format

    def rows(self, first: int, last: int) -> FloatArray:
        begin, end, places = _around(self._order, first, last)
        return self._matrix.rows(begin, end)[places]


class _OrderedCodes(CodedMatrix):
    def __init__(self, matrix: CodedMatrix, order: IndexArray) -> None:
        self._matrix, self._order = matrix, order
        self.shape, self.format, self.layout = (len(order), matrix.shape[1]), matrix.format, matrix.layout
        self.file_bits = matrix.file_bits

    def codes(self, first: int, last: int) -> CodeRows:
        begin, end, places = _around(self._order, first, last)
        return self._matrix.codes(begin, end).picked(places)


Weight = WeightArray | StoredMatrix  # what `read_tensor` gives for a matrix


def same_values(left: Weight, right: Weight) -> bool:
    """Whether two matrices hold the same numbers, compared by parts."""
    if left.shape != right.shape:
        return False
    pairs = zip(float_parts(left), float_parts(right), strict=True)
    return all(np.array_equal(one, other) for one, other in pairs)


def float_parts(matrix: Weight) -> Iterator[FloatArray]:
    """The rows as float32, some at a time, in order."""
    for first in range(0, matrix.shape[0], CHUNK_ROWS):
        yield float_part(matrix, first, min(first + CHUNK_ROWS, matrix.shape[0]))


def float_part(matrix: Weight, first: int, last: int) -> FloatArray:
    """Rows first to last - 1 as float32."""
    if isinstance(matrix, StoredMatrix):
        return matrix.rows(first, last)
    part = matrix[first:last]
    if part.dtype == np.uint16:
        return (part.astype(np.uint32) << 16).view(np.float32)
    return np.asarray(part, np.float32)
