"""Routing and grouping on the GPU: the suite's checks, ties and NaN; planted faults fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from triolet.kernels.experts import gpu_group, gpu_route
from triolet.kernels.experts.gpu_group import group, most_blocks
from triolet.kernels.experts.gpu_route import route
from triolet.kernels.experts.reference import route_reference
from triolet.kernels.experts.routing import Routing
from triolet.loadtest.device.gpu_case import Wrong
from triolet.loadtest.device.gpu_check import drawn, fault
from triolet.loadtest.device.gpu_experts import check_group, check_route, choices, routed

from .cases import MACHINE

ROUTINGS = {
    "softmax": Routing(chosen=3),
    "normalised": Routing(chosen=4, normalised=True),
    "of chosen": Routing(chosen=2, scores="softmax of chosen"),
    "sigmoid": Routing(chosen=3, scores="sigmoid", normalised=True, scale=2.5),
    "groups": Routing(chosen=4, scores="sigmoid", normalised=True, scale=1.5, groups=4, chosen_groups=2, group_best=2),
    "groups by best": Routing(chosen=3, scale=16.0, groups=4, chosen_groups=2),
    "groups of softmax by two": Routing(chosen=3, groups=2, group_best=2),
}


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("name", ROUTINGS)
def test_routing_is_as_defined(name: str, corrected: bool) -> None:
    check_route(ROUTINGS[name], 20, 12, MACHINE, corrected=corrected)


@pytest.mark.parametrize("experts", [4, 16, 60])
def test_any_number_of_experts(experts: int) -> None:
    check_route(ROUTINGS["normalised"], 20, experts, MACHINE)


def test_choices_hang_on_logits_that_exp_makes_equal() -> None:
    """Their shares are one float32."""
    logits = torch.zeros(1, 8)
    logits[0, 5], logits[0, 2] = 2.0**-26, -30.0
    assert routed(ROUTINGS["softmax"], logits)[0].tolist() == [[5, 0, 1]]


def test_ties_and_what_is_no_number_are_decided_as_defined() -> None:
    """Of equal scores the first; NaN after everything else; always different experts."""
    inf, nan = float("inf"), float("nan")
    logits = torch.zeros(6, 16)
    logits[1, [3, 9]] = nan
    logits[2], logits[3, 5], logits[4], logits[5, 1:] = nan, inf, -inf, -inf
    for name, routing in ROUTINGS.items():
        with np.errstate(invalid="ignore"):  # inf - inf
            chosen, weights = routed(routing, logits)
            expected, shares = route_reference(routing, logits.double().numpy())
        assert np.array_equal(chosen.numpy(), expected), name
        np.testing.assert_allclose(weights[:, :-1].numpy(), shares, rtol=2**-20)


def test_padding_takes_no_expert_and_a_row_is_the_same_bits_in_any_batch() -> None:
    logits, routing, real = (8 * drawn(3, 20, 13)).round() / 8, ROUTINGS["normalised"], 17
    chosen, weights = routed(routing, logits[:, :12].contiguous())
    gated, shares = routed(routing, logits, padding=20 - real, shared_gate=True)
    assert (gated[real:] == 12).all()
    assert torch.equal(gated[:real], chosen[:real])
    assert torch.equal(shares[:, :-1], weights[:, :-1])
    torch.testing.assert_close(shares[:, -1], torch.sigmoid(logits[:, 12]), rtol=2**-20, atol=0)
    assert torch.equal(routed(routing, logits[7:8, :12].contiguous())[1][0], weights[7])


@pytest.mark.parametrize(("tokens", "taken", "experts", "block_m"), [(1, 2, 4, 16), (37, 3, 8, 16), (400, 3, 5, 64)])
def test_every_entry_is_in_the_list_of_its_expert(tokens: int, taken: int, experts: int, block_m: int) -> None:
    check_group(choices(tokens, experts, taken), experts, block_m)


def test_one_expert_may_take_all_and_all_may_be_padding() -> None:
    check_group(torch.full((40, 1), 2, dtype=torch.int32), 8, 16)
    check_group(torch.full((5, 2), 8, dtype=torch.int32), 8, 16)


def test_large_tiles_give_the_same_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_group, "LARGE", 100)
    check_group(choices(50, 6, 3), 6, 16)


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
def test_faults_in_routing_are_found(name: str, old: str, new: str) -> None:
    with fault(gpu_route, "route_kernel", old, new), pytest.raises(Wrong):
        check_route(ROUTINGS[name], 20, 12, MACHINE)


@pytest.mark.parametrize(
    ("old", "new"),
    [("number < expert", "number <= expert"), ("tl.cumsum(ones, 0) - 1", "tl.cumsum(ones, 0)"),
     ("entries + rest, count", "entries + rest, 0")],
)  # fmt: skip
def test_faults_in_grouping_are_found(old: str, new: str) -> None:
    with fault(gpu_group, "group_kernel", old, new), pytest.raises(Wrong):
        check_group(choices(37, 8, 3), 8, 16)


def test_what_does_not_fit_is_refused() -> None:
    chosen, plan = choices(4, 6, 2), torch.zeros(10, dtype=torch.int32)
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
