"""Mixtures of experts on the device: routing and lists right to the bit, products in every format and the sum right,
timed in Qwen3-30B-A3B's shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from triolet.kernels.experts import gpu_launch
from triolet.kernels.experts.gpu_group import group, most_blocks, plan_words
from triolet.kernels.experts.gpu_launch import combine, multiply_experts
from triolet.kernels.experts.gpu_route import route
from triolet.kernels.experts.gpu_table import launch_for
from triolet.kernels.experts.reference import route_reference
from triolet.kernels.experts.routing import Routing
from triolet.kernels.gemm.gpu_reference import dequantised
from triolet.kernels.gemm.gpu_table import Few
from triolet.kernels.gemm.gpu_weights import PackedLinear, pack_bf16, pack_fp8, pack_fp32, quantise_fp8
from triolet.loadtest.device.gpu_case import Figures, GpuCase, GpuMachine, check, planted
from triolet.loadtest.device.gpu_check import drawn, equal, faulty, no_worse, require, within
from triolet.loadtest.device.gpu_gemm import inputs_of, rows_among_nan, stored, w4, w8
from triolet.loadtest.device.gpu_timing import microseconds

Tensor = torch.Tensor
Packed = tuple[PackedLinear, Tensor]  # and what it stands for
ROUTINGS = {
    "softmax": Routing(chosen=4, normalised=True),
    "softmax of chosen": Routing(chosen=2, scores="softmax of chosen"),
    "sigmoid in groups": Routing(
        chosen=3, scores="sigmoid", normalised=True, scale=1.5, groups=4, chosen_groups=2, group_best=2
    ),
}
EXPERTS, CHOSEN, WIDTH = 128, 8, 768  # of what is timed
HIDDEN = 2048


def fp8(values: Tensor) -> Packed:
    weight = pack_fp8(*quantise_fp8(values, 1, 0))
    assert weight.scales is not None
    return weight, dequantised(weight.weight, weight.scales)


def bf16(values: Tensor) -> Packed:
    return pack_bf16(values), values.bfloat16().double()


def fp32(values: Tensor) -> Packed:
    return pack_fp32(values), values.double()


FORMATS: dict[str, Callable[[Tensor], Packed]] = {
    "bf16": bf16, "w8": w8, "w4 zeros": partial(w4, 32, False), "w4": partial(w4, 32, True), "fp8": fp8,
    "fp32": fp32,
}  # fmt: skip
STORED = ("AWQ", "Q4_K", "Q6_K", "Q8_0", "MXFP4")


@dataclass(frozen=True, slots=True)
class Stack:
    """The matrices and biases of all experts, and what the matrices stand for. Biases are of the results' type."""

    packed: PackedLinear
    meant: list[Tensor]
    bias: Tensor


def stack(kind: str, experts: int, n: int, k: int) -> Stack:
    """One of FORMATS, or of what checkpoints store."""
    if kind in FORMATS:
        parts = [FORMATS[kind](drawn(20 + expert, n, k) + 0.1) for expert in range(experts)]
    else:
        parts = [stored(kind, n, k, seed=expert) for expert in range(experts)]
    tensors: dict[str, Any] = {  # Any: of these fields alone
        name: torch.stack([one.tensors[name] for one, _ in parts]) for name in parts[0][0].tensors
    }
    bias = drawn(9, experts, n).to(torch.float32 if kind == "fp32" else torch.bfloat16)
    return Stack(replace(parts[0][0], **tensors), [meant for _, meant in parts], bias)


def choices(tokens: int, experts: int, chosen: int) -> Tensor:
    """An expert that takes most tokens, one that takes none, and padding behind."""
    rng = np.random.default_rng(tokens)
    picks = np.stack([rng.permutation(experts - 2)[:chosen] for _ in range(tokens)]).astype(np.int32)
    picks[: tokens // 2, 0] = experts - 2
    picks[tokens - tokens // 8 :] = experts
    return torch.from_numpy(picks).to(torch.get_default_device())


def routed(
    routing: Routing, logits: Tensor, bias: Tensor | None = None, correction: Tensor | None = None, *,
    padding: int = 0, shared_gate: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """[tokens, chosen] and [tokens, chosen + 1]."""
    tokens = len(logits)
    chosen = torch.full((tokens, routing.chosen), -1).int()
    weights = torch.full((tokens, routing.chosen + 1), torch.nan)
    starts = torch.tensor([0, 1, tokens - padding]).int()
    route(routing, logits, starts, chosen, weights, bias=bias, correction=correction, shared_gate=shared_gate)
    return chosen, weights


def check_route(
    routing: Routing, tokens: int, experts: int, _machine: GpuMachine, *, corrected: bool = False
) -> Figures:
    """On a grid, so that many scores are equal, and so are the choices to the bit; one row is NaN, one padding."""
    logits, bias = (8 * drawn(1, tokens, experts)).round() / 8, (8 * drawn(2, experts)).round() / 8
    logits[-2] = torch.nan
    # Not on the grid: scores that are equal with it and not without.
    correction = torch.linspace(-0.5, 0.5, experts) if corrected else None
    exact = None if correction is None else correction.double().cpu().numpy()
    with np.errstate(invalid="ignore"):  # of the NaN
        chosen, weights = routed(routing, logits, bias, correction, padding=1)
        expected, shares = route_reference(routing, (logits + bias).double().cpu().numpy(), exact)
    wanted = torch.from_numpy(expected.astype(np.int32)).to(chosen.device)
    wanted[-1] = experts  # padding
    equal(chosen, wanted, "a choice")
    real = slice(0, tokens - 2)
    require(bool((weights[real, -1] == 1).all()), "shared experts have another weight")
    # exp to 2^-21, and a dozen sums and quotients of 2^-24.
    share = torch.from_numpy(shares).to(chosen.device)[real]
    return {"error": within(weights[real, :-1], share, 2.0**-20 * share, "a weight")}


def check_group(picks: Tensor, experts: int, block_m: int) -> Figures:
    """Every entry is once in a block of its expert, ascending; nothing is written behind the plan."""
    count, flat = picks.numel(), picks.flatten().cpu().numpy()
    blocks, spare = most_blocks(count, experts, block_m), 5
    plan = torch.full((plan_words(count, experts, block_m) + spare,), -1).int()
    group(picks, plan, experts=experts, block_m=block_m)
    require(bool((plan[-spare:] == -1).all()), "words behind the plan were written")
    found = plan[:-spare].cpu().numpy()
    entries, owners, used = found[: blocks * block_m].reshape(blocks, -1), found[blocks * block_m : -1], int(found[-1])
    place = 0
    for expert in range(experts):
        mine = np.flatnonzero(flat == expert)
        needed = -(-len(mine) // block_m)
        require(bool((owners[place : place + needed] == expert).all()), f"a block of expert {expert} is another's")
        listed = entries[place : place + needed].reshape(-1)
        require(np.array_equal(listed[: len(mine)], mine), f"entries of expert {expert} are others")
        require(bool((listed[len(mine) :] == count).all()), f"the last block of expert {expert} has more entries")
        place += needed
    require(used == place <= blocks, f"{used} blocks are in use and not {place}")
    return {"blocks": used}


def check_drawn_group(tokens: int, experts: int, chosen: int, block_m: int, _machine: GpuMachine) -> Figures:
    return check_group(choices(tokens, experts, chosen), experts, block_m)


def product(
    stacked: Stack, x: Tensor, picks: Tensor, launch: Few, x_scales: Tensor | None = None, *, biased: bool = True
) -> Tensor:
    """[entries, n]; -5 where nothing was written."""
    experts = len(stacked.meant)
    plan = torch.full((plan_words(picks.numel(), experts, launch.block_m),), -1).int()
    group(picks, plan, experts=experts, block_m=launch.block_m)
    out = torch.full((picks.numel(), stacked.packed.n), -5.0, dtype=stacked.bias.dtype)
    bias = stacked.bias if biased else None
    multiply_experts(x, stacked.packed, plan, out, launch=launch, experts=experts, x_scales=x_scales, bias=bias)
    return out


def check_product(
    kind: str, tokens: int, shape: tuple[int, int, int], machine: GpuMachine, *,
    picks: Tensor | None = None, launch: Few | None = None, of_entries: bool = False, biased: bool = True,
) -> Figures:  # fmt: skip
    """Entry by entry, two of a token: rows of tokens, or of entries."""
    machine.need(kind)
    experts, n, k = shape
    stacked, picks = stack(kind, experts, n, k), choices(tokens, experts, 2) if picks is None else picks
    count, form = picks.numel(), stacked.packed.format
    x, scales = inputs_of(form, rows_among_nan(count if of_entries else tokens, k, stacked.bias.dtype))
    meant = x.double() if scales is None else dequantised(x, scales)
    launch = launch or launch_for(form, machine.capability, count, experts, strict=False)
    out = product(stacked, x, picks, launch, scales, biased=biased)
    plain, exact = out.clone().fill_(-5.0), out.double().fill_(-5.0)
    sizes = torch.zeros_like(exact)
    for expert in range(experts):
        mine = (picks.flatten() == expert).nonzero()[:, 0]
        rows, bias = meant[mine * len(x) // count], biased * stacked.bias[expert]
        plain[mine] = rows.to(out.dtype) @ stacked.meant[expert].to(out.dtype).T + bias
        exact[mine] = rows @ stacked.meant[expert].T + bias.double()
        sizes[mine] = rows.abs() @ stacked.meant[expert].abs().T + bias.double().abs()
    if form == "fp32":  # only the order of sums is free, and each of K holds at most their size
        return {"error": within(out, exact, k * 2.0**-24 * sizes, "a sum")}
    return no_worse(out, plain, exact)


def check_sum(tokens: int, chosen: int, size: int, _machine: GpuMachine, *, shared: bool = True) -> Figures:
    results, beside = drawn(1, tokens * chosen, size).bfloat16(), drawn(3, tokens, size).bfloat16()
    weights, out = drawn(2, tokens, chosen + 1), torch.full((tokens, size), torch.nan, dtype=torch.bfloat16)
    combine(results, weights, beside if shared else None, out)
    parts = torch.cat([results.view(tokens, chosen, size), shared * beside[:, None]], 1)
    plain = torch.zeros_like(out)
    for place in range(chosen + 1):
        plain += parts[:, place] * weights[:, place, None].bfloat16()
    return no_worse(out, plain, (parts.double() * weights.double()[..., None]).sum(1))


def checks(dry: bool) -> list[GpuCase]:
    sizes = [(9, (5, 72, 256))] if dry else [(9, (5, 200, 512)), (300, (16, 1536, 2048)), (3000, (8, 768, 2048))]
    found = {
        f"experts route by {name}": partial(check_route, routing, 20 if dry else 2000, 12 if dry else 128)
        for name, routing in ROUTINGS.items()
    }
    for tokens, block_m in ((37, 16),) if dry else ((37, 16), (4096, 64)):
        found[f"experts group {tokens}"] = partial(check_drawn_group, tokens, 8 if dry else 128, 3, block_m)
    for kind in (*FORMATS, *STORED):
        for tokens, shape in sizes:
            found[f"experts {kind} {tokens} tokens"] = partial(check_product, kind, tokens, shape)
    found["experts combine"] = partial(check_sum, 3, 2, 40) if dry else partial(check_sum, 500, 8, 2048)
    bias = gpu_launch, "plain_experts_kernel", "of_expert(bias, expert, N)", "bias"
    wrong = planted("experts take one bias", faulty(partial(check_product, "bf16", 9, (5, 72, 96)), bias))
    return [*(check(name, run) for name, run in found.items()), wrong]


def time_product(kind: str, tokens: int, machine: GpuMachine) -> Figures:
    """Gates and ups of a layer, whose matrices all hold the same values: a share of the bandwidth that the chosen
    experts' weights alone take.
    """
    machine.need(kind)
    one = stack(kind, 1, 2 * WIDTH, HIDDEN).packed
    tensors: dict[str, Any] = {name: part.repeat(EXPERTS, *[1] * (part.ndim - 1)) for name, part in one.tensors.items()}
    weight = replace(one, **tensors)
    picks = torch.stack([torch.randperm(EXPERTS)[:CHOSEN] for _ in range(tokens)]).int()
    x, scales = inputs_of(weight.format, drawn(1, tokens, HIDDEN))
    launch = launch_for(weight.format, machine.capability, picks.numel(), EXPERTS, strict=False)
    plan = torch.zeros(plan_words(picks.numel(), EXPERTS, launch.block_m), dtype=torch.int32)
    group(picks, plan, experts=EXPERTS, block_m=launch.block_m)
    out = torch.empty(picks.numel(), 2 * WIDTH, dtype=torch.bfloat16)
    time = microseconds(
        partial(multiply_experts, x, weight, plan, out, launch=launch, experts=EXPERTS, x_scales=scales)
    )  # fmt: skip
    read = sum(part.nbytes for part in one.tensors.values()) * len(np.unique(picks.cpu().numpy()))
    return {
        "us": time,
        "tflops": 2e-6 * out.numel() * HIDDEN / time,
        "weights_of_copy": read / time / 1e3 / machine.limit("copy_gb_s"),
    }


def times(_dry: bool) -> list[GpuCase]:
    return [
        GpuCase(f"experts {kind} {tokens} tokens", partial(time_product, kind, tokens))
        for kind in ("bf16", "w8", "w4 zeros", "fp8", "Q4_K", "MXFP4")
        for tokens in (1, 64, 2048)
    ]
