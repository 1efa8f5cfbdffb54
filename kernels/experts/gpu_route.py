"""Routing on the GPU: each token's experts and their weights, from the router's logits. The definition is reference.py.

    logits      float32 [T, experts], and one more column where the shared expert has a gate
    bias        float32 [experts], added to the logits; correction float32 [experts], added to the scores for the choice
    starts      int32 [chunks + 1]: the tokens from starts[chunks] on are padding, which takes no expert
    chosen      int32 [T, chosen], the preferred first; `experts`, which no expert is, for padding
    weights     float32 [T, chosen + 1], the last column the shared expert's

A program routes one token, so its choice depends on nothing else. Experts lie in a tile [groups, experts of a group].
A preference and its expert travel as one int64 (sampling/gpu_numbers.py): the maximum is the first of the largest.

Where nothing is added to softmax's scores, logits are compared and not scores: exp would make equal what is not.
"""

from __future__ import annotations

import torch

from ..gpu.language import await_inputs, jit, next_power_of_2, tl
from ..gpu.operand import need
from ..sampling.gpu_numbers import LOWEST_RANK, NEGATIVE_INFINITY, ranked, token_of, value_of
from .reference import LEAST_SUM
from .routing import Routing

Tensor = torch.Tensor
WARPS = 1  # 512 experts are 16 values of a thread; compiled: no spills; not measured
_LEAST_SUM = tl.constexpr(LEAST_SUM)
SOFTMAX, SIGMOID, OF_CHOSEN = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
SCORES = {"softmax": 0, "sigmoid": 1, "softmax of chosen": 2}


@jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@jit
def largest_of(ranks):
    """The largest of a tile."""
    return tl.max(tl.max(ranks, 1), 0)


@jit
def in_best_groups(
    preference, inside, group, member,
    SIZE: tl.constexpr, GROUPS: tl.constexpr, BEST: tl.constexpr, CHOSEN: tl.constexpr,
):  # fmt: skip
    """[groups, 1]: whether a group is one of the CHOSEN best, by the sum of its BEST largest preferences."""
    ranks = tl.where(inside, ranked(preference, group * SIZE + member), LOWEST_RANK)
    worth = tl.zeros((ranks.shape[0],), tl.float32)
    for _ in tl.static_range(BEST):
        best = tl.max(ranks, 1)
        worth += value_of(best)
        ranks = tl.where(ranks == best[:, None], LOWEST_RANK, ranks)
    number = tl.arange(0, ranks.shape[0])
    worth = tl.where(worth == worth, worth, NEGATIVE_INFINITY)
    groups = tl.where(number < GROUPS, ranked(worth, number), LOWEST_RANK)
    taken = number < 0
    for _ in tl.static_range(CHOSEN):
        best = tl.max(groups, 0)
        taken = taken | (groups == best)
        groups = tl.where(groups == best, LOWEST_RANK, groups)
    return taken[:, None]


@jit(do_not_specialize=["chunks"])
def route_kernel(
    logits, bias, correction, starts, chosen, weights, chunks, scale,
    EXPERTS: tl.constexpr, SCORE: tl.constexpr, NORMALISED: tl.constexpr, SHARED_GATE: tl.constexpr,
    GROUPS: tl.constexpr, CHOSEN_GROUPS: tl.constexpr, GROUP_BEST: tl.constexpr, CHOSEN: tl.constexpr,
    GROUP_TILE: tl.constexpr, SIZE_TILE: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    await_inputs()
    token = tl.program_id(0)
    SIZE: tl.constexpr = EXPERTS // GROUPS
    group, member = tl.arange(0, GROUP_TILE)[:, None], tl.arange(0, SIZE_TILE)[None, :]
    inside = (group < GROUPS) & (member < SIZE)
    expert = group * SIZE + member
    here = logits + token.to(tl.int64) * (EXPERTS + SHARED_GATE)
    values = tl.load(here + expert, mask=inside, other=NEGATIVE_INFINITY)
    if bias is not None:
        values += tl.load(bias + expert, mask=inside, other=0.0)
    scores, preference = values, values
    if SCORE == SOFTMAX:
        powers = tl.exp(values - largest_of(tl.where(values == values, values, NEGATIVE_INFINITY)))
        total = tl.sum(tl.sum(powers, 1), 0)
        scores = powers / total
        preference = tl.where(total == total, values, NEGATIVE_INFINITY)  # one NaN spoils every share
        if (correction is not None) or (GROUP_BEST > 1):
            preference = scores
    elif SCORE == SIGMOID:
        scores = sigmoid(values)
        preference = scores
    if correction is not None:
        preference += tl.load(correction + expert, mask=inside, other=0.0)
    preference = tl.where(preference == preference, preference, NEGATIVE_INFINITY)
    if GROUPS > 1:
        allowed = in_best_groups(preference, inside, group, member, SIZE, GROUPS, GROUP_BEST, CHOSEN_GROUPS)
        preference = tl.where(allowed, preference, NEGATIVE_INFINITY)
    ranks = tl.where(inside, ranked(preference, expert), LOWEST_RANK)
    slot = tl.arange(0, SLOTS)
    shares, picks = tl.zeros((SLOTS,), tl.float32), tl.zeros((SLOTS,), tl.int32)
    first = 0.0
    for place in tl.static_range(CHOSEN):
        best = largest_of(ranks)
        score = tl.sum(tl.sum(tl.where(ranks == best, scores, 0.0), 1), 0)
        if SCORE == OF_CHOSEN:
            if place == 0:
                first = score
            score = tl.exp(score - first)
        picks = tl.where(slot == place, token_of(best), picks)
        shares = tl.where(slot == place, score, shares)
        ranks = tl.where(ranks == best, LOWEST_RANK, ranks)
    if NORMALISED:
        shares = shares / (tl.sum(shares, 0) + _LEAST_SUM)
    shares = shares * scale
    if SHARED_GATE:
        shares = tl.where(slot == CHOSEN, sigmoid(tl.load(here + EXPERTS)), shares)
    else:
        shares = tl.where(slot == CHOSEN, 1.0, shares)
    picks = tl.where(token < tl.load(starts + chunks), picks, EXPERTS)
    tl.store(chosen + token.to(tl.int64) * CHOSEN + slot, picks, mask=slot < CHOSEN)
    tl.store(weights + token.to(tl.int64) * (CHOSEN + 1) + slot, shares, mask=slot <= CHOSEN)


def route(
    routing: Routing, logits: Tensor, starts: Tensor, chosen: Tensor, weights: Tensor, *,
    bias: Tensor | None = None, correction: Tensor | None = None, shared_gate: bool = False,
) -> None:  # fmt: skip
    """Fill `chosen` and `weights`. The tensors are contiguous, as in the module's list."""
    (tokens, columns), taken = logits.shape, routing.chosen
    experts = columns - shared_gate
    need("logits", logits, torch.float32, tokens, columns)
    need("starts", starts, torch.int32, len(starts))
    need("chosen", chosen, torch.int32, tokens, taken)
    need("weights", weights, torch.float32, tokens, taken + 1)
    need("bias", bias, torch.float32, experts)
    need("correction", correction, torch.float32, experts)
    size = experts // routing.groups
    if experts % routing.groups or not 0 < taken <= min(routing.chosen_groups, routing.groups) * size:
        allowed = f", {routing.chosen_groups} of which are taken" if routing.groups > 1 else ""
        raise ValueError(f"{taken} of {experts} experts in {routing.groups} groups{allowed}: so many cannot be chosen")
    route_kernel[(tokens,)](
        logits, bias, correction, starts, chosen, weights, len(starts) - 1, float(routing.scale),
        EXPERTS=experts, SCORE=SCORES[routing.scores], SHARED_GATE=int(shared_gate),
        NORMALISED=routing.normalised or routing.scores == "softmax of chosen",
        GROUPS=routing.groups, CHOSEN_GROUPS=routing.chosen_groups, GROUP_BEST=min(routing.group_best, size),
        CHOSEN=taken, GROUP_TILE=next_power_of_2(routing.groups), SIZE_TILE=next_power_of_2(size),
        SLOTS=next_power_of_2(taken + 1), num_warps=WARPS,
    )  # fmt: skip
