"""Compiled passes over one row of logits as integers: its largest, whether it is usable, its n largest.

Integer comparisons vectorise directly; float comparisons must handle NaN.
"""

import numpy as np

from ..compile_cache import inner
from .rows import MAX_TOP

INFINITY_BITS = np.int32(0x7F800000)
MAGNITUDE = np.int32(0x7FFFFFFF)
SMALLEST_KEY = np.int32(-(2**31))
HIGHEST_KEY = np.int32(2**31 - 1)


@inner
def order_key(bits):
    """float32 bits -> int32 that orders like the floats, with -0 equal to +0 and NaN beyond the infinities."""
    return bits if bits >= np.int32(0) else np.int32(-np.int32(bits & MAGNITUDE))


@inner
def float_of(key):
    """The float32 of an order key."""
    magnitude = np.int32(key if key >= np.int32(0) else -key)
    value = np.int32(magnitude).view(np.float32)
    return value if key >= np.int32(0) else np.float32(-value)


@inner
def scan(bits):
    """(index of the first largest value, all usable?). Integer maxima vectorise; float ones must handle NaN."""
    largest, smallest, best_start = SMALLEST_KEY, HIGHEST_KEY, 0
    for start in range(0, bits.size, 4096):
        block = bits[start : start + 4096]
        high, low = SMALLEST_KEY, HIGHEST_KEY
        for index in range(block.size):
            key = order_key(block[index])
            high, low = max(high, key), min(low, key)
        smallest = min(smallest, low)
        if high > largest:
            largest, best_start = high, start
    usable = largest < INFINITY_BITS and largest > -INFINITY_BITS and smallest >= -INFINITY_BITS
    best = best_start
    while usable and order_key(bits[best]) != largest:
        best += 1
    return best, usable


@inner
def rank_of(token, logits):
    """How many tokens come before this one, by larger logit and then by smaller id, and one."""
    value, before = logits[token], np.int32(0)
    for index in range(token):
        before += np.int32(1) if logits[index] >= value else np.int32(0)
    for index in range(token + 1, logits.size):
        before += np.int32(1) if logits[index] > value else np.int32(0)
    return np.int32(before + 1)


@inner
def report_top(logits, bits, largest, normaliser, wanted, top_tokens, top_logprobs):
    """The `wanted` largest logits, equal ones by id: an insertion list that skips blocks below its last entry."""
    found = 0
    last = SMALLEST_KEY
    keys = np.empty(MAX_TOP, np.int32)
    for start in range(0, bits.size, 64):
        block = bits[start : start + 64]
        high = SMALLEST_KEY
        for index in range(block.size):
            high = max(high, order_key(block[index]))
        if found == wanted and high <= last:
            continue
        for index in range(block.size):
            key = order_key(block[index])
            if found == wanted and key <= last:
                continue
            place = found if found < wanted else wanted - 1
            while place > 0 and keys[place - 1] < key:
                keys[place], top_tokens[place] = keys[place - 1], top_tokens[place - 1]
                place -= 1
            keys[place], top_tokens[place] = key, start + index
            found = min(found + 1, wanted)
            last = keys[found - 1]
    for place in range(found):
        distance = np.float32(logits[top_tokens[place]] - largest)
        top_logprobs[place] = np.float64(distance) - normaliser
