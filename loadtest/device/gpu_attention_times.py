"""Paged attention on the device: timed beside torch's own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from triolet.loadtest.device.gpu_case import Figures, Goal, GpuCase, GpuMachine
from triolet.loadtest.device.gpu_check import drawn
from triolet.loadtest.device.gpu_ragged import Form, Ragged
from triolet.loadtest.device.gpu_timing import Works, beside, microseconds

LLAMA = Form()  # 32 heads, 8 of keys and values, 128 wide: Llama-3.1-8B
EVEN = [(1, 4096)] * 64
UNEVEN = [(1, 131072), *[(1, 4096)] * 31]
PROMPT = 8192
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def attention_us(form: Form, chunks: list[tuple[int, int]], machine: GpuMachine) -> tuple[float, int]:
    """Microseconds of one layer, its plan left out (a step makes one for all layers), and the bytes of cache read."""
    batch = Ragged.drawn(form, chunks)
    launch = batch.launch(machine)
    plan, workspace = batch.prepare(launch)
    return microseconds(lambda: batch.attend(launch, plan, workspace)), batch.read_bytes


def time_decode(cache: str, machine: GpuMachine) -> Figures:
    time, read = attention_us(replace(LLAMA, cache=cache), EVEN, machine)
    rate = read / time / 1e3
    figures: Figures = {"us": time, "gb_s": rate, "of_copy": rate / machine.limit("copy_gb_s")}
    if cache == "bf16":
        return figures | beside(time, decode_rivals())
    base, _ = attention_us(LLAMA, EVEN, machine)
    return figures | {"bf16_us": base, "of_bf16_time": time / base}


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, suffix: str = "") -> Works:
    """torch's attention in each of its backends."""

    def run(backend: SDPBackend) -> torch.Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])

    return {f"{name}{suffix}": partial(run, backend) for name, backend in BACKENDS.items()}


def decode_rivals() -> Works:
    """The same keys and values, contiguous and of equal length: easier than pages."""
    k, v = (drawn(seed, 64, 8, 4096, 128).bfloat16() for seed in (2, 3))
    return sdpa(drawn(1, 64, 32, 1, 128).bfloat16(), k, v, False)


def time_one_long(machine: GpuMachine) -> Figures:
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


def time_prefill(cache: str, machine: GpuMachine) -> Figures:
    """Causal, a prompt of 8,192 tokens."""
    time, _ = attention_us(replace(LLAMA, cache=cache), [(PROMPT, PROMPT)], machine)
    rate = 1e-6 * 4 * 32 * 128 * PROMPT * (PROMPT + 1) / 2 / time
    figures: Figures = {"us": time, "tflops": rate, "of_bf16_gemm": rate / machine.limit("bf16_tflops")}
    if cache != "bf16":
        return figures
    q = drawn(1, 1, 32, PROMPT, 128).bfloat16()
    k, v = (drawn(seed, 1, 8, PROMPT, 128).bfloat16() for seed in (2, 3))
    # A backend that refuses groups of heads still has its best figure with keys and values for every head.
    every_k, every_v = (part.repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (k, v))
    return figures | beside(time, sdpa(q, k, v, True) | sdpa(q, every_k, every_v, True, " without groups"))


def time_mixed(machine: GpuMachine) -> Figures:
    """The last 512 tokens of 16,384, beside 63 rows that decode."""
    time, _ = attention_us(LLAMA, [(512, 16384), *[(1, 4096)] * 63], machine)
    return {"us": time}


def times(_dry: bool) -> list[GpuCase]:
    return [
        GpuCase("decode 64 x 4k bf16", partial(time_decode, "bf16"), Goal("of_copy", 0.85, 0.95)),
        GpuCase("decode 64 x 4k fp8", partial(time_decode, "fp8"), Goal("of_bf16_time", 0.60, 0.52, less=True)),
        GpuCase("decode 64 x 4k int8", partial(time_decode, "int8"), Goal("of_bf16_time", 0.60, 0.52, less=True)),
        GpuCase("decode 128k among 31 x 4k", time_one_long, Goal("of_uniform", 1.5, 1.1, less=True)),
        GpuCase("prefill 8k causal bf16", partial(time_prefill, "bf16"), Goal("speedup", 0.75, 1.0)),
        GpuCase("prefill 8k causal fp8 cache", partial(time_prefill, "fp8")),
        GpuCase("mixed: 512 at 16k, 63 x 4k", time_mixed),
    ]
