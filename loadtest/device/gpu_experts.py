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
from triolet.kernels.gemm.gpu_weights import PackedLinear, pack_bf16, pack_fp8, quantise_fp8
from triolet.loadtest.device.gpu_case import Figures, GpuCase, GpuMachine, check, planted
from triolet.loadtest.device.gpu_check import drawn, equal, fault, no_worse, require, within
from triolet.loadtest.device.gpu_gemm import stored, w4, w8
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


FORMATS: dict[str, Callable[[Tensor], Packed]] = {
    "bf16": bf16, "w8": w8, "w4 zeros": partial(w4, 32, False), "fp8": fp8,
}  # fmt: skip
STORED = ("AWQ", "Q4_K", "Q6_K", "Q8_0", "MXFP4")


@dataclass(frozen=True, slots=True)
class Stack:
    """The matrices of all experts, and what they stand for."""

    packed: PackedLinear
    meant: list[Tensor]


def stack(kind: str, experts: int, n: int, k: int) -> Stack:
    """One of FORMATS, or of STORED."""
    if kind in FORMATS:
        parts = [FORMATS[kind](drawn(20 + expert, n, k) + 0.1) for expert in range(experts)]
    else:
        parts = [stored(kind, n, k, seed=expert) for expert in range(experts)]
    tensors: dict[str, Any] = {  # Any: of these fields alone
        name: torch.stack([one.tensors[name] for one, _ in parts]) for name in parts[0][0].tensors
    }
    return Stack(replace(parts[0][0], **tensors), [meant for _, meant in parts])


def choices(tokens: int, experts: int, chosen: int) -> Tensor:
    """An expert that takes most tokens, one that takes none, and padding behind."""
    rng = np.random.default_rng(tokens)
    picks = np.stack([rng.permutation(experts - 2)[:chosen] for _ in range(tokens)]).astype(np.int32)
    picks[: tokens // 2, 0] = experts - 2
    picks[tokens - tokens // 8 :] = experts
    return torch.from_numpy(picks).to(torch.get_default_device())


def check_route(routing: Routing, tokens: int, experts: int, machine: GpuMachine) -> Figures:
    """On a grid, so that many scores are equal, and so are the choices to the bit; one row is NaN."""
    del machine  # one launch for every device
    logits, bias = (8 * drawn(1, tokens, experts)).round() / 8, (8 * drawn(2, experts)).round() / 8
    logits[-2] = torch.nan
    chosen = torch.full((tokens, routing.chosen), -1).int()
    weights = torch.full((tokens, routing.chosen + 1), torch.nan)
    route(routing, logits, torch.tensor([0, tokens - 1]).int(), chosen, weights, bias=bias)
    expected, shares = route_reference(routing, (logits + bias).double().cpu().numpy())
    wanted = torch.from_numpy(expected.astype(np.int32)).to(chosen.device)
    wanted[-1] = experts  # padding
    equal(chosen, wanted, "a choice")
    real = slice(0, tokens - 2)
    exact = torch.from_numpy(shares).to(chosen.device)[real]
    return {"error": within(weights[real, :-1], exact, 2.0**-20 * exact, "a weight")}


def check_group(tokens: int, experts: int, chosen: int, block_m: int, machine: GpuMachine) -> Figures:
    """Every entry is once in a block of its expert, ascending."""
    del machine  # one launch for every device
    picks = choices(tokens, experts, chosen)
    count, flat = picks.numel(), picks.flatten().cpu().numpy()
    blocks = most_blocks(count, experts, block_m)
    plan = torch.full((plan_words(count, experts, block_m),), -1).int()
    group(picks, plan, experts=experts, block_m=block_m)
    found = plan.cpu().numpy()
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
    require(used == place, f"{used} blocks are in use and not {place}")
    return {"blocks": used}


def check_product(kind: str, tokens: int, shape: tuple[int, int, int], machine: GpuMachine) -> Figures:
    """Entry by entry: rows of tokens, with a bias."""
    if kind == "fp8":
        machine.need_float8()
    experts, n, k = shape
    stacked, picks = stack(kind, experts, n, k), choices(tokens, experts, 2)
    x, scales = drawn(1, tokens, k).bfloat16(), None
    meant = x.double()
    if kind == "fp8":
        x, scales = quantise_fp8(x, 1, 0)
        meant = dequantised(x, scales)
    bias, count = drawn(9, experts, n).bfloat16(), picks.numel()
    launch = launch_for(stacked.packed.format, machine.capability, count, experts, strict=False)
    plan = torch.full((plan_words(count, experts, launch.block_m),), -1).int()
    group(picks, plan, experts=experts, block_m=launch.block_m)
    out = torch.full((count, n), -5.0, dtype=torch.bfloat16)
    multiply_experts(x, stacked.packed, plan, out, launch=launch, experts=experts, x_scales=scales, bias=bias)
    plain, exact = out.clone().fill_(-5.0), out.double().fill_(-5.0)
    for expert in range(experts):
        mine = (picks.flatten() == expert).nonzero()[:, 0]
        rows = meant[mine // 2]
        plain[mine] = rows.bfloat16() @ stacked.meant[expert].bfloat16().T + bias[expert]
        exact[mine] = rows @ stacked.meant[expert].T + bias[expert].double()
    return no_worse(out, plain, exact)


def check_sum(tokens: int, chosen: int, size: int, machine: GpuMachine) -> Figures:
    del machine  # one launch for every device
    results, shared = drawn(1, tokens * chosen, size).bfloat16(), drawn(3, tokens, size).bfloat16()
    weights, out = drawn(2, tokens, chosen + 1), torch.full((tokens, size), torch.nan, dtype=torch.bfloat16)
    combine(results, weights, shared, out)
    parts = torch.cat([results.view(tokens, chosen, size), shared[:, None]], 1)
    plain = torch.zeros_like(out)
    for place in range(chosen + 1):
        plain += parts[:, place] * weights[:, place, None].bfloat16()
    return no_worse(out, plain, (parts.double() * weights.double()[..., None]).sum(1))


def planted_product(machine: GpuMachine) -> Figures:
    with fault(gpu_launch, "plain_experts_kernel", "of_expert(bias, expert, N)", "bias"):
        return check_product("bf16", 9, (5, 72, 96), machine)


def checks(dry: bool) -> list[GpuCase]:
    sizes = [(9, (5, 72, 256))] if dry else [(9, (5, 200, 512)), (300, (16, 1536, 2048)), (3000, (8, 768, 2048))]
    found = {
        f"experts route by {name}": partial(check_route, routing, 20 if dry else 2000, 12 if dry else 128)
        for name, routing in ROUTINGS.items()
    }
    for tokens, block_m in ((37, 16),) if dry else ((37, 16), (4096, 64)):
        found[f"experts group {tokens}"] = partial(check_group, tokens, 8 if dry else 128, 3, block_m)
    for kind in (*FORMATS, *STORED):
        for tokens, shape in sizes:
            found[f"experts {kind} {tokens} tokens"] = partial(check_product, kind, tokens, shape)
    found["experts combine"] = partial(check_sum, 3, 2, 40) if dry else partial(check_sum, 500, 8, 2048)
    return [*(check(name, run) for name, run in found.items()), planted("experts take one bias", planted_product)]


def time_product(kind: str, tokens: int, machine: GpuMachine) -> Figures:
    """Gates and ups of a layer, whose matrices all hold the same values: a share of the bandwidth that the chosen
    experts' weights alone take.
    """
    if kind == "fp8":
        machine.need_float8()
    one = stack(kind, 1, 2 * WIDTH, HIDDEN).packed
    tensors: dict[str, Any] = {name: part.repeat(EXPERTS, *[1] * (part.ndim - 1)) for name, part in one.tensors.items()}
    weight = replace(one, **tensors)
    picks = torch.stack([torch.randperm(EXPERTS)[:CHOSEN] for _ in range(tokens)]).int()
    x, scales = drawn(1, tokens, HIDDEN).bfloat16(), None
    if kind == "fp8":
        x, scales = quantise_fp8(x, 1, 0)
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


def times(dry: bool) -> list[GpuCase]:
    del dry  # never there
    return [
        GpuCase(f"experts {kind} {tokens} tokens", partial(time_product, kind, tokens))
        for kind in ("bf16", "w8", "w4 zeros", "fp8", "Q4_K", "MXFP4")
        for tokens in (1, 64, 2048)
    ]
