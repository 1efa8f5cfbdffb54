"""Integers, scales, zero points and minima as checkpoints store them: products against the file's own float32."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from triolet.kernels.gemm.codes import CodeLayout
from triolet.kernels.gemm.gpu_launch import gemm, launches_of
from triolet.kernels.gemm.gpu_operands import COUNTER_BYTES, bytes_of, with_room
from triolet.kernels.gemm.gpu_reference import gemm_reference
from triolet.kernels.gemm.gpu_table import Few, launch_for, split_of
from triolet.kernels.gpu.launches import KernelForm, recording
from triolet.loadtest.device.gpu_case import Wrong
from triolet.loadtest.device.gpu_check import drawn, no_worse
from triolet.loadtest.device.random_stored import LAYOUTS, Held, held
from triolet.models.gpu.stored import StoredFormat, format_of, pack_stored, stored_shape

INPUTS, ROWS = 256, 40
# What the kernels make of each layout. Held with minima, scales of zero or other integers they would be other numbers.
FORMATS = {
    "Q8_0": StoredFormat(8, 32, "float16"),
    "Q4_0": StoredFormat(4, 32, "float16"),
    "Q4_1": StoredFormat(4, 32, "float16", "float16"),
    "Q4_K": StoredFormat(4, 32, "float32", "float32"),
    "Q6_K": StoredFormat(8, 16, "float32"),
    "AWQ": StoredFormat(4, 128, "float16", "zeros"),
    "compressed-tensors": StoredFormat(4, 128, "bfloat16"),
    "MXFP4": StoredFormat(8, 32, "bfloat16"),
    "W8A8": StoredFormat(8, 0, "float32"),
    "GPTQ 8-bit": StoredFormat(8, 64, "float16"),
}
ALL = {**LAYOUTS, "GPTQ 8-bit": CodeLayout(8, 128, "float16")}


def planted(matrix: Held, kind: StoredFormat) -> Held:
    """The same with one thing wrong: the last group's minima, or else its scales, are those of the first."""
    found = matrix.codes(0, len(matrix))
    part = "scales" if found.minima is None else "minima"
    wrong = np.array(getattr(found, part))
    wrong[:, -1] = wrong[:, 0] if kind.group else wrong[::-1, 0]
    return Held(matrix.layout, found._replace(**{part: wrong}))


@pytest.mark.parametrize("name", FORMATS)
def test_products_of_stored_matrices(name: str) -> None:
    """Scaled after the product (5 rows), before it (65), and unpacked (1,025): with x = identity, to the bit."""
    matrix, other = held(ALL[name], ROWS, INPUTS), held(ALL[name], ROWS, INPUTS, seed=1)
    kind = FORMATS[name]
    assert format_of(matrix.layout, INPUTS) == kind
    packed = pack_stored([matrix, other], kind)  # of two matrices that are stacked
    meant = torch.from_numpy(np.concatenate([matrix.rows(0, ROWS), other.rows(0, ROWS)]))
    for rows in (5, 65):
        x = drawn(rows, rows, INPUTS).bfloat16()
        exact, plain = gemm_reference(x, meant), x @ meant.bfloat16().T
        no_worse(gemm(x, packed, capability=90), plain, exact)
        wrong = pack_stored([planted(matrix, kind), other], kind)
        with pytest.raises(Wrong):
            no_worse(gemm(x, wrong, capability=90), plain, exact)
    unpacked = gemm(torch.eye(1025, INPUTS, dtype=torch.bfloat16), packed, capability=90)
    assert torch.equal(unpacked[:INPUTS], meant.T.bfloat16())


@pytest.mark.parametrize("name", FORMATS)
def test_the_shape_is_that_of_the_packed_matrix(name: str) -> None:
    packed = pack_stored([held(ALL[name], ROWS, INPUTS)], FORMATS[name])
    shape = stored_shape(ROWS, INPUTS, FORMATS[name])
    for field in ("weight", "scales", "offsets", "minima"):
        real, planned = getattr(packed, field), getattr(shape, field)
        assert (real is None) == (planned is None)
        assert real is None or (real.shape, real.dtype) == (planned.shape, planned.dtype)


@pytest.mark.parametrize("name", FORMATS)
def test_launches_and_workspace_are_planned_as_they_are_made(name: str) -> None:
    """A tile with room for more scales has other channels, so K is cut otherwise: with 5,120 or 7,680 of them."""
    for rows, channels in itertools.product((16, 32, 64), (640, 5120, 7680)):
        weight = stored_shape(channels, 4096, FORMATS[name])
        found: list[KernelForm] = []
        with recording(found.append):
            gemm(torch.empty(rows, 4096, dtype=torch.bfloat16, device="meta"), weight, capability=80)
        assert len(found) == launches_of(weight, rows, 80, strict=False)
        launch = launch_for(weight.format, 80, rows, strict=False)
        assert isinstance(launch, Few)
        parts = split_of(with_room(weight, launch), channels, 4096)
        assert ("parts" in found[0].values) == (parts == 1)  # None, where K is not split
        assert bytes_of(weight, rows, launch) == (COUNTER_BYTES + 4 * parts * rows * channels if parts > 1 else 0)


def test_what_no_kernel_multiplies_is_widened() -> None:
    assert format_of(CodeLayout(6, 32, "two-level", "two-level"), 256) is None  # Q5_K
    assert format_of(CodeLayout(8, 128, "float16", "zeros"), 256) is None
    assert format_of(CodeLayout(4, 48, "float16"), 96) is None
    assert format_of(CodeLayout(4, 192, "bfloat16"), 192) == StoredFormat(4, 64, "bfloat16")  # a channel
