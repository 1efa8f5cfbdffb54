"""A model's description, as the GPU path reads it: nothing of it is ignored, and what it makes a pass launch is what
the memory plan counts."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import replace

from triolet.kernels.experts import gpu_route
from triolet.kernels.experts.routing import Routing
from triolet.kernels.gpu.launches import KernelForm, recording
from triolet.loadtest.device.compile_catalogue import RecordingDevice
from triolet.models.checkpoint.experts import ExpertSpec
from triolet.models.checkpoint.spec import LayerSpec, ModelSpec
from triolet.models.errors import UnsupportedModel
from triolet.models.gpu import structure, working_memory
from triolet.models.gpu.buckets import GpuSizes
from triolet.models.gpu.experts import more_launches_of_experts
from triolet.models.gpu.gpu import GpuModel
from triolet.models.gpu.structure import refuse_structure

from .gpu_house import SPEC
from .test_variants import OneShape, accepted, spec_here

SHAPES = 2  # each runs once before it is captured
READ: dict[type[Struct], str] = {  # what the GPU path reads itself
    ModelSpec: (
        "family vocab_size hidden_size layers num_heads num_kv_heads head_dim mlp_size norm_eps max_position names "
        "layer_norm norm_bias norm_offset parallel qkv_bias out_bias mlp_bias qk_norm rotary_dim score_cap sinks "
        "latent experts activation gated tied_embeddings embedding_factor logit_factor logit_cap"
    ),
    LayerSpec: "rope experts window",
    ExpertSpec: (
        "count width routing corrected biased shared_width shared_gated gate_limit gate_slope up_offset"
    ),
    Routing: "chosen scores normalised scale groups chosen_groups group_best",
}  # fmt: skip
NOT_READ: dict[
    type[Struct], str
] = {  # by `score_scale` and `rotary_order`, and what the reader of the checkpoint alone needs
    ModelSpec: "query_scale interleaved_rotary unused_layers",
    ExpertSpec: "names",
}


@pytest.mark.parametrize("struct", READ)
def test_every_field_of_a_description_is_read(struct: type[Struct]) -> None:
    """A new one must be implemented or refused, and then stand here."""
    read = READ[struct].split()
    assert sorted(struct.__struct_fields__) == sorted([*read, *NOT_READ.get(struct, "").split()])
    folder = Path(structure.__file__).parent
    files = [Path(gpu_route.__file__)] if struct is Routing else sorted(folder.glob("*.py"))
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text())))
    assert set(read) <= {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def test_what_no_kernel_has_is_refused() -> None:
    parallel = replace(SPEC, parallel=True, layers=(LayerSpec(experts=True),), experts=ExpertSpec(
        count=2, width=64, routing=Routing(chosen=1)))  # fmt: skip
    with pytest.raises(UnsupportedModel, match="experts beside attention"):
        refuse_structure(parallel)


def launched(spec: ModelSpec) -> int:
    """The launches of our own kernels before a worker is ready, recorded alone."""
    found = list[KernelForm]()
    with recording(found.append):
        GpuModel(RecordingDevice(90), spec, None, GpuSizes(max_model_len=128, num_blocks=4, buckets=OneShape()))
    return len(found)


def check_launches(variant: str) -> None:
    spec = spec_here(variant, 1)
    of_layer, other = working_memory.more_launches(spec)
    expected = spec.num_layers * of_layer + other
    if spec.experts is not None:
        sparse = sum(kind.experts for kind in spec.layers)
        expected += sparse * more_launches_of_experts(spec.experts, "none")
    assert launched(spec) - launched(SPEC) == SHAPES * expected


@pytest.mark.parametrize("variant", accepted())
def test_launches_beyond_those_of_a_plain_model_are_counted(variant: str) -> None:
    check_launches(variant)


@pytest.mark.parametrize("variant", ["cohere-head-norms", "olmo2-gqa"])
def test_a_launch_that_is_not_counted_is_noticed(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the logits' factor, and of norms."""

    def none(_: ModelSpec) -> tuple[int, int]:
        return 0, 0

    monkeypatch.setattr(working_memory, "more_launches", none)
    with pytest.raises(AssertionError):
        check_launches(variant)
