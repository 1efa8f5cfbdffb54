"""Time the CPU runner alone, without engine or HTTP, on random weights of the 125M reference model.

    python -m triolet.loadtest.device.cpu_step [--formats int8 bfloat16] [--cache int8] [--threads 2] [--json]

Prints, per weight format, the median tokens/s of one prompt of 512 tokens, of one sequence after 512 tokens, and of
16 sequences after 64, 512 and 1023 tokens.
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
from triolet.loadtest.device.random_model import random_weights
from triolet.models.checkpoint.spec import ModelSpec, alike
from triolet.models.checkpoint.weights import DecoderWeights
from triolet.models.cpu.cpu import CpuRunner
from triolet.models.cpu.memory import CpuSizes, memory_needs
from triolet.models.cpu.rows import Batch
from triolet.protocol.settings import BLOCK_SIZE

REFERENCE = ModelSpec(
    family="llama", vocab_size=32000, hidden_size=768, layers=alike(16), num_heads=12, num_kv_heads=4, head_dim=64,
    mlp_size=2048, norm_eps=1e-5, max_position=2048, tied_embeddings=True,
)  # fmt: skip
MODEL_LEN = 1024
CASES = {
    "prefill_512": (1, 512, 0),
    "decode_b1_ctx512": (1, 1, 512),
    "decode_b16_ctx64": (16, 1, 64),
    "decode_b16_ctx512": (16, 1, 512),
    "decode_b16_ctx1024": (16, 1, 1023),
}  # sequences, tokens of each, tokens before them


def random_runner(
    weight_format: WeightFormat, *, sequences: int, threads: int, spec: ModelSpec = REFERENCE,
    cache_format: CacheFormat | None = None, step_tokens: int = 16, adapters: bool = False,
) -> tuple[CpuRunner, DecoderWeights]:  # fmt: skip
    """With room for so many sequences of MODEL_LEN tokens; and the weights that it was packed from."""
    sizes = CpuSizes(
        weight_format=weight_format, cache_format=cache_format, num_blocks=sequences * MODEL_LEN // BLOCK_SIZE,
        max_step_tokens=max(step_tokens, sequences), max_logit_rows=sequences, max_model_len=MODEL_LEN,
        threads=threads, adapters=adapters,
    )  # fmt: skip
    weights = random_weights(spec)
    return CpuRunner(spec, weights, sizes), weights


def make_batch(runner: CpuRunner, sequences: int, tokens: int, before: int) -> Batch:
    """Every sequence has its own blocks, shuffled; logits of each last token."""
    rng = np.random.default_rng(sequences)
    width = MODEL_LEN // BLOCK_SIZE
    tables = rng.permutation(runner.sizes.num_blocks)[: sequences * width].reshape(sequences, width).astype(np.int32)
    starts = np.arange(sequences + 1, dtype=np.int32) * tokens
    positions = np.tile(np.arange(before, before + tokens, dtype=np.int32), sequences)
    ids = rng.integers(0, runner.spec.vocab_size, sequences * tokens).astype(np.int32)
    return Batch(tokens=ids, positions=positions, starts=starts, block_tables=tables, logit_rows=starts[1:] - 1)


def measure(runner: CpuRunner, batch: Batch, rounds: int, seconds: float) -> list[float]:
    """Seconds per step of each round, each round the mean of a few steps."""
    runner.forward(batch)
    start = time.perf_counter()
    runner.forward(batch)
    steps = max(1, int(seconds / rounds / (time.perf_counter() - start)))
    times: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(steps):
            runner.forward(batch)
        times.append((time.perf_counter() - start) / steps)
    return times


def run(
    weight_format: WeightFormat, cache_format: CacheFormat, threads: int, rounds: int, seconds: float
) -> dict[str, object]:
    start = time.perf_counter()
    runner, _ = random_runner(
        weight_format, sequences=16, threads=threads, cache_format=cache_format, step_tokens=512
    )  # fmt: skip
    result: dict[str, object] = {
        "format": weight_format, "cache": cache_format, "threads": threads,
        "weights_mb": round(memory_needs(REFERENCE, runner.sizes).weights_bytes / 1e6, 1),
        "start_s": round(time.perf_counter() - start, 2),
    }  # fmt: skip
    for name, (sequences, tokens, before) in CASES.items():
        times = measure(runner, make_batch(runner, sequences, tokens, before), rounds, seconds)
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
