"""Routes the rows of a step to experts, and groups them by expert. The definition is in reference.py.

Loops over scalars in a fixed order: a row's choice depends on nothing but its logits.
"""

from __future__ import annotations

import math

from ..compile_cache import compiled, inlined
from .reference import LEAST_SUM
from .shape import (
    COUNT,
    EXPERT,
    FIRST,
    NARROW,
    NARROW_STRIDE,
    SIGMOID,
    SOFTMAX,
    SOFTMAX_OF_CHOSEN,
    WIDE,
    WIDTH,
    ExpertMemory,
    ExpertShape,
    Float32Array,
)

NOBODY = -math.inf
TAKEN = math.nan  # compares false with everything


@compiled
def route_row(thread: int, layer: int, row: int, shape: ExpertShape, memory: ExpertMemory) -> None:
    """Choose the experts of one row from its logits. The preferences are the thread's own."""
    scores, preference = memory.logits[row], memory.preference[thread]
    bias, correction = memory.router_bias[layer], memory.correction[layer]
    largest = NOBODY
    for expert in range(shape.experts):
        scores[expert] += bias[expert]
        largest = max(largest, scores[expert])
    if shape.scores == SOFTMAX:
        total = 0.0
        for expert in range(shape.experts):
            scores[expert] = math.exp(scores[expert] - largest)
            total += scores[expert]
        for expert in range(shape.experts):
            scores[expert] /= total
    elif shape.scores == SIGMOID:
        for expert in range(shape.experts):
            scores[expert] = 1 / (1 + math.exp(-scores[expert]))
    for expert in range(shape.experts):
        wanted = scores[expert] + correction[expert]
        preference[expert] = wanted if wanted == wanted else NOBODY
    if shape.groups > 1:
        _leave_groups(shape, preference)
    weights = memory.weights[row]
    for place in range(shape.chosen):
        best = _largest(preference, 0, shape.experts)
        preference[best] = TAKEN
        memory.chosen[row, place] = best
        weights[place] = scores[best]
    total, first = 0.0, weights[0]  # the largest of the chosen logits
    for place in range(shape.chosen):
        if shape.scores == SOFTMAX_OF_CHOSEN:
            weights[place] = math.exp(weights[place] - first)
        total += weights[place]
    divided = shape.normalised or shape.scores == SOFTMAX_OF_CHOSEN
    factor = shape.scale / (total + LEAST_SUM) if divided else shape.scale
    for place in range(shape.chosen):
        weights[place] *= factor
    shared = scores[shape.experts] if shape.shared_gated else math.inf
    weights[shape.chosen] = 1 / (1 + math.exp(-shared))


@inlined
def _largest(values: Float32Array, first: int, last: int) -> int:
    """The index of the largest value, of equal ones the first; what is TAKEN does not count."""
    best = -1
    for index in range(first, last):
        if values[index] == values[index] and (best < 0 or values[index] > values[best]):
            best = index
    return best


@inlined
def _leave_groups(shape: ExpertShape, preference: Float32Array) -> None:
    """Set the preferences of all groups but the best to NOBODY, group by group from the worst."""
    size = shape.experts // shape.groups
    for _ in range(shape.groups - shape.chosen_groups):
        worst, least = -1, math.inf
        for group in range(shape.groups):
            if preference[group * size] != preference[group * size]:
                continue
            worth = _worth(preference, group * size, size, shape.group_best)
            if worst < 0 or worth <= least:  # of equal ones the last
                worst, least = group, worth
        for expert in range(worst * size, (worst + 1) * size):
            preference[expert] = TAKEN
    for expert in range(shape.experts):
        if preference[expert] != preference[expert]:
            preference[expert] = NOBODY


@inlined
def _worth(preference: Float32Array, first: int, size: int, best: int) -> float:
    """The sum of the `best` (1 or 2) largest of a group."""
    one, two = NOBODY, NOBODY
    for index in range(first, first + size):
        value = preference[index]
        if value > one:
            one, two = value, one
        elif value > two:
            two = value
    return one if best == 1 else one + two


@compiled
def group_rows(shape: ExpertShape, memory: ExpertMemory, rows: int) -> None:
    """Fill groups, counts and entries: a counting sort, so the rows of an expert ascend."""
    counts = memory.counts
    counts[:] = 0
    for row in range(rows):
        for place in range(shape.chosen):
            counts[1 + memory.chosen[row, place]] += 1
    used, first = 0, 0
    for expert in range(shape.experts):
        count = counts[1 + expert]
        if count > 0:
            wide = memory.wide + first * 8 * shape.width_padded
            narrow = memory.narrow + first * shape.narrow_stride
            _begin_group(memory, used, expert, first, count, shape.width_padded, wide, narrow, shape.narrow_stride)
            counts[1 + expert] = first  # where its next row goes
            used, first = used + 1, first + count
    for row in range(rows):
        for place in range(shape.chosen):
            expert = memory.chosen[row, place]
            entry = counts[1 + expert]
            counts[1 + expert] += 1
            memory.entry_rows[entry], memory.entry_weights[entry] = row, memory.weights[row, place]
    if shape.shared_padded > 0:
        wide, narrow, stride = memory.shared_wide, memory.shared_narrow, shape.shared_narrow_stride
        _begin_group(memory, used, shape.experts, first, rows, shape.shared_padded, wide, narrow, stride)
        for row in range(rows):
            memory.entry_rows[first + row], memory.entry_weights[first + row] = row, memory.weights[row, shape.chosen]
        used += 1
    counts[0] = used


@inlined
def _begin_group(
    memory: ExpertMemory,
    index: int,
    expert: int,
    first: int,
    count: int,
    width: int,
    wide: int,
    narrow: int,
    narrow_stride: int,
) -> None:
    group = memory.groups[index]
    group[EXPERT], group[FIRST], group[COUNT], group[WIDTH] = expert, first, count, width
    group[WIDE], group[NARROW], group[NARROW_STRIDE] = wide, narrow, narrow_stride
