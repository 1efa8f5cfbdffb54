"""Every type of tensor against the format's own library, bit for bit, and codes against the numbers they stand for."""

import json
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from triolet.models.checkpoint.gguf.matrix import PLAIN, QUANTISED, GgufMatrix, plain_weight, read_weight
from triolet.models.checkpoint.gguf.types import BLOCKS
from triolet.models.checkpoint.stored import float_part
from triolet.models.errors import UnsupportedModel

from .golden import COLUMNS, GOLDEN, ROWS, digest, random_bytes

# Scales are of every kind: infinite times zero is what it should be, and no news.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
KNOWN: dict[str, dict[str, Any]] = json.loads(GOLDEN.read_text())


def given(kind: str, shape: tuple[int, ...] = (ROWS, COLUMNS)) -> memoryview:
    elements, size = BLOCKS[kind]
    return memoryview(random_bytes(kind, math.prod(shape) // elements * size))


def values(kind: str, data: memoryview) -> npt.NDArray[np.float32]:
    return float_part(read_weight("w", kind, (ROWS, COLUMNS), data), 0, ROWS)


def test_every_type_is_known_to_the_library() -> None:
    assert set(KNOWN) | {"F32"} == {*QUANTISED, *PLAIN}


@pytest.mark.parametrize("kind", KNOWN)
def test_is_the_librarys_value_bit_for_bit(kind: str) -> None:
    found = values(kind, given(kind))
    assert [repr(float(value)) for value in found[0, ::200]] == KNOWN[kind]["first"]
    assert digest(found) == KNOWN[kind]["digest"]
    assert np.isnan(found).any() == (kind != "MXFP4")  # scales of every kind are among them
    spoilt = bytearray(given(kind))
    spoilt[len(spoilt) // 2] ^= 0x11
    assert digest(values(kind, memoryview(spoilt))) != KNOWN[kind]["digest"]


@pytest.mark.parametrize("kind", QUANTISED)
def test_rows_are_read_on_their_own(kind: str) -> None:
    matrix = GgufMatrix(kind, (ROWS, COLUMNS), given(kind))
    whole = matrix.rows(0, ROWS)
    np.testing.assert_array_equal(matrix.rows(7, 9), whole[7:9])
    np.testing.assert_array_equal(matrix[3:50].rows(1, 2), whole[4:5])
    assert matrix.rows(5, 5).shape == (0, COLUMNS)
    assert matrix.format == f"GGUF {kind}"
    elements, size = BLOCKS[kind]
    assert 0 <= 8 * size / elements - (matrix.file_bits or matrix.layout.bits) <= 1  # the rest are scales
    assert matrix.ordered(np.arange(3)).file_bits == matrix.file_bits
    codes = matrix.codes(0, 4).codes
    assert codes.max() < 1 << matrix.layout.bits


def test_plain_types() -> None:
    numbers = np.array([[1.5, -2, 0], [np.inf, 1e-7, 65504]], np.float32)
    bits = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    assert plain_weight("w", "F32", memoryview(numbers.tobytes())).tolist() == numbers.reshape(-1).tolist()
    widened = plain_weight("w", "F16", memoryview(numbers.astype(np.float16).tobytes()))
    np.testing.assert_array_equal(widened.reshape(2, 3), numbers.astype(np.float16).astype(np.float32))
    stored = read_weight("w", "BF16", (2, 3), memoryview(bits.tobytes()))
    assert isinstance(stored, np.ndarray)
    assert stored.dtype == np.uint16
    assert stored.tolist() == bits.tolist()


def test_a_quantised_vector_is_widened() -> None:
    vector = read_weight("w", "Q8_0", (COLUMNS,), given("Q8_0", (COLUMNS,)))
    assert isinstance(vector, np.ndarray)
    np.testing.assert_array_equal(vector, values("Q8_0", given("Q8_0"))[0])


@pytest.mark.parametrize("kind", sorted(BLOCKS.keys() - QUANTISED.keys() - set(PLAIN)))
def test_other_types_are_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedModel, match=rf"w = '{kind}'"):
        read_weight("w", kind, (1, BLOCKS[kind][0]), given(kind, (1, BLOCKS[kind][0])))
