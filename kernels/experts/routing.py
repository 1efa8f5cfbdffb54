"""How a mixture chooses the experts of a row, as data. Imports no numpy: a model's description holds it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Scores = Literal["softmax", "sigmoid", "softmax of chosen"]


class Routing(Struct, frozen=True, kw_only=True):
    """An expert's score is its logit's softmax over all experts (Switch, arXiv:2101.03961), over the chosen ones only
    (Mixtral, arXiv:2401.04088), or its sigmoid (DeepSeek-V3, arXiv:2412.19437).

    The `chosen` largest scores are taken, of equal ones the first. With `groups` (DeepSeek-V2, arXiv:2405.04434) only
    the experts of the best `chosen_groups` can be; a group is worth the sum of its `group_best` largest.
    """

    chosen: int  # experts of a row
    scores: Scores = "softmax"
    normalised: bool = False  # the chosen scores are divided by their sum
    scale: float = 1.0  # and then multiplied by this
    groups: int = 1
    chosen_groups: int = 1
    group_best: int = 1
