"""The tables of docs/models.md of what runs where, and what proves it. `python -m tests.docs.models_table` writes them.

Made from what the program itself knows: the families' registry, GGUF's architectures and types, the readers of
quantised layers, what the GPU refuses; and from the tests: the variants that are compared with transformers, the files
that other libraries wrote. A family, a format or a test that comes or goes changes the tables.
"""

import json
import random
from pathlib import Path
from types import ModuleType
from typing import Final

from triolet.models.checkpoint.families.families import FAMILIES
from triolet.models.checkpoint.gguf.architectures import ARCHITECTURES
from triolet.models.checkpoint.gguf.matrix import PLAIN, QUANTISED, read_weight
from triolet.models.checkpoint.gguf.types import BLOCKS
from triolet.models.checkpoint.quantised.method import METHODS, read_quantised
from triolet.models.checkpoint.safetensors import WEIGHT_TYPES
from triolet.models.checkpoint.stored import CodedMatrix, StoredMatrix
from triolet.models.checkpoint.weight_files import FORMS
from triolet.models.errors import UnsupportedModel
from triolet.models.gpu.stored import format_of
from triolet.models.gpu.structure import refuse_structure

from ..models.checkpoint import test_fused, test_safetensors
from ..models.checkpoint.gguf import test_types
from ..models.checkpoint.gguf.cases import converted
from ..models.checkpoint.pytorch import test_file
from ..models.checkpoint.quantised import test_golden, test_method
from ..models.checkpoint.quantised.cases import CORPUS, Held, decoded
from ..models.parity_variants import VARIANTS, architecture_of, spec_of

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "models.md"
ROOT: Final = Path(__file__).resolve().parents[2]
GGUF_TESTS: Final = ROOT / "tests" / "models" / "checkpoint" / "gguf"
# By method, or where it has several, by kind: its tests, and what they compare with.
PROOFS: Final[dict[str, tuple[ModuleType, str, str]]] = {
    "awq": (test_method, "test_awq", "its definition"),
    "gptq": (test_method, "test_gptq", "its definition"),
    "GPTQ 8-bit": (test_method, "test_gptq_with_act_order_and_with_8_bits", "its definition"),
    "GPTQ 4-bit with act-order": (test_method, "test_gptq_with_act_order_and_with_8_bits", "its definition"),
    "compressed-tensors": (test_golden, "test_layers_that_compressed_tensors_wrote", "the library's own layers"),
    "fp8": (test_method, "test_fp8_with_scales_of_blocks_rows_and_all", "its definition"),
    "bitsandbytes": (test_method, "test_bitsandbytes_nf4_with_nested_scales", "its definition"),
    "bitsandbytes int8": (test_method, "test_int8_per_channel", "its definition"),
    "mxfp4": (test_fused, "test_numbers_of_mxfp4_are_exact", "its definition"),
    "torchao": (test_golden, "test_layers_that_torchao_wrote", "the library's own layers"),
}


def proof_of(module: ModuleType, test: str) -> str:
    """A test by its name, which must exist."""
    assert callable(getattr(module, test, None)), f"{module.__name__} has no {test}"
    return f"`{(module.__file__ or '').removeprefix(f'{ROOT}/')}`: `{test}`"


def refused_on_gpu(variant: str) -> str | None:
    try:
        refuse_structure(spec_of(variant, random.Random(0)))
    except UnsupportedModel as error:
        return error.key
    return None


def families_table() -> str:
    """A row for each architecture: its name in GGUF files, the devices, and the variants compared with transformers."""
    lines = [
        "| `architectures` | in GGUF | CPU | GPU | variants compared with transformers |",
        "|---|---|---|---|---|",
    ]
    written = {name for case in converted().values() for name in case["config"]["architectures"]}
    for architecture in FAMILIES:
        variants = [name for name in VARIANTS if architecture_of(name) == architecture]
        rows = [name.split(" with ")[0] for name, row in ARCHITECTURES.items() if row.name == architecture]
        in_gguf = ", ".join(f"`{name}`" for name in rows)
        if rows and architecture not in written:
            in_gguf += ", not compared"
        refused = {name: refused_on_gpu(name) for name in variants}
        why = ", ".join(sorted({part for part in refused.values() if part is not None}))
        on_gpu = f"no: {why}" if all(refused.values()) else f"yes, but: {why}" if why else "yes"
        cases = ", ".join(f"`{name}`" for name in variants) or "none"
        lines.append(f"| `{architecture}` | {in_gguf} | {'yes' if variants else 'not compared'} | {on_gpu} | {cases} |")
    return "\n".join(lines) + "\n"


def formats_table() -> str:
    """A row for each form of weights: what the devices make of it, and the test that holds it to somebody else's."""
    lines = ["| weights | CPU | GPU | compared with | test |", "|---|---|---|---|---|"]

    def row(weights: str, cpu: str, gpu: str, other: str, proof: str) -> None:
        lines.append(f"| {weights} | {cpu} | {gpu} | {other} | {proof} |")

    types = ", ".join(WEIGHT_TYPES)
    row(
        f"safetensors: {types}",
        "yes",
        "in bfloat16",
        "the library",
        proof_of(test_safetensors, "test_agrees_with_the_formats_own_library"),
    )
    names = ", ".join(f"`{form.file}`" for form in FORMS[1:])
    row(f"{names}: {types}", "yes", "in bfloat16", "torch", proof_of(test_file, "test_what_torch_saves"))
    for method in (*METHODS, "mxfp4"):
        for kind, (runs, gpu) in sorted(layers_of(method).items()):
            module, test, other = PROOFS.get(kind, PROOFS[method])
            row(f"`{method}`: {kind}", runs, gpu, other, proof_of(module, test))
    golden = set(json.loads((GGUF_TESTS / "golden.json").read_text()))
    reads = proof_of(test_types, "test_is_the_librarys_value_bit_for_bit")
    for (runs, gpu), kinds in gguf_types().items():
        compared = [kind for kind in kinds if kind in golden]
        assert set(kinds) - set(compared) <= {"F32"}, "F32 needs no comparison"
        row(f"GGUF: {', '.join(kinds)}", runs, gpu, "the gguf package", reads)
    return "\n".join(lines) + "\n"


def layers_of(method: str) -> dict[str, tuple[str, str]]:
    """The kinds of layers of a method in the fuzzer's corpus, and how a CPU and a GPU run them."""
    found: dict[str, tuple[str, str]] = {}
    for path in sorted(CORPUS.glob("whole-*")):
        case = decoded(path.read_bytes())
        assert case is not None, path
        config, parts = case
        if config["quant_method"] == method:
            matrices = read_quantised({"quantization_config": config}, Held(parts)).matrices
            found |= {matrix.format: (how_it_runs(matrix), on_gpu(matrix, 128)) for matrix in matrices.values()}
    return found


def how_it_runs(matrix: StoredMatrix) -> str:
    if not isinstance(matrix, CodedMatrix):
        return "widened"
    return "as stored, 4 bits (6 without VNNI)" if matrix.layout.fp4 else f"as stored, {matrix.layout.bits} bits"


def on_gpu(matrix: StoredMatrix, group: int | None = None) -> str:
    """`group`: in the place of the corpus's, whose matrices are tiny."""
    if not isinstance(matrix, CodedMatrix):
        return "widened"
    kind = format_of(matrix.layout._replace(group=group or matrix.layout.group), 4096)
    return "widened" if kind is None else f"as stored, {kind.bits} bits"


def gguf_types() -> dict[tuple[str, str], list[str]]:
    """How a CPU and a GPU run the types, and which they are."""
    found: dict[tuple[str, str], list[str]] = {}
    for kind in (*PLAIN, *QUANTISED):
        elements, size = BLOCKS[kind]
        weight = read_weight("w", kind, (1, elements), memoryview(bytes(size)))
        runs = "yes", "in bfloat16"
        if isinstance(weight, StoredMatrix):
            runs = how_it_runs(weight), on_gpu(weight)
        found.setdefault(runs, []).append(kind)
    return found


TABLES: Final = {"families": families_table, "formats": formats_table}


def page_with_tables() -> str:
    """The page with each table between its markers."""
    page = PAGE.read_text(encoding="utf-8")
    for name, table in TABLES.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        before, rest = page.split(begin)
        page = before + begin + table() + end + rest.split(end)[1]
    return page


if __name__ == "__main__":
    PAGE.write_text(page_with_tables(), encoding="utf-8")
