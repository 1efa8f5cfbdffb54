"""The CPU runner against a float64 decoder put together from the kernels' definitions, and its invariance, bit for
bit.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import get_args

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from triolet.kernels.compile_cache import compilations
from triolet.kernels.gemm.pack import WeightArray
from triolet.kernels.gemm.reference import gemm_reference, round_to_bfloat16
from triolet.kernels.paged_attention.reference import int8_cache_reference, paged_attention_reference
from triolet.kernels.rms_norm.reference import rms_norm_reference
from triolet.kernels.rope.reference import rope_reference
from triolet.kernels.silu_mul.reference import silu_mul_reference
from triolet.kernels.simd.formats import CacheFormat, WeightFormat
from triolet.models.checkpoint.rope import RopeSpec, rope_tables
from triolet.models.checkpoint.spec import ModelSpec, alike
from triolet.models.checkpoint.weights import DecoderWeights, LayerWeights, NormWeights
from triolet.models.cpu.cpu import CpuRunner
from triolet.models.cpu.memory import CpuSizes, memory_needs
from triolet.models.cpu.rows import Batch

FORMATS: list[WeightFormat] = [name for name in get_args(WeightFormat) if name != "stored"]
CACHES: list[tuple[WeightFormat, CacheFormat | None]] = [*((one, None) for one in FORMATS), ("bfloat16", "int8")]
MODEL_LEN, BLOCKS, MOST_TOKENS = 320, 24, 256
PROMPT = 150  # three blocks, the last one ragged
LLAMA = ModelSpec(
    family="llama", vocab_size=957, hidden_size=96, layers=alike(3), num_heads=6, num_kv_heads=2, head_dim=16,
    mlp_size=100, norm_eps=1e-5, max_position=MODEL_LEN,
)  # fmt: skip
SPECS = {
    "llama-gqa-ragged-mlp": LLAMA,
    "qwen2-bias-hidden-40-tied": msgspec.structs.replace(LLAMA, hidden_size=40, qkv_bias=True, tied_embeddings=True),
    "qwen3-norm-head-10": msgspec.structs.replace(LLAMA, head_dim=10, qk_norm="head"),
    "mistral-window-50-head-80": msgspec.structs.replace(LLAMA, head_dim=80, layers=alike(2, window=50)),
    "mqa-8-to-1-head-20": msgspec.structs.replace(LLAMA, num_heads=8, num_kv_heads=1, head_dim=20),
    "mha-head-8": msgspec.structs.replace(LLAMA, num_kv_heads=6, head_dim=8),
}
FloatArray = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]


@cache
def weights_of(name: str) -> DecoderWeights:
    spec, rng = SPECS[name], np.random.default_rng(len(name))

    def normal(*shape: int, deviation: float) -> npt.NDArray[np.float32]:
        return (rng.standard_normal(shape) * deviation).astype(np.float32)

    def matrix(rows: int, columns: int) -> npt.NDArray[np.float32]:
        return normal(rows, columns, deviation=columns**-0.5)

    hidden, head = spec.hidden_size, spec.head_dim
    query, kv = spec.num_heads * head, spec.num_kv_heads * head
    layers = tuple(
        LayerWeights(
            q=matrix(query, hidden),
            k=matrix(kv, hidden),
            v=matrix(kv, hidden),
            o=matrix(hidden, query),
            gate=matrix(spec.mlp_size, hidden),
            up=matrix(spec.mlp_size, hidden),
            down=matrix(hidden, spec.mlp_size),
            input_norm=NormWeights(1 + normal(hidden, deviation=0.1)),
            mlp_norm=NormWeights(1 + normal(hidden, deviation=0.1)),
            q_bias=normal(query, deviation=0.3) if spec.qkv_bias else None,
            k_bias=normal(kv, deviation=0.3) if spec.qkv_bias else None,
            v_bias=normal(kv, deviation=0.3) if spec.qkv_bias else None,
            q_norm=np.tile(1 + normal(head, deviation=0.1), (spec.num_heads, 1)) if spec.qk_norm else None,
            k_norm=np.tile(1 + normal(head, deviation=0.1), (spec.num_kv_heads, 1)) if spec.qk_norm else None,
        )
        for _ in range(spec.num_layers)
    )
    head_matrix = None if spec.tied_embeddings else matrix(spec.vocab_size, hidden)
    embedding = normal(spec.vocab_size, hidden, deviation=0.5)
    final_norm = NormWeights(1 + normal(hidden, deviation=0.1))
    return DecoderWeights(embedding=embedding, layers=layers, final_norm=final_norm, lm_head=head_matrix)


def decoder_reference(
    spec: ModelSpec,
    weights: DecoderWeights,
    tokens: npt.NDArray[np.int32],
    weight_format: str = "exact",
    int8_cache: bool = False,
) -> Float64Array:
    """Logits of every row; in float64 but for the roundings that the formats prescribe ("exact": none at all)."""
    length, cached_bfloat16 = len(tokens), weight_format not in ("exact", "float32") and not int8_cache
    tables = rope_tables(spec.layers[0].rope, spec.head_dim, length)[:, None]

    def linear(x: Float64Array, w: WeightArray, bias: WeightArray | None = None) -> Float64Array:
        y = x @ w.astype(np.float64).T if weight_format == "exact" else gemm_reference(x, w, weight_format)
        return y if bias is None else y + bias

    def store(x: Float64Array) -> npt.NDArray[np.float32]:
        """To the KV cache: one block for the whole sequence, [1, kv_heads, length, head_dim]."""
        rows = x.astype(np.float32)
        rows = int8_cache_reference(rows) if int8_cache else round_to_bfloat16(rows) if cached_bfloat16 else rows
        return rows.transpose(1, 0, 2)[None]

    hidden: Float64Array = weights.embedding[tokens].astype(np.float64)
    for layer in weights.layers:
        assert layer.input_norm is not None and layer.mlp_norm is not None and layer.gate is not None  # noqa: PT018
        x = rms_norm_reference(hidden, layer.input_norm.gain, spec.norm_eps)
        q = linear(x, layer.q, layer.q_bias).reshape(length, -1, spec.head_dim)
        k = linear(x, layer.k, layer.k_bias).reshape(length, -1, spec.head_dim)
        v = linear(x, layer.v, layer.v_bias).reshape(length, -1, spec.head_dim)
        if layer.q_norm is not None and layer.k_norm is not None:
            q = rms_norm_reference(q, layer.q_norm, spec.norm_eps)
            k = rms_norm_reference(k, layer.k_norm, spec.norm_eps)
        q, k = rope_reference(q, tables), rope_reference(k, tables)
        mixed = paged_attention_reference(
            round_to_bfloat16(q.astype(np.float32)) if cached_bfloat16 else q, np.arange(length, dtype=np.int32),
            store(k), store(v), np.zeros(1, np.int32), spec.layers[0].window,
        )  # fmt: skip
        hidden = hidden + linear(mixed.reshape(length, -1), layer.o)
        x = rms_norm_reference(hidden, layer.mlp_norm.gain, spec.norm_eps)
        hidden = hidden + linear(silu_mul_reference(linear(x, layer.gate), linear(x, layer.up)), layer.down)
    head = weights.embedding if weights.lm_head is None else weights.lm_head
    return linear(rms_norm_reference(hidden, weights.final_norm.gain, spec.norm_eps), head)


@dataclass
class Chunk:
    tokens: npt.NDArray[np.int32]
    position: int
    blocks: list[int]


def batch_of(chunks: list[Chunk]) -> Batch:
    """All rows' logits are wanted. Unused table entries are nonsense."""
    lengths = [len(chunk.tokens) for chunk in chunks]
    tables = np.full((len(chunks), MODEL_LEN // 64), -7, np.int32)
    for row, chunk in enumerate(chunks):
        tables[row, : len(chunk.blocks)] = chunk.blocks
    return Batch(
        tokens=np.concatenate([chunk.tokens for chunk in chunks]).astype(np.int32),
        positions=np.concatenate([chunk.position + np.arange(len(chunk.tokens)) for chunk in chunks]).astype(np.int32),
        starts=np.cumsum([0, *lengths]).astype(np.int32),
        block_tables=tables,
        logit_rows=np.arange(sum(lengths), dtype=np.int32),
    )


def sizes_of(
    weight_format: WeightFormat, threads: int = 2, cache_format: CacheFormat | None = None, adapters: bool = False
) -> CpuSizes:
    return CpuSizes(
        weight_format=weight_format,
        cache_format=cache_format,
        num_blocks=BLOCKS,
        max_step_tokens=MOST_TOKENS,
        max_logit_rows=MOST_TOKENS,
        max_model_len=MODEL_LEN,
        threads=threads,
        adapters=adapters,
    )


def make_runner(
    name: str,
    weight_format: WeightFormat,
    threads: int = 2,
    cache_format: CacheFormat | None = None,
    adapters: bool = False,
) -> CpuRunner:
    """With a cache full of NaN: stale memory of earlier sequences at its worst."""
    runner = CpuRunner(SPECS[name], weights_of(name), sizes_of(weight_format, threads, cache_format, adapters))
    runner._memory.cache[:] = 0xFF
    return runner


def prompt_of(name: str, length: int = PROMPT) -> npt.NDArray[np.int32]:
    return np.random.default_rng(7).integers(0, SPECS[name].vocab_size, length).astype(np.int32)


def error(result: npt.ArrayLike, wanted: Float64Array) -> float:
    """Relative, over all logits of all rows."""
    return float(np.linalg.norm(np.asarray(result, np.float64) - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("name", list(SPECS))
def test_logits_are_as_good_as_the_format_allows(name: str, weight_format: WeightFormat) -> None:
    """The error against exact arithmetic is at most 1.5 times that of the same roundings with float64 in between.

    float32 rounds everywhere and has no such twin: about 20 roundings a layer of 2**-24 each, at random signs,
    amplified by the softmax and the norms; 3e-6 is ten times what numpy's float32 shows. A neighbour's rotary table,
    or a window off by one, fails the same bound.
    """
    spec, weights, tokens = SPECS[name], weights_of(name), prompt_of(name)
    runner = make_runner(name, weight_format)
    logits = runner.forward(batch_of([Chunk(tokens, 0, [7, 3, 11])])).copy()
    runner.close()
    assert logits.shape == (PROMPT, spec.vocab_size)
    exact = decoder_reference(spec, weights, tokens)
    if weight_format == "float32":
        assert error(logits, exact) < 3e-6
        window = spec.layers[0].window
        wrong = [alike(spec.num_layers, RopeSpec(theta=10_100.0), window)]
        if window is not None:
            wrong.append(alike(spec.num_layers, window=window + 1))
        for other in (msgspec.structs.replace(spec, layers=layers) for layers in wrong):
            assert error(logits, decoder_reference(other, weights, tokens)) > 3e-6
        return
    rounded = decoder_reference(spec, weights, tokens, weight_format)
    assert error(logits, exact) < 1.5 * error(rounded, exact)
    assert error(np.roll(logits, 1, axis=0), exact) > 1.5 * error(rounded, exact)


@pytest.mark.parametrize("name", list(SPECS))
def test_an_int8_cache_costs_what_its_rounding_costs(name: str) -> None:
    """With the same margin as above; and it does round: a step with it is no step without it."""
    spec, weights, tokens = SPECS[name], weights_of(name), prompt_of(name)
    runner = make_runner(name, "float32", cache_format="int8")
    logits = runner.forward(batch_of([Chunk(tokens, 0, [7, 3, 11])])).copy()
    runner.close()
    exact, rounded = (decoder_reference(spec, weights, tokens, "exact", cached) for cached in (False, True))
    assert 0.5 * error(rounded, exact) < error(logits, exact) < 1.5 * error(rounded, exact)
    assert error(np.roll(logits, 1, axis=0), exact) > 1.5 * error(rounded, exact)


@pytest.mark.parametrize(("weight_format", "cache_format"), CACHES)
@pytest.mark.parametrize("name", list(SPECS))
def test_rows_are_the_same_in_any_company(
    name: str, weight_format: WeightFormat, cache_format: CacheFormat | None
) -> None:
    """Other chunking, neighbours, blocks and threads: every bit of the logits is the same."""
    tokens, rng = prompt_of(name), np.random.default_rng(1)
    with_one = make_runner(name, weight_format, 2, cache_format)
    whole = with_one.forward(batch_of([Chunk(tokens, 0, [7, 3, 11])])).copy()
    with_one.close()
    for threads in (1, 2, 3):
        runner = make_runner(name, weight_format, threads, cache_format)
        position = 0
        rows: list[npt.NDArray[np.float32]] = []
        while position < PROMPT:
            count = min(int(rng.choice([1, 1, 3, 20, 64])), PROMPT - position)
            chunks = [
                Chunk(rng.integers(0, 957, int(rng.integers(1, 9))).astype(np.int32), 0, [12 + other])
                for other in range(int(rng.integers(0, 4)))
            ]
            place = int(rng.integers(0, len(chunks) + 1))
            chunks.insert(place, Chunk(tokens[position : position + count], position, [20, 1, 9]))
            batch = batch_of(chunks)
            rows.append(runner.forward(batch)[batch.starts[place] : batch.starts[place + 1]].copy())
            position += count
        runner.close()
        np.testing.assert_array_equal(np.concatenate(rows), whole)


def test_a_fuzz_of_shapes_compiles_nothing() -> None:
    runners = [make_runner(name, weight_format) for name in list(SPECS)[:2] for weight_format in FORMATS]
    before, rng = compilations(), np.random.default_rng(2)
    for runner in runners:
        for _ in range(20):
            chunks: list[Chunk] = []
            for sequence in range(int(rng.integers(1, 7))):
                count = int(rng.integers(1, 41))
                chunks.append(Chunk(rng.integers(0, 957, count).astype(np.int32), 0, [sequence * 2, sequence * 2 + 1]))
            batch = batch_of(chunks)
            wanted = rng.permutation(len(batch.tokens))[: int(rng.integers(0, 5))].astype(np.int32)
            wanted.flags.writeable = bool(rng.integers(0, 2))
            logits = runner.forward(msgspec.structs.replace(batch, logit_rows=wanted))
            assert logits.shape == (len(wanted), 957)
            assert np.isfinite(logits).all()
        runner.copy_blocks(np.array([1], np.int32), np.array([2], np.int32))
        runner.close()
    assert compilations() == before


@pytest.fixture(scope="module")
def runner() -> Iterator[CpuRunner]:
    made = make_runner("llama-gqa-ragged-mlp", "float32")
    yield made
    made.close()


def test_logit_rows_choose_and_order(runner: CpuRunner) -> None:
    batch = batch_of([Chunk(prompt_of("llama-gqa-ragged-mlp", 20), 0, [4]), Chunk(np.array([5], np.int32), 0, [5])])
    everything = runner.forward(batch).copy()
    wanted = np.array([20, 3, 3], np.int32)
    chosen = runner.forward(msgspec.structs.replace(batch, logit_rows=wanted))
    np.testing.assert_array_equal(chosen, everything[wanted])


def test_copied_blocks_continue_the_sequence(runner: CpuRunner) -> None:
    tokens = prompt_of("llama-gqa-ragged-mlp", 101)
    runner.forward(batch_of([Chunk(tokens[:100], 0, [7, 3])]))
    last = runner.forward(batch_of([Chunk(tokens[100:], 100, [7, 3])])).copy()
    runner.copy_blocks(np.array([7, 3], np.int32), np.array([15, 16], np.int32))
    runner.forward(batch_of([Chunk(tokens[::-1].copy(), 0, [7, 3])]))  # overwrites the originals
    np.testing.assert_array_equal(runner.forward(batch_of([Chunk(tokens[100:], 100, [15, 16])])), last)


@pytest.mark.parametrize(("weight_format", "cache_format"), CACHES)
def test_a_copied_block_that_is_half_full_serves_another_sequence(
    weight_format: WeightFormat, cache_format: CacheFormat | None
) -> None:
    """What lies behind the shared positions, here tokens of the first sequence, is written over before it is read."""
    name = "llama-gqa-ragged-mlp"
    runner, tokens = make_runner(name, weight_format, 2, cache_format), prompt_of(name, 100)
    first, other = tokens[70:], tokens[70:][::-1].copy()
    runner.forward(batch_of([Chunk(tokens[:70], 0, [7, 3])]))
    expected = [runner.forward(batch_of([Chunk(other, 70, [7, 3])])).copy()]
    expected.append(runner.forward(batch_of([Chunk(first, 70, [7, 3])])).copy())
    runner.copy_blocks(np.array([3, 3], np.int32), np.array([15, 16], np.int32))
    logits = runner.forward(batch_of([Chunk(other, 70, [7, 15]), Chunk(first, 70, [7, 16])]))
    np.testing.assert_array_equal(logits, np.concatenate(expected))
    np.testing.assert_array_equal(runner.forward(batch_of([Chunk(first[-1:], 99, [7, 3])])), expected[1][-1:])
    without = runner.forward(batch_of([Chunk(other, 70, [7, 17])]))
    assert not np.array_equal(without, expected[0])
    runner.close()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("tokens", [1, 957], "ids of the vocabulary"),
        ("tokens", [1, -1], "ids of the vocabulary"),
        ("positions", [0, 2], "consecutive"),
        ("positions", [MODEL_LEN, MODEL_LEN + 1], "below max_model_len"),
        ("positions", [63, 64], "for every position in use"),
        ("positions", [-1, 0], "below max_model_len"),
        ("positions", [0], "as long as tokens"),
        ("starts", [0, 1], "end with the number of tokens"),
        ("starts", [0, 0, 2], "one longer than block_tables"),
        ("block_tables", [[BLOCKS]], "below num_blocks"),
        ("block_tables", [[-1]], "below num_blocks"),
        ("block_tables", [3], "block_tables is 1-dimensional"),
        ("logit_rows", [2], "indices into tokens"),
        ("logit_rows", [0] * 300, "more than max_logit_rows"),
        ("tokens", [], "0 in one step"),
    ],
)
def test_a_bad_batch_is_refused_by_name(runner: CpuRunner, field: str, value: list[object], message: str) -> None:
    good = batch_of([Chunk(np.array([1, 2], np.int32), 0, [3])])
    runner.forward(good)
    with pytest.raises(ValueError, match=message):
        runner.forward(msgspec.structs.replace(good, **{field: np.array(value, np.int32)}))


def test_other_number_types_are_refused(runner: CpuRunner) -> None:
    good = batch_of([Chunk(np.array([1, 2], np.int32), 0, [3])])
    with pytest.raises(ValueError, match="tokens is 1-dimensional int64"):
        runner.forward(msgspec.structs.replace(good, tokens=good.tokens.astype(np.int64)))


@pytest.mark.parametrize(("weight_format", "cache_format"), CACHES)
def test_the_memory_plan_is_what_is_allocated(weight_format: WeightFormat, cache_format: CacheFormat | None) -> None:
    name = "qwen3-norm-head-10"
    needs = memory_needs(SPECS[name], sizes_of(weight_format, 2, cache_format))
    runner = make_runner(name, weight_format, 2, cache_format)
    memory = runner._memory
    assert memory.cache.nbytes == needs.kv_block_bytes * BLOCKS
    assert sum(array.nbytes for array in memory.arrays.values()) == needs.workspace_bytes
    runner.close()


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="too wide for int8"):
        memory_needs(msgspec.structs.replace(LLAMA, mlp_size=70_000), sizes_of("int8"))
    with pytest.raises(ValueError, match="too wide for an int8 KV cache"):
        memory_needs(msgspec.structs.replace(LLAMA, head_dim=520), sizes_of("float32", cache_format="int8"))
    with pytest.raises(ValueError, match="max_logit_rows = 0: must be at least 1"):
        CpuRunner(LLAMA, weights_of("mha-head-8"), msgspec.structs.replace(sizes_of("int8"), max_logit_rows=0))


def test_a_runner_left_open_does_not_keep_the_interpreter() -> None:
    program = f"""
import sys; sys.path.insert(0, {str(__file__.rsplit("/", 1)[0])!r})
import numpy as np, test_cpu as t
runner = t.make_runner("mha-head-8", "int8")
print(np.isfinite(runner.forward(t.batch_of([t.Chunk(t.prompt_of("mha-head-8"), 0, [1, 2, 3])]))).all())
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout == "True\n"
