"""What the GPU kernels could reach on an H200, from what the compiler made of them: docs/gpu-roofline.md.

A kernel takes at least as long as its bytes take from memory, its instructions to be issued and its products in the
tensor cores, whichever is longest. Instructions are those of the inner loops (kernel_counts.py), launches those of a
recorded step (layer_launches.py). The rest is assumed, as the page says. Nothing is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from triolet.kernels.paged_attention.gpu_table import choose_launch
from triolet.loadtest.device.compile_models import LLAMA_8B, QUANTIZE, LaunchedModel
from triolet.loadtest.device.kernel_counts import Known, known_counts
from triolet.loadtest.device.layer_launches import launches_of_layer

PAGE = "docs/gpu-roofline.md"
VERSION = "3.6.0"  # of Triton, on the GPU machines
PAGE_TOKENS, WARP_BATCH = 64, 4  # a multiprocessor issues for 4 warps at a time
MULTIPROCESSORS, CLOCK = 132, 1.755e9
COPY = 0.9 * 4.8e12  # bytes a second: what a copy reaches of the datasheet's bandwidth
ISSUED = 0.75  # of all cycles, at best, with an instruction: the rest waits
TENSOR = {"bf16": 0.8 * 989e12, "fp8": 0.8 * 1979e12}  # what the best products reach of the datasheet's rate
GAP, GAP_OVERLAPPED = 1.3e-6, 0.6e-6  # from the end of a kernel of a graph to the next one's first byte
LIBRARY = 0.92  # of the copy's bandwidth: cuBLAS with few rows
FLASH = 600e12  # FlashAttention 3, heads of 128, causal, long prompts
INTRODUCTION = f"""# What the GPU kernels could reach

**Estimates: no kernel has run on a GPU.** They are for an H200, at best, from the counts of
[gpu-kernel-counts.md](gpu-kernel-counts.md) (Triton {VERSION}) and of launches, by
`python -m triolet.loadtest.device.roofline`. A kernel takes as long as the slowest of three: its bytes, at what a copy
reaches (assumed: 90 % of 4.8 TB/s); the instructions of its inner loop, of which each quarter of a multiprocessor
issues one in {100 * ISSUED:.0f} % of its cycles (assumed), at {CLOCK / 1e9:.2f} GHz; its products, at 80 % of the
datasheet's rate (assumed). Between two kernels of a graph pass {GAP * 1e6:.1f} µs, or {GAP_OVERLAPPED * 1e6:.1f} µs
where launches overlap (assumed; the first is published for an H100). cuBLAS with few rows reads {100 * LIBRARY:.0f} %
of what a copy reads, FlashAttention 3 computes {FLASH / 1e12:.0f} TFLOP/s (both assumed). Goals are two: asked, and
aimed at.

"""


@dataclass(frozen=True, slots=True)
class Work:
    """Of a kernel: bytes, issue slots (instructions times warps) and floating-point operations."""

    bytes: float
    slots: float = 0.0
    operations: float = 0.0
    rate: str = "bf16"

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by what may be the limit."""
        slots_a_second = MULTIPROCESSORS * WARP_BATCH * CLOCK * ISSUED
        return {
            "memory": self.bytes / COPY,
            "instructions": self.slots / slots_a_second,
            "tensor cores": self.operations / TENSOR[self.rate],
        }

    @property
    def seconds(self) -> float:
        return max(self.parts.values())

    @property
    def limit(self) -> str:
        return max(self.parts, key=lambda name: self.parts[name])


def decode(known: Known, kind: str, bytes_each: float, lengths: list[int], kv_heads: int = 8) -> Work:
    """One layer's attention of sequences that decode, heads of 128."""
    pages = kv_heads * sum(-(-length // PAGE_TOKENS) for length in lengths)
    return Work(pages * PAGE_TOKENS * 2 * bytes_each, pages * known[f"decode_kernel sm_90 {kind}"]["loops"][0] * 4)


def prefill(known: Known, tokens: int, heads: int = 32, kv_heads: int = 8) -> Work:
    """One causal layer of one prompt, heads of 128, tiles of 128 rows by 8 warps."""
    tiles = tokens * heads // kv_heads // 128
    pages = kv_heads * tiles * (tokens // PAGE_TOKENS + 1) / 2
    loop = known["prefill_kernel sm_90 bf16 HEAD_DIM=128"]["loops"][0]
    return Work(4 * tokens * heads * 128, pages * loop * 8, pages * 128 * PAGE_TOKENS * 128 * 4)


def packed(known: Known, rows: int, n: int, k: int) -> Work:
    """y = x W^T, 4 bits in groups of 128 with zero points: 2 programs of 4 warps, or one of 8, by 128 channels."""
    tile = next((size for size in (16, 32, 64, 128) if size >= rows), 256)
    tall, warps = " TALL" if tile > 64 else "", 4 if tile < 64 else 8
    kind = f"w4_gemm_kernel sm_90 GROUPS=1{tall} EVEN_K BLOCK_M={tile} BLOCKS=2 scales=bf16 offsets=bf16"
    blocks = -(-rows // tile) * -(-n // 128) * (k // 128)
    slots = blocks * known[kind]["loops"][0] * warps
    return Work(n * k * 4.25 / 8 + 2 * rows * (n + k), slots, 2 * rows * n * k)


def dense(rows: int, n: int, k: int) -> float:
    """Seconds of the library's bfloat16 product."""
    work = Work(2 * n * k + 2 * rows * (n + k), 0, 2 * rows * n * k)
    return max(work.parts["memory"] / LIBRARY, work.parts["tensor cores"])


LAYER = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))  # qkv, o, gate_up, down of Llama-3.1-8B
LAYERS, VOCABULARY, HIDDEN = 32, 128_256, 4096
OTHER_LAUNCHES = 20  # of a step: its inputs, the head and the sampler


def single_stream(known: Known, quantize: str, gap: float) -> tuple[float, float]:
    """(estimated seconds, seconds of the bytes alone) of a step of Llama-3.1-8B, one sequence of 1,024 tokens."""
    launches = len(launches_of_layer(LaunchedModel(LLAMA_8B, quantize), 1, 90))
    attention = decode(known, "bf16 HEAD_DIM=128", 2 * 128, [1024])
    if quantize == "int4":
        products = [packed(known, 1, n, k) for n, k in LAYER]
        times, least = sum(work.seconds for work in products), sum(work.bytes for work in products) / COPY
    else:
        times, least = sum(dense(1, n, k) for n, k in LAYER), sum(2 * n * k for n, k in LAYER) / COPY
    head = dense(1, VOCABULARY, HIDDEN)
    layer = times + attention.seconds + launches * gap
    return LAYERS * layer + head + OTHER_LAUNCHES * gap, LAYERS * (least + attention.seconds) + head * LIBRARY


def float8(known: Known, m: int, n: int, k: int) -> Work:
    """The product of e4m3 with a scale per channel and per token."""
    if m > 256:
        name, warps, tile = "wide_gemm_kernel", 8, (128, 128)
    else:
        name, warps, tile = "narrow_gemm_kernel", 4, (16 if m <= 16 else 64, 64)
    sizes = f"BLOCK_M={tile[0]} BLOCK_N={tile[1]} BLOCK_K=128"
    loop = known[f"{name} sm_90 fp8e4nv EVEN_K PRECISE=128 {sizes} x_scales=fp32"]["loops"][0]
    blocks = -(-m // tile[0]) * (n // tile[1]) * (k // 128)
    return Work(n * k + m * (2 * n + k), blocks * loop * warps, 2 * m * n * k, "fp8")


def rows(known: Known) -> list[tuple[str, str, str, str]]:
    """(what, target, estimate, limit) of each goal."""
    uniform = [4096] * 64
    plain = decode(known, "bf16 HEAD_DIM=128", 2 * 128, uniform)
    share = plain.parts["memory"] / (plain.seconds + GAP)
    found = [("decode, 64 sequences of 4,096: share of a copy", "0.85, then 0.95", f"{share:.2f}", plain.limit)]
    launch = choose_launch(90, 128, 2, 32, 32, multiprocessors=MULTIPROCESSORS)
    pages, programs = (131_072 + 31 * 4096) // PAGE_TOKENS, launch.programs(8)
    uneven = -(-pages // programs) * programs / pages
    found.append(
        ("decode, one of 128k among 31 of 4,096: time of as many pages evenly", "1.5, then 1.1", f"{uneven:.2f}",
         f"the longest share of {programs} programs a head")
    )  # fmt: skip
    for name, kind in (("FP8", "i16 CODE=e4m3 HEAD_DIM=128"), ("INT8", "i16 CODE=int8 HEAD_DIM=128")):
        coded = decode(known, kind, 128 + 4, uniform)
        ratio = (coded.seconds + GAP) / (plain.seconds + GAP)
        found.append((f"decode, {name} KV cache: time of bfloat16's", "0.60, then 0.52", f"{ratio:.2f}", coded.limit))
    prompt = prefill(known, 8192)
    parts = prompt.parts
    slow, fast = parts["tensor cores"] + parts["instructions"], prompt.seconds
    rates = [prompt.operations / seconds / FLASH for seconds in (slow, fast)]
    found.append(
        ("prefill of 8,192 tokens: rate of FlashAttention 3's", "0.75, then 1.0",
         f"{rates[0]:.2f} where softmax and products take turns, {rates[1]:.2f} where they overlap", prompt.limit)
    )  # fmt: skip
    for m, target in ((16, "1.7 to 2.2, then 3.3"), (64, "0.95, then 1.0"), (512, "0.95, then 1.0")):
        for n, k in ((4096, 4096), (28672, 4096)):
            work = packed(known, m, n, k)
            ratio = (dense(m, n, k) + GAP) / (work.seconds + GAP)
            found.append((f"W4A16, {m} rows, {n} × {k}: speed of bfloat16's", target, f"{ratio:.2f}", work.limit))
    for m, target in ((16, "1.05, then 1.4"), (4096, "0.95, then 1.0")):
        n, k = 28672, 4096
        work = float8(known, m, n, k)
        library = max(work.parts["memory"] / LIBRARY, work.parts["tensor cores"])
        name = f"FP8, {m} rows, {n} × {k}: speed of the library's"
        found.append((name, target, f"{(library + GAP) / (work.seconds + GAP):.2f}", work.limit))
    for quantize, target in (("none", "0.80, then 0.92"), ("int4", "0.60, then 0.78")):
        steps = (single_stream(known, quantize, gap) for gap in (GAP, GAP_OVERLAPPED))
        shares = [least / took for took, least in steps]
        name = "bfloat16" if quantize == "none" else "W4"
        estimate = f"{shares[1]:.2f}; {shares[0]:.2f} without overlapped launches"
        found.append((f"8B, one sequence, {name}: share of the bytes' time", target, estimate, "memory, launches"))
    return found


def page() -> str:
    """The whole page of the docs."""
    lines = ["| what | goal | estimate | limit |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows(known_counts(VERSION))]
    lines += [
        "",
        "Kernels that a layer of Llama-3.1-8B launches for sequences that decode, by the format of its weights:",
        "",
    ]
    lines += ["| weights | launches | kernels |", "|---|---:|---|"]
    for quantize in QUANTIZE:
        kernels = launches_of_layer(LaunchedModel(LLAMA_8B, quantize), 1, 90)
        names = ", ".join(name.removesuffix("_kernel") for name in kernels)
        lines.append(f"| {'bfloat16' if quantize == 'none' else quantize} | {len(kernels)} | {names} |")
    return INTRODUCTION + "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
