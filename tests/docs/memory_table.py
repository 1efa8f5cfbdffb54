"""The table of docs/models.md, computed as a load is planned. `python -m tests.docs.memory_table` writes it anew."""

from pathlib import Path
from typing import Literal

from triolet.models.checkpoint.spec import ModelSpec, alike
from triolet.models.cpu.memory import CpuSizes, MemoryNeeds, memory_needs
from triolet.protocol.settings import BLOCK_SIZE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- memory: begin -->\n", "<!-- memory: end -->\n"

Format = Literal["bfloat16", "int8", "int4"]

# Vocabulary, hidden size, layers, heads, KV heads, head size, MLP size, tied embeddings; from each model's config.json.
SHAPES = {
    "bundled": (2_048, 256, 6, 8, 2, 32, 704, True),
    "Qwen3 0.6B": (151_936, 1_024, 28, 16, 8, 128, 3_072, True),
    "Llama 3.2 1B": (128_256, 2_048, 16, 32, 8, 64, 8_192, True),
    "Qwen2.5 1.5B": (151_936, 1_536, 28, 12, 2, 128, 8_960, True),
    "Qwen3 4B": (151_936, 2_560, 36, 32, 8, 128, 9_728, True),
    "Mistral 7B v0.3": (32_768, 4_096, 32, 32, 8, 128, 14_336, False),
    "Llama 3.1 8B": (128_256, 4_096, 32, 32, 8, 128, 14_336, False),
}


def spec_of(name: str) -> ModelSpec:
    vocabulary, hidden, layers, heads, kv_heads, head, mlp, tied = SHAPES[name]
    return ModelSpec(
        family="llama",
        vocab_size=vocabulary,
        hidden_size=hidden,
        layers=alike(layers),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head,
        mlp_size=mlp,
        norm_eps=1e-5,
        max_position=8_192,
        tied_embeddings=tied,
    )


def needs_of(name: str, weights: Format, cache: Literal["bfloat16", "int8"] = "bfloat16") -> MemoryNeeds:
    sizes = CpuSizes(
        weight_format=weights, cache_format=cache, max_step_tokens=512, max_logit_rows=64, max_model_len=8_192
    )
    return memory_needs(spec_of(name), sizes)


def memory_table() -> str:
    """A row per model: parameters, weights in three formats, KV cache per 1,000 tokens in two."""
    lines = [
        "| model | parameters | weights, bfloat16 | int8 | int4 | KV cache per 1,000 tokens | with int8 |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    formats: tuple[Format, ...] = ("bfloat16", "int8", "int4")
    for name in list(SHAPES)[1:]:
        parameters = spec_of(name).parameters / 1e6
        count = f"{parameters:.1f} M" if parameters < 100 else f"{parameters / 1000:.2f} B"
        weights = [f"{needs_of(name, each).weights_bytes / 1e9:.2f} GB" for each in formats]
        cache = [needs_of(name, "bfloat16", each).kv_block_bytes * 1000 / BLOCK_SIZE for each in ("bfloat16", "int8")]
        lines.append(f"| {' | '.join([name, count, *weights, *(f'{size / 1e6:.1f} MB' for size in cache)])} |")
    return "\n".join(lines) + "\n"


def page_with(table: str) -> str:
    """The page with this table between its markers."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return before + BEGIN + table + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page_with(memory_table()), encoding="utf-8")
