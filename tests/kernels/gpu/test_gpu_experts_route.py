"""Routing and grouping on the GPU: the definition's choices, ties and NaN included, and lists that hold each once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from triolet.kernels.experts import gpu_group, gpu_route
from triolet.kernels.experts.gpu_group import group, most_blocks, plan_words
from triolet.kernels.experts.gpu_route import route
from triolet.kernels.experts.reference import route_reference
from triolet.kernels.experts.routing import Routing

from .mutants import mutated

Tensor = torch.Tensor
ROUTINGS = {
    "softmax": Routing(chosen=3),
    "normalised": Routing(chosen=4, normalised=True),
    "of chosen": Routing(chosen=2, scores="softmax of chosen"),
    "sigmoid": Routing(chosen=3, scores="sigmoid", normalised=True, scale=2.5),
    "groups": Routing(chosen=4, scores="sigmoid", normalised=True, scale=1.5, groups=4, chosen_groups=2, group_best=2),
    "groups by best": Routing(chosen=3, scale=16.0, groups=4, chosen_groups=2),
    "groups of softmax by two": Routing(chosen=3, groups=2, group_best=2),
}
TOKENS, PADDING = 20, 3


@dataclass(frozen=True)
class Routed:
    chosen: Tensor  # [TOKENS, chosen]
    weights: Tensor  # [TOKENS, chosen + 1]


def routed(
    routing: Routing, logits: Tensor, correction: Tensor | None = None, bias: Tensor | None = None, *,
    padding: int = 0, shared_gate: bool = False,
) -> Routed:  # fmt: skip
    tokens, chosen = len(logits), torch.full((len(logits), routing.chosen), -1, dtype=torch.int32)
    weights = torch.full((tokens, routing.chosen + 1), torch.nan)
    starts = torch.tensor([0, 1, tokens - padding], dtype=torch.int32)
    route(routing, logits, starts, chosen, weights, bias=bias, correction=correction, shared_gate=shared_gate)
    return Routed(chosen, weights)


def drawn_logits(seed: int, experts: int) -> Tensor:
    """On a grid so coarse that many are equal, and that different ones stay different through float32's exp."""
    steps = torch.randint(-40, 40, (TOKENS, experts), generator=torch.Generator().manual_seed(seed))
    return steps.float() / 8


def check_routing(name: str, experts: int = 12, *, with_correction: bool = False, seed: int = 1) -> None:
    routing, logits = ROUTINGS[name], drawn_logits(seed, experts)
    bias, correction = drawn_logits(seed + 1, experts)[0], None
    if with_correction:  # not on the grid: scores that are equal with it and not without
        correction = torch.linspace(-0.5, 0.5, experts)
    found = routed(routing, logits, correction, bias)
    exact = None if correction is None else correction.double().numpy()
    expected, shares = route_reference(routing, (logits + bias).double().numpy(), exact)
    assert np.array_equal(found.chosen.numpy(), expected)
    # exp to 2^-21, and a dozen sums and quotients of 2^-24.
    np.testing.assert_allclose(found.weights[:, :-1].numpy(), shares, rtol=2**-20)
    assert (found.weights[:, -1] == 1).all()


@pytest.mark.parametrize("with_correction", [False, True])
@pytest.mark.parametrize("name", ROUTINGS)
def test_routing_is_as_defined(name: str, with_correction: bool) -> None:
    check_routing(name, with_correction=with_correction)


@pytest.mark.parametrize("experts", [4, 16, 60])
def test_any_number_of_experts(experts: int) -> None:
    check_routing("normalised", experts)


def test_choices_hang_on_logits_that_exp_makes_equal() -> None:
    """Their shares are one float32."""
    logits = torch.zeros(1, 8)
    logits[0, 5], logits[0, 2] = 2.0**-26, -30.0
    assert routed(ROUTINGS["softmax"], logits).chosen.tolist() == [[5, 0, 1]]


def test_ties_and_what_is_no_number_are_decided_as_defined() -> None:
    """Of equal scores the first; NaN after everything else; always different experts."""
    inf, nan = float("inf"), float("nan")
    logits = torch.zeros(6, 16)
    logits[1, [3, 9]] = nan
    logits[2], logits[3, 5], logits[4], logits[5, 1:] = nan, inf, -inf, -inf
    for name, routing in ROUTINGS.items():
        with np.errstate(invalid="ignore"):  # inf - inf
            found = routed(routing, logits)
            expected, shares = route_reference(routing, logits.double().numpy())
        assert np.array_equal(found.chosen.numpy(), expected), name
        np.testing.assert_allclose(found.weights[:, :-1].numpy(), shares, rtol=2**-20)


def test_padding_takes_no_expert_and_a_row_is_the_same_bits_in_any_batch() -> None:
    logits = drawn_logits(3, 13)
    whole = routed(ROUTINGS["normalised"], logits[:, :12].contiguous())
    gated = routed(ROUTINGS["normalised"], logits, padding=PADDING, shared_gate=True)
    real = TOKENS - PADDING
    assert (gated.chosen[real:] == 12).all()
    assert torch.equal(gated.chosen[:real], whole.chosen[:real])
    assert torch.equal(gated.weights[:, :-1], whole.weights[:, :-1])
    torch.testing.assert_close(gated.weights[:, -1], torch.sigmoid(logits[:, 12]), rtol=2**-20, atol=0)
    alone = routed(ROUTINGS["normalised"], logits[7:8, :12].contiguous())
    assert torch.equal(alone.weights[0], whole.weights[7])


def check_groups(chosen: Tensor, experts: int, block_m: int) -> None:
    """Every entry once, in a block of its expert, ascending; the rest filled up."""
    count = chosen.numel()
    plan = torch.full((plan_words(count, experts, block_m) + 5,), -7, dtype=torch.int32)
    group(chosen, plan, experts=experts, block_m=block_m)
    assert (plan[-5:] == -7).all()
    blocks, flat = most_blocks(count, experts, block_m), chosen.flatten()
    entries, owners, used = plan[: blocks * block_m].view(blocks, -1), plan[blocks * block_m :][:blocks], int(plan[-6])
    expected, expected_owners = list[int](), list[int]()
    for expert in range(experts):
        mine = [index for index in range(count) if int(flat[index]) == expert]
        mine += [count] * (-len(mine) % block_m)
        expected += mine
        expected_owners += [expert] * (len(mine) // block_m)
    assert owners[:used].tolist() == expected_owners
    assert entries[:used].flatten().tolist() == expected
    assert len(expected_owners) <= blocks


def drawn_choices(tokens: int, chosen: int, experts: int) -> Tensor:
    rng = np.random.default_rng(tokens)
    picks = np.stack([rng.permutation(experts)[:chosen] for _ in range(tokens)])
    return torch.from_numpy(picks.astype(np.int32))


@pytest.mark.parametrize(("tokens", "taken", "experts", "block_m"), [(1, 2, 4, 16), (37, 3, 8, 16), (400, 3, 5, 64)])
def test_every_entry_is_in_the_list_of_its_expert(tokens: int, taken: int, experts: int, block_m: int) -> None:
    check_groups(drawn_choices(tokens, taken, experts), experts, block_m)


def test_one_expert_may_take_all_and_all_may_be_padding() -> None:
    check_groups(torch.full((40, 1), 2, dtype=torch.int32), 8, 16)
    check_groups(torch.full((5, 2), 8, dtype=torch.int32), 8, 16)


def test_large_tiles_give_the_same_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_group, "LARGE", 100)
    check_groups(drawn_choices(50, 3, 6), 6, 16)


def test_no_choice_needs_more_blocks_than_there_is_room_for() -> None:
    rng = np.random.default_rng(2)
    for _ in range(200):
        experts, count, block_m = int(rng.integers(1, 9)), int(rng.integers(1, 60)), int(rng.choice([4, 16]))
        counts = np.bincount(rng.integers(0, int(rng.integers(1, experts + 1)), count), minlength=experts)
        assert int((-(-counts // block_m)).sum()) <= most_blocks(count, experts, block_m)
    assert most_blocks(17, 8, 16) == 8  # ten in one, seven with one each: none to spare


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("normalised", "shares / (tl.sum(shares, 0) + _LEAST_SUM)", "shares"),
        ("sigmoid", "preference == preference, preference", "preference == preference, -preference"),
        ("groups by best", "tl.where(allowed, preference", "tl.where(inside, preference"),
        ("of chosen", "tl.exp(score - first)", "score"),
        ("softmax", "ranks = tl.where(ranks == best, LOWEST_RANK, ranks)", "pass"),
    ],
)
def test_faults_in_routing_are_found(
    name: str, old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_route, "route_kernel", mutated(gpu_route.route_kernel, old, new, tmp_path))
    with pytest.raises(AssertionError):
        check_routing(name)


@pytest.mark.parametrize(
    ("old", "new"),
    [("number < expert", "number <= expert"), ("tl.cumsum(ones, 0) - 1", "tl.cumsum(ones, 0)"),
     ("entries + rest, count", "entries + rest, 0")],
)  # fmt: skip
def test_faults_in_grouping_are_found(old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_group, "group_kernel", mutated(gpu_group.group_kernel, old, new, tmp_path))
    with pytest.raises(AssertionError):
        check_groups(drawn_choices(37, 3, 8), 8, 16)


def test_what_does_not_fit_is_refused() -> None:
    chosen, plan = drawn_choices(4, 2, 6), torch.zeros(10, dtype=torch.int32)
    with pytest.raises(ValueError, match="the plan holds 10"):
        group(chosen, plan, experts=6, block_m=16)
    for wrong in (chosen.long(), chosen.T):
        with pytest.raises(ValueError, match="chosen: must be contiguous"):
            group(wrong, plan, experts=6, block_m=16)
    given: dict[str, Any] = {
        "logits": torch.zeros(4, 6), "starts": torch.zeros(2, dtype=torch.int32), "chosen": chosen,
        "weights": torch.zeros(4, 3), "bias": torch.zeros(6), "correction": torch.zeros(6),
    }  # fmt: skip
    route(Routing(chosen=2), **given)
    for name, tensor in given.items():
        for wrong in (tensor.double(), tensor[:-1]) if name not in ("logits", "starts") else (tensor.double(),):
            with pytest.raises(ValueError, match=f"{name}: must be contiguous"):
                route(Routing(chosen=2), **given | {name: wrong})
    with pytest.raises(ValueError, match="in 4 groups"):
        route(Routing(chosen=2, groups=4), **given)
    with pytest.raises(ValueError, match="2 of 6 experts in 6 groups, 1 of which are taken: so many cannot"):
        route(Routing(chosen=2, groups=6), **given)
