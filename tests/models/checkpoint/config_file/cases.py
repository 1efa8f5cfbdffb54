"""The fuzzer's target for what a folder says of a decoder: a line with its config.json, then generation_config.json."""

from pathlib import Path

from triolet.models.checkpoint.families.families import load_spec
from triolet.models.checkpoint.generation import read_generation
from triolet.models.checkpoint.rope import query_scales, rope_tables

from ..fuzz import write_parts

MOST_DIMENSIONS = 1 << 12  # of tables that are made: a plan refuses what does not fit into memory


def read_input(folder: Path, data: bytes) -> bool:
    write_parts(folder, data, "config.json", "generation_config.json")
    spec = load_spec(folder)
    read_generation(folder, spec.vocab_size)
    for rope in {layer.rope for layer in spec.layers if spec.turned_dim <= MOST_DIMENSIONS}:
        rope_tables(rope, spec.turned_dim, 8, spec.rotary_dim)
        query_scales(rope, 8)
    return True
