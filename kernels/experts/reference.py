"""A mixture of experts: which experts each row takes and with what weights, and their weighted sum. In float64.

    chosen, weights = route(x @ router.T + router bias)
    y = sum over the chosen e of weight_e * (down_e @ activation(gate_e @ x + b_e, up_e @ x + c_e) + d_e)

The activation is silu_mul/reference.py's; routing.py says what scores are. With a correction the choice is by score +
correction; the weights stay the scores. NaN is preferred less than everything else, so the choice is always `chosen`
different experts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .routing import Routing

Float64Array = npt.NDArray[np.float64]
LEAST_SUM = 1e-20  # added to the sum that weights are divided by: sigmoids may all be zero


def route_reference(
    routing: Routing, logits: Float64Array, correction: Float64Array | None = None
) -> tuple[npt.NDArray[np.int64], Float64Array]:
    """From [rows, experts] to the chosen experts and their weights, [rows, chosen], the preferred first."""
    scores = logits
    if routing.scores == "softmax":
        scores = _softmax(logits)
    elif routing.scores == "sigmoid":
        scores = 1 / (1 + np.exp(-logits))
    preference = scores if correction is None else scores + correction
    preference = np.where(np.isnan(preference), -np.inf, preference)
    if routing.groups > 1:
        grouped = preference.reshape(len(logits), routing.groups, -1)
        worth = np.sort(grouped, axis=-1)[..., -routing.group_best :].sum(axis=-1)
        best = np.argsort(-worth, axis=-1, kind="stable")[:, : routing.chosen_groups]
        allowed = np.zeros(worth.shape, bool)
        np.put_along_axis(allowed, best, values=True, axis=-1)
        preference = np.where(allowed[..., None], grouped, -np.inf).reshape(preference.shape)
    chosen = np.argsort(-preference, axis=-1, kind="stable")[:, : routing.chosen]
    weights = np.take_along_axis(scores, chosen, axis=-1)
    if routing.scores == "softmax of chosen":
        weights = _softmax(weights)
    if routing.normalised:
        weights = weights / (weights.sum(axis=-1, keepdims=True) + LEAST_SUM)
    return chosen, weights * routing.scale


def _softmax(logits: Float64Array) -> Float64Array:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: Float64Array = powers / powers.sum(axis=-1, keepdims=True)
    return shares
