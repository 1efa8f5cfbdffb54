"""Paged attention beside torch's FlexAttention, which compiles its kernels first: in a process of its own each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial

from triolet.loadtest.device.gpu_attention_times import EVEN, LLAMA, PROMPT, attention_us
from triolet.loadtest.device.gpu_case import Figures, GpuCase, GpuMachine, Skip

FLEX_SECONDS = 50  # for a process that imports torch (about 15), and compiles for about 20
FLEX = """
import json, torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from triolet.loadtest.device.gpu_timing import microseconds
torch.set_default_device("cuda")
batch, queries, keys = {shape}
q = torch.randn(batch, 32, queries, 128, dtype=torch.bfloat16)
k, v = (torch.randn(batch, 8, keys, 128, dtype=torch.bfloat16) for _ in range(2))
mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, queries, keys) if queries == keys else None
flex = torch.compile(flex_attention, dynamic=False)
print(json.dumps(microseconds(lambda: flex(q, k, v, block_mask=mask, enable_gqa=True))))
"""


def beside_flex(shape: tuple[int, int, int], ours: list[tuple[int, int]], machine: GpuMachine) -> Figures:
    """FlexAttention on (batch, queries, keys), in a process that is ended when it compiles for too long."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", FLEX.format(shape=shape)], capture_output=True, text=True, timeout=FLEX_SECONDS,
            check=True, env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"},  # no processes of its own
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Skip(f"FlexAttention was not ready after {FLEX_SECONDS} s") from error
    except subprocess.CalledProcessError as error:
        raise Skip(f"FlexAttention does not run here: {error.stderr.strip().splitlines()[-1:]}") from error
    rival = float(json.loads(done.stdout.strip().splitlines()[-1]))
    time, _ = attention_us(LLAMA, ours, machine)
    return {"us": time, "rival_us": rival, "speedup": rival / time}


def times(_dry: bool) -> list[GpuCase]:
    return [
        GpuCase("rival: FlexAttention 8k causal", partial(beside_flex, (1, PROMPT, PROMPT), [(PROMPT, PROMPT)])),
        GpuCase("rival: FlexAttention decode 64 x 4k", partial(beside_flex, (64, 1, 4096), EVEN)),
    ]
