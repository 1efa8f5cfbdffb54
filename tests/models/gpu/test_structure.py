"""What the GPU's kernels do not have is refused by name, and what they have is not."""

import pytest
from msgspec.structs import replace

from triolet.models.checkpoint.rope import RopeSpec
from triolet.models.checkpoint.spec import LayerSpec, alike
from triolet.models.errors import UnsupportedModel
from triolet.models.gpu.structure import refuse_structure

from .gpu_house import SPEC


def test_layers_of_one_kind_are_taken() -> None:
    refuse_structure(SPEC)
    refuse_structure(
        replace(SPEC, layers=alike(2, RopeSpec(kind="yarn", factor=4.0, original_max_position=16), window=8))
    )


def test_rotations_that_no_kernel_has_are_refused() -> None:
    growing = RopeSpec(kind="yarn", factor=4.0, original_max_position=16, query_growth=0.1)
    with pytest.raises(UnsupportedModel, match=r"queries that grow with their position = 0\.1: .*--device cpu"):
        refuse_structure(replace(SPEC, layers=alike(2, growing)))
    with pytest.raises(UnsupportedModel, match="layers that differ"):
        refuse_structure(replace(SPEC, layers=(LayerSpec(), LayerSpec(rope=None))))
