"""Greedy tokens of the bundled model, as JSON: on this machine or emulated. Needs neither torch nor a tokenizer.

    python -m tests.arm64.greedy '[[1, 2, 3], [4, 5]]'               prompts, as token ids
    python -m tests.arm64.greedy '[[1, 2, 3], [4, 5]]' int8 bfloat16       formats of weights and cache

Without formats both are int8, whose products are exact. The other arithmetic is float32, rounded alike wherever there
is a fused multiply-add. So the log-odds, whose digest is printed too, have the same bits.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

from triolet.kernels.simd.formats import CacheFormat
from triolet.kernels.simd.target import features
from triolet.models.checkpoint.open import open_checkpoint
from triolet.models.checkpoint.weights import load_weights
from triolet.models.cpu.cpu import CpuRunner
from triolet.models.cpu.memory import CpuSizes
from triolet.models.cpu.rows import Batch

MODEL = Path(__file__).parents[2] / "models" / "demo" / "checkpoint"
NEW_TOKENS = 24
FORMATS: dict[str, CacheFormat] = {"float32": "float32", "bfloat16": "bfloat16", "int8": "int8"}
BLOCKS_EACH = 4  # of 64 tokens


def continuations(runner: CpuRunner, prompts: list[list[int]]) -> tuple[list[list[int]], str]:
    """What the model adds to all prompts, which share the steps; and the digest of its logits."""
    table = np.arange(len(prompts) * BLOCKS_EACH, dtype=np.int32).reshape(len(prompts), BLOCKS_EACH)
    chunks, done = [list(prompt) for prompt in prompts], [0] * len(prompts)
    added: list[list[int]] = [[] for _ in prompts]
    digest = hashlib.sha256()
    for _ in range(NEW_TOKENS):
        starts = np.cumsum([0, *(len(chunk) for chunk in chunks)]).astype(np.int32)
        positions = [place + start for chunk, start in zip(chunks, done, strict=True) for place in range(len(chunk))]
        logits = runner.forward(
            Batch(
                tokens=np.array([token for chunk in chunks for token in chunk], np.int32),
                positions=np.array(positions, np.int32),
                starts=starts,
                block_tables=table,
                logit_rows=starts[1:] - 1,
            )
        )
        digest.update(logits.tobytes())
        done = [start + len(chunk) for chunk, start in zip(chunks, done, strict=True)]
        chunks = [[int(token)] for token in logits.argmax(axis=1)]
        for tokens, chunk in zip(added, chunks, strict=True):
            tokens += chunk
    return added, digest.hexdigest()


def main() -> None:
    prompts: list[list[int]] = json.loads(sys.argv[1])
    names = sys.argv[2:] or ["int8", "int8"]
    checkpoint = open_checkpoint(MODEL)
    sizes = CpuSizes(
        weight_format=FORMATS[names[0]],
        cache_format=FORMATS[names[1]],
        max_step_tokens=256,
        max_logit_rows=len(prompts),
        max_model_len=BLOCKS_EACH * 64,
        threads=2,
        num_blocks=len(prompts) * BLOCKS_EACH,
    )
    runner = CpuRunner(checkpoint.spec, load_weights(checkpoint), sizes)
    tokens, digest = continuations(runner, prompts)
    runner.close()
    print(json.dumps({"tokens": tokens, "logits": digest, "features": sorted(features())}))


if __name__ == "__main__":
    main()
