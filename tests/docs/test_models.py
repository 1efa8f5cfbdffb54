"""What docs/models.md says about memory: the table is as a load is planned, and a real load is as the formula says."""

import re

import pytest

from triolet.models.checkpoint.families.families import FAMILIES

from ..conftest import Server
from ..models.checkpoint.quantised import test_method
from ..models.parity_variants import VARIANTS, architecture_of
from . import models_table
from .memory_table import PAGE, SHAPES, Format, memory_table, needs_of, page_with, spec_of

BYTES: dict[Format, float] = {"bfloat16": 2.0, "int8": 1.0, "int4": 0.563}  # of a parameter, as the page says


def test_the_table_is_as_a_load_is_planned() -> None:
    assert PAGE.read_text() == page_with(memory_table()), "write it anew: python -m tests.docs.memory_table"


def test_the_tables_of_what_runs_are_as_the_program_and_its_tests_say() -> None:
    assert PAGE.read_text() == models_table.page_with_tables(), "write them anew: python -m tests.docs.models_table"


def test_every_family_has_a_variant_that_is_compared() -> None:
    compared = {architecture_of(variant) for variant in VARIANTS}
    assert FAMILIES.keys() == compared


def test_a_test_that_is_gone_is_noticed() -> None:
    with pytest.raises(AssertionError, match="has no test_of_nothing"):
        models_table.proof_of(test_method, "test_of_nothing")


def test_the_plan_follows_the_formula() -> None:
    """Within 1 %, for models that are not tiny: matrices are padded."""
    for name in list(SHAPES)[1:]:
        spec = spec_of(name)
        embedding = spec.vocab_size * spec.hidden_size
        matrices = spec.parameters - (0 if spec.tied_embeddings else embedding)
        for weights, size in BYTES.items():
            said = size * matrices + 2 * embedding
            assert abs(needs_of(name, weights).weights_bytes / said - 1) < 0.01, (name, weights)
        cache = 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * 2
        assert needs_of(name, "bfloat16").kv_block_bytes == 64 * cache


def test_a_real_load_is_as_planned(server: Server) -> None:
    """The bundled model, as the shared server has loaded it."""
    log = server.log.read_text()
    weights = re.search(r"weights ([\d.]+) MiB .* KV cache ([\d.]+) MiB", log)
    blocks = re.search(r"KV cache\s+([\d,]+) blocks of 64 tokens in bfloat16", log)
    assert weights, log
    assert blocks, log
    needs = needs_of("bundled", "bfloat16")
    assert abs(float(weights[1]) - needs.weights_bytes / 2**20) < 0.06
    assert abs(float(weights[2]) - int(blocks[1].replace(",", "")) * needs.kv_block_bytes / 2**20) < 0.6
