"""Attention against the copy bandwidth and torch's own: decode of many, one long sequence among short ones, prefill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from triolet.loadtest.device.gpu_case import Case, Figures, Goal, Machine, Skip
from triolet.loadtest.device.gpu_check import drawn
from triolet.loadtest.device.gpu_ragged import Form, Ragged
from triolet.loadtest.device.gpu_timing import beside, microseconds

LLAMA = Form()  # 32 heads, 8 of keys and values, 128 wide: Llama-3.1-8B
EVEN = [(1, 4096)] * 64
UNEVEN = [(1, 131072), *[(1, 4096)] * 31]
PROMPT = 8192
FLEX_SECONDS = 50  # for a process that imports torch (about 15), and compiles for about 20
Rivals = dict[str, Callable[[], object]]


def attention_us(form: Form, chunks: list[tuple[int, int]], machine: Machine) -> tuple[float, int]:
    """Microseconds of one layer, its plan left out (a step makes one for all layers), and the bytes of cache read."""
    batch = Ragged(form, chunks)
    launch = batch.launch(machine)
    plan, workspace = batch.prepare(launch)
    return microseconds(lambda: batch.attend(launch, plan, workspace)), batch.read_bytes


def decode(cache: str, machine: Machine) -> Figures:
    time, read = attention_us(Form(cache=cache), EVEN, machine)
    figures: Figures = {
        "us": time,
        "gb_s": read / time / 1e3,
        "of_copy": read / time / 1e3 / machine.limit("copy_gb_s"),
    }
    if cache == "bf16":
        return figures | beside(time, decode_rivals())
    base, _ = attention_us(LLAMA, EVEN, machine)
    return figures | {"bf16_us": base, "of_bf16_time": time / base}


def decode_rivals() -> Rivals:
    """The same keys and values, contiguous and of equal length: easier than pages."""
    q = drawn(1, 64, 32, 1, 128).bfloat16()
    k, v = (drawn(seed, 64, 8, 4096, 128).bfloat16() for seed in (2, 3))
    return {name: partial(sdpa, backend, q, k, v, False) for name, backend in BACKENDS.items()}


BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def sdpa(backend: SDPBackend, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


def one_long_sequence(machine: Machine) -> Figures:
    """131,072 tokens beside 31 times 4,096, and the same number of pages in 32 equal sequences."""
    equal = sum(length for _, length in UNEVEN) // 32 // 64 * 64
    time, read = attention_us(LLAMA, UNEVEN, machine)
    uniform, uniform_read = attention_us(LLAMA, [(1, equal)] * 32, machine)
    return {
        "us": time,
        "uniform_us": uniform,
        "of_uniform": time / uniform * uniform_read / read,
        "of_copy": read / time / 1e3 / machine.limit("copy_gb_s"),
    }


def prefill(cache: str, machine: Machine) -> Figures:
    """Causal, a prompt of 8,192 tokens."""
    time, _ = attention_us(Form(cache=cache), [(PROMPT, PROMPT)], machine)
    flops = 4 * 32 * 128 * PROMPT * (PROMPT + 1) / 2
    figures: Figures = {"us": time, "tflops": 1e-6 * flops / time}
    figures["of_bf16_gemm"] = figures["tflops"] / machine.limit("bf16_tflops")
    if cache != "bf16":
        return figures
    q = drawn(1, 1, 32, PROMPT, 128).bfloat16()
    k, v = (drawn(seed, 1, 8, PROMPT, 128).bfloat16() for seed in (2, 3))
    works: Rivals = {name: partial(sdpa, backend, q, k, v, True) for name, backend in BACKENDS.items()}
    # A backend that refuses groups of heads still has its best figure with keys and values for every head.
    k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (k, v))
    works |= {f"{name} without groups": partial(sdpa, backend, q, k, v, True) for name, backend in BACKENDS.items()}
    return figures | beside(time, works)


def chunk_behind_context(machine: Machine) -> Figures:
    """The last 512 tokens of 16,384, beside 63 rows that decode: a mixed step."""
    time, _ = attention_us(LLAMA, [(512, 16384), *[(1, 4096)] * 63], machine)
    return {"us": time}


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


def flex_attention(shape: tuple[int, int, int], ours: list[tuple[int, int]], machine: Machine) -> Figures:
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


def cases(dry: bool) -> list[Case]:
    del dry  # never there
    return [
        Case("decode 64 x 4k bf16", partial(decode, "bf16"), Goal("of_copy", 0.85, 0.95)),
        Case("decode 64 x 4k fp8", partial(decode, "fp8"), Goal("of_bf16_time", 0.60, 0.52, less=True)),
        Case("decode 64 x 4k int8", partial(decode, "int8"), Goal("of_bf16_time", 0.60, 0.52, less=True)),
        Case("decode 128k among 31 x 4k", one_long_sequence, Goal("of_uniform", 1.5, 1.1, less=True)),
        Case("prefill 8k causal bf16", partial(prefill, "bf16"), Goal("speedup", 0.75, 1.0)),
        Case("prefill 8k causal fp8 cache", partial(prefill, "fp8")),
        Case("mixed: 512 at 16k, 63 x 4k", chunk_behind_context),
        Case("rival: FlexAttention 8k causal", partial(flex_attention, (1, PROMPT, PROMPT), [(PROMPT, PROMPT)])),
        Case("rival: FlexAttention decode 64 x 4k", partial(flex_attention, (64, 1, 4096), EVEN)),
    ]
