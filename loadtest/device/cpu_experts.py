"""Time a mixture of experts on the CPU against reading the bytes that it touches. Random weights, no engine.

    python -m triolet.loadtest.device.cpu_experts [--format int8] [--threads 2] [--rounds 9]

Prints JSON: per round, the seconds of a step that decodes one sequence, and those that the same threads need to read as
many bytes of memory in order; the medians, and how much longer the step takes. Rounds alternate, so that whatever else
the machine does meets both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from typing import get_args

from triolet.kernels.experts.routing import Routing
from triolet.kernels.gemm.pack import packed_bytes, padded
from triolet.kernels.simd.formats import WeightFormat
from triolet.loadtest.device.cpu_step import make_batch, measure, random_runner
from triolet.models.checkpoint.experts import ExpertSpec
from triolet.models.checkpoint.spec import LayerSpec, ModelSpec
from triolet.models.cpu.experts import router_format
from triolet.models.read_speed import Reader

# Qwen3-MoE's structure with 8 of 64 experts: 0.9 GB of int8 weights, of which a token reads an eighth of the experts.
MIXTURE = ModelSpec(
    family="qwen3_moe", vocab_size=16000, hidden_size=1024, layers=(LayerSpec(experts=True),) * 8, num_heads=16,
    num_kv_heads=4, head_dim=128, mlp_size=0, norm_eps=1e-6, max_position=2048, qk_norm="head", tied_embeddings=True,
    experts=ExpertSpec(count=64, width=512, routing=Routing(chosen=8, normalised=True)),
)  # fmt: skip
CONTEXT = 64  # tokens before the measured ones: their keys and values are 0.3 % of the bytes


def touched_bytes(spec: ModelSpec, weight_format: WeightFormat) -> int:
    """Packed weights that one token reads, with the head."""
    assert spec.experts is not None
    hidden, width = padded(spec.hidden_size), padded(spec.experts.width)
    attention = spec.num_heads * spec.head_dim
    both = attention + 2 * spec.num_kv_heads * spec.head_dim
    layer = packed_bytes(both, hidden, weight_format) + packed_bytes(hidden, attention, weight_format)
    layer += packed_bytes(padded(spec.experts.count), hidden, router_format(weight_format))
    expert = packed_bytes(2 * width, hidden, weight_format) + packed_bytes(hidden, width, weight_format)
    layer += spec.experts.routing.chosen * expert
    return spec.num_layers * layer + packed_bytes(padded(spec.vocab_size), hidden, weight_format)


def run(weight_format: WeightFormat, threads: int, rounds: int, seconds: float) -> dict[str, object]:
    runner, _ = random_runner(weight_format, sequences=1, threads=threads, spec=MIXTURE)
    batch, size = make_batch(runner, 1, 1, CONTEXT), touched_bytes(MIXTURE, weight_format)
    reader = Reader(size, threads)
    reader.seconds()
    decode, read = list[float](), list[float]()
    for _ in range(rounds):
        decode += measure(runner, batch, 1, seconds)
        read.append(min(reader.seconds() for _ in range(3)))
    runner.close()
    reader.close()
    middle, plain = statistics.median(decode), statistics.median(read)
    return {
        "format": weight_format, "threads": threads, "bytes_touched": size,
        "decode_seconds": [round(value, 6) for value in decode], "read_seconds": [round(value, 6) for value in read],
        "decode_median": round(middle, 6), "read_median": round(plain, 6),
        "read_gb_per_second": round(size / plain / 1e9, 2), "longer_than_reading": round(middle / plain - 1, 3),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Time a mixture of experts against reading what it touches.")
    parser.add_argument("--format", choices=get_args(WeightFormat), default="int8")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="of decoding per round")
    values = parser.parse_args()
    print(json.dumps(run(values.format, values.threads, values.rounds, values.seconds), indent=1))


if __name__ == "__main__":
    main()
