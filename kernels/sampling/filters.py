"""Compiled top_k, top_p and min_p on integer weights: thresholds by bisection, exact, without a sort.

All three keep a head of the order (larger weight, then smaller id). So the result is described by a threshold and by
how many of the tokens at the threshold are kept.
"""

import numpy as np
from numba.extending import register_jitable

from ..compile_cache import inner
from . import numbers
from .numbers import LOWEST, ONE

weight = register_jitable(numbers.weight)
LIKELY = (np.int32(ONE >> 13), np.int32(ONE >> 20))  # guesses of the floor filters need: e^-9, e^-14 of the largest


@inner
def weigh(logits, largest, sharpness, weights):
    """Fill `weights` with the integer weights of softmax((logits - largest) * sharpness); returns their sum."""
    total = np.int64(0)
    for index in range(logits.size):
        d = np.float32((logits[index] - largest) * sharpness)
        value = weight(d if d > LOWEST else LOWEST)
        weights[index] = value
        total += value
    return total


@inner
def gather(weights, floor, tokens, held):
    """Gather tokens with weight >= floor, by id, and their weights; returns (how many, sum of weights)."""
    count, total = 0, np.int64(0)
    for start in range(0, weights.size, 64):
        block = weights[start : start + 64]
        high = np.int32(0)
        for index in range(block.size):
            high = max(high, block[index])
        if high < floor:
            continue
        for index in range(block.size):  # branch-free: on random data mispredicted branches cost 10 times the work
            value, keeps = block[index], block[index] >= floor
            tokens[count], held[count] = start + index, value
            total += value if keeps else np.int32(0)
            count += 1 if keeps else 0
    return count, total


@inner
def amount_from(held, threshold, by_count):
    """How many candidates weigh at least `threshold`, or their total weight."""
    amount = np.int64(0)
    if by_count:
        for index in range(held.size):
            amount += np.int64(1) if held[index] >= threshold else np.int64(0)
    else:
        for index in range(held.size):
            amount += held[index] if held[index] >= threshold else np.int32(0)
    return amount


@inner
def highest_threshold(held, needed, by_count, scratch):
    """The largest weight t such that the candidates of weight >= t amount to `needed`; 1 if all together do not.

    Finds the power of two below it over all candidates, then its other bits over those with the same power.
    """
    least, most = 0, 30
    while least < most:
        power = (least + most + 1) >> 1
        if amount_from(held, np.int32(1 << power), by_count) >= needed:
            least = power
        else:
            most = power - 1
    low, high = np.int32(1 << least), np.int32(min((2 << least) - 1, ONE))
    above = amount_from(held, np.int32(high + 1), by_count)
    count = 0
    for index in range(held.size):
        value = held[index]
        scratch[count] = value
        count += 1 if (value >= low) & (value <= high) else 0
    between = scratch[:count]
    while low < high:
        middle = np.int32((low + high + 1) >> 1)
        if above + amount_from(between, middle, by_count) >= needed:
            low = middle
        else:
            high = np.int32(middle - 1)
    return low


@inner
def gather_enough(row, total, least, weights, tokens, held):
    """Gather the candidates for the filters: as few as top_k and top_p need; returns (how many, sum of weights)."""
    needed = np.int64(np.ceil(row.top_p * np.float64(total))) if row.top_p < 1.0 else np.int64(0)
    for guess in LIKELY:
        if guess > least:
            count, amount = gather(weights, guess, tokens, held)
            if count >= row.top_k if row.top_k > 0 else amount >= needed > 0:
                return count, amount
    # min_p alone needs nothing below its own bound, but top_k and top_p come first and count such tokens.
    return gather(weights, np.int32(1) if row.top_k > 0 else least, tokens, held)


@inner
def keep(row, total, weights, tokens, held):
    """Apply top_k, top_p and min_p: compact `tokens` and `held` (their weights) to what is left, in the order of ids.

    All weights above a threshold are left, and the first ids at it. `total` is the sum of all weights, which are
    overwritten.
    """
    least = max(np.int32(1), np.int32(np.ceil(np.float64(row.min_p) * np.float64(ONE))))
    count, amount = gather_enough(row, total, least, weights, tokens, held)
    candidates = held[:count]
    threshold, ties = np.int32(0), np.int64(0)  # kept: weight > threshold, and the first `ties` equal to it
    if 0 < row.top_k < count:
        threshold = highest_threshold(candidates, np.int64(row.top_k), True, weights)
        ties = row.top_k - amount_from(candidates, np.int32(threshold + 1), True)
        total = amount_from(candidates, np.int32(threshold + 1), False) + ties * threshold
    elif row.top_k > 0:
        total = amount
    if row.top_p < 1.0:
        needed = np.int64(np.ceil(row.top_p * np.float64(total)))
        nucleus = highest_threshold(candidates, needed, False, weights)
        missing = needed - amount_from(candidates, np.int32(nucleus + 1), False)
        # The nucleus lies within the top k, so at an equal threshold it never takes more of the ties.
        threshold, ties = nucleus, (missing + nucleus - 1) // nucleus
    left = 0
    for index in range(count):
        value = candidates[index]
        tie = value == threshold
        ties -= 1 if tie else 0
        tokens[left], held[left] = tokens[index], value
        left += 1 if (value >= least) & ((value > threshold) | (tie & (ties >= 0))) else 0
    return left
