"""Time the CPU runner alone, without engine or HTTP, on random weights of a model's shape.

    python -m triolet.loadtest.device.cpu_step [--formats int8 bfloat16] [--cache int8] [--threads 2] [--json]

Speed does not depend on the weights' values. The default shape is the 125M reference model. Prints, per weight
format, the median tokens/s of one prompt of 512 tokens, of one sequence after 512 tokens, and of 16 sequences after
64, 512 and 1023 tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from typing import get_args

import numpy as np

from triolet.kernels.simd.formats import CacheFormat, WeightFormat, default_cache_format
from triolet.models.checkpoint.rope import RopeSpec
from triolet.models.checkpoint.safetensors import WeightArray
from triolet.models.checkpoint.spec import ModelSpec
from triolet.models.checkpoint.weights import DecoderWeights, LayerWeights
from triolet.models.cpu.cpu import CpuRunner
from triolet.models.cpu.memory import CpuSizes, memory_needs
from triolet.models.cpu.rows import Batch

REFERENCE = ModelSpec(
    family="llama", vocab_size=32000, hidden_size=768, num_layers=16, num_heads=12, num_kv_heads=4, head_dim=64,
    mlp_size=2048, norm_eps=1e-5, rope=RopeSpec(), max_position=2048, tied_embeddings=True,
)  # fmt: skip
MODEL_LEN, BLOCK = 1024, 64
CASES = {
    "prefill_512": (1, 512, 0),
    "decode_b1_ctx512": (1, 1, 512),
    "decode_b16_ctx64": (16, 1, 64),
    "decode_b16_ctx512": (16, 1, 512),
    "decode_b16_ctx1024": (16, 1, 1023),
}  # sequences, tokens of each, tokens before them


def random_weights(spec: ModelSpec, seed: int = 0) -> DecoderWeights:
    """bfloat16 bits of normal values with the deviation that keeps activations near one."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> WeightArray:
        values = rng.standard_normal((rows, columns), dtype=np.float32) / np.float32(np.sqrt(columns))
        return (values.view(np.uint32) >> 16).astype(np.uint16)

    hidden, query, kv = spec.hidden_size, spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    ones = np.ones(hidden, np.float32)
    layers = tuple(
        LayerWeights(
            q=matrix(query, hidden),
            k=matrix(kv, hidden),
            v=matrix(kv, hidden),
            o=matrix(hidden, query),
            gate=matrix(spec.mlp_size, hidden),
            up=matrix(spec.mlp_size, hidden),
            down=matrix(hidden, spec.mlp_size),
            input_norm=ones,
            post_norm=ones,
        )
        for _ in range(spec.num_layers)
    )
    return DecoderWeights(embedding=matrix(spec.vocab_size, hidden), layers=layers, final_norm=ones, lm_head=None)


def make_batch(sequences: int, tokens: int, before: int, spec: ModelSpec, num_blocks: int) -> Batch:
    """Every sequence has its own blocks, shuffled; logits of each last token."""
    rng = np.random.default_rng(sequences)
    width = MODEL_LEN // BLOCK
    tables = rng.permutation(num_blocks)[: sequences * width].reshape(sequences, width).astype(np.int32)
    starts = np.arange(sequences + 1, dtype=np.int32) * tokens
    positions = np.tile(np.arange(before, before + tokens, dtype=np.int32), sequences)
    ids = rng.integers(0, spec.vocab_size, sequences * tokens).astype(np.int32)
    return Batch(tokens=ids, positions=positions, starts=starts, block_tables=tables, logit_rows=starts[1:] - 1)


def measure(runner: CpuRunner, batch: Batch, rounds: int, seconds: float) -> list[float]:
    """Seconds per step of each round, each round the mean of a few steps."""
    runner.forward(batch)
    start = time.perf_counter()
    runner.forward(batch)
    steps = max(1, int(seconds / rounds / (time.perf_counter() - start)))
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(steps):
            runner.forward(batch)
        times.append((time.perf_counter() - start) / steps)
    return times


def run(
    weight_format: WeightFormat, cache_format: CacheFormat, threads: int, rounds: int, seconds: float
) -> dict[str, object]:
    num_blocks = 16 * MODEL_LEN // BLOCK
    sizes = CpuSizes(
        weight_format=weight_format,
        cache_format=cache_format,
        num_blocks=num_blocks,
        max_step_tokens=512,
        max_logit_rows=16,
        max_model_len=MODEL_LEN,
        threads=threads,
    )
    start = time.perf_counter()
    runner = CpuRunner(REFERENCE, random_weights(REFERENCE), sizes)
    result: dict[str, object] = {
        "format": weight_format, "cache": cache_format, "threads": threads,
        "weights_mb": round(memory_needs(REFERENCE, sizes).weights_bytes / 1e6, 1),
        "start_s": round(time.perf_counter() - start, 2),
    }  # fmt: skip
    for name, (sequences, tokens, before) in CASES.items():
        times = measure(runner, make_batch(sequences, tokens, before, REFERENCE, num_blocks), rounds, seconds)
        rates = sorted(sequences * tokens / each for each in times)
        result[name] = {"median": round(statistics.median(rates)), "best": round(rates[-1])}
    runner.close()
    return result


def main() -> None:
    formats = get_args(WeightFormat)
    parser = argparse.ArgumentParser(description="Time the CPU runner on random weights of the 125M reference model.")
    parser.add_argument("--formats", nargs="+", choices=formats, default=list(formats))
    parser.add_argument("--cache", choices=get_args(CacheFormat), help="of the KV cache; default: the weights' own")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.5, help="per case")
    parser.add_argument("--json", action="store_true", help="one JSON object per format")
    options = parser.parse_args()
    for weight_format in options.formats:
        cache_format = options.cache or default_cache_format(weight_format)
        result = run(weight_format, cache_format, options.threads, options.rounds, options.seconds)
        if options.json:
            print(json.dumps(result), flush=True)
            continue
        title = f"{weight_format}, {cache_format} cache"
        print(f"{title}, {result['threads']} threads, {result['weights_mb']} MB of weights:", flush=True)
        for name in CASES:
            print(f"  {name:18} {result[name]} tokens/s", flush=True)


if __name__ == "__main__":
    main()
