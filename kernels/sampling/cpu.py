"""The compiled sampler: bit for bit what `reference.py` defines, one row at a time on the calling thread.

Passes over a row of V logits (times at V = 32,000 on one Zen 5 core):
    greedy            one integer pass for the largest logit and for NaN (2 us)
    unfiltered draw   random words and Gumbel numbers per token, blocks that cannot win are skipped (at most 80 us)
    filtered draw     integer weights per token, then a threshold by bisection over the likely candidates only: no sort
    log probabilities one pass of weights, and a pass for the top n that skips blocks below the n-th
A row with penalties, bias or bans is first copied; the caller's logits are never written.
"""

import numpy as np
from numba.extending import register_jitable

from ..compile_cache import compiled
from . import numbers
from .numbers import GREEDY_BELOW, LOWEST, MAX_GUMBEL, ONE, PHILOX_M0, PHILOX_M1, PHILOX_ROUNDS, RANDOM_BLOCK
from .rows import MAX_TOP, NOT_FINITE, OK

weight = register_jitable(numbers.weight)
log = register_jitable(numbers.log)
gumbel = register_jitable(numbers.gumbel)
philox = register_jitable(numbers.philox)
token_counter = register_jitable(numbers.token_counter)

BLOCK = RANDOM_BLOCK
LANES = 64
LIKELY = (np.int32(ONE >> 13), np.int32(ONE >> 20))  # guesses of what filters need: e^-9, e^-14 of the most probable
INFINITY_BITS = np.int32(0x7F800000)
MAGNITUDE = np.int32(0x7FFFFFFF)
SMALLEST_KEY = np.int32(-(2**31))
HIGHEST_KEY = np.int32(2**31 - 1)
ODD0, ODD1 = np.uint32(numbers.PHILOX_W0), np.uint32(numbers.PHILOX_W1)


@compiled
def order_key(bits):
    """float32 bits -> int32 that orders like the floats, with -0 equal to +0 and NaN beyond the infinities."""
    return bits if bits >= np.int32(0) else np.int32(-np.int32(bits & MAGNITUDE))


@compiled
def scan(bits):
    """(index of the first largest value, all usable?). Integer maxima vectorise; float ones must mind NaN."""
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


@compiled
def adjust(logits, row, index, seen_starts, seen_tokens, seen_counts, bias_starts, bias_tokens, bias_values,
           banned_starts, banned_tokens):  # fmt: skip
    """Steps 1 to 4 of the definition, in place."""
    if seen_starts.size > 0:
        for entry in range(seen_starts[index], seen_starts[index + 1]):
            token, times = seen_tokens[entry], seen_counts[entry]
            value = logits[token]
            value = value / row.repetition if value > np.float32(0) else value * row.repetition
            if times > 0:
                value = np.float32(value - np.float32(row.frequency * np.float32(times))) - row.presence
            logits[token] = value
    if bias_starts.size > 0:
        for entry in range(bias_starts[index], bias_starts[index + 1]):
            logits[bias_tokens[entry]] += bias_values[entry]
    if banned_starts.size > 0:
        for entry in range(banned_starts[index], banned_starts[index + 1]):
            logits[banned_tokens[entry]] = -np.inf


@compiled
def weigh(logits, largest, sharpness, weights):
    """Fill `weights` with the integer weights of softmax((logits - largest) * sharpness); their sum."""
    total = np.int64(0)
    for index in range(logits.size):
        d = np.float32((logits[index] - largest) * sharpness)
        value = weight(d if d > LOWEST else LOWEST)
        weights[index] = value
        total += value
    return total


@compiled
def random_words(block, position, seed, words, state):
    """The random words of tokens block * 256 … + 255: 64 Philox counters side by side. `state` is scratch [4, 64]."""
    c0, c1, c2, c3 = state[0], state[1], state[2], state[3]
    low, high = np.uint32(position & numbers.LOW_WORD), np.uint32(position >> numbers.WORD_BITS)
    for lane in range(LANES):
        c0[lane], c1[lane], c2[lane], c3[lane] = np.uint32(block * LANES + lane), low, high, np.uint32(0)
    k0, k1 = np.uint32(seed & numbers.LOW_WORD), np.uint32(seed >> numbers.WORD_BITS)
    for _ in range(PHILOX_ROUNDS):
        for lane in range(LANES):
            first, second = np.uint64(c0[lane]) * PHILOX_M0, np.uint64(c2[lane]) * PHILOX_M1
            c0[lane] = np.uint32(np.uint32(second >> numbers.WORD_BITS) ^ c1[lane] ^ k0)
            c2[lane] = np.uint32(np.uint32(first >> numbers.WORD_BITS) ^ c3[lane] ^ k1)
            c1[lane], c3[lane] = np.uint32(second), np.uint32(first)
        k0, k1 = np.uint32(k0 + ODD0), np.uint32(k1 + ODD1)
    for lane in range(LANES):
        words[lane], words[LANES + lane] = c0[lane], c1[lane]
        words[2 * LANES + lane], words[3 * LANES + lane] = c2[lane], c3[lane]


@compiled
def token_noise(token, position, seed):
    counter, word = token_counter(token)
    a, b, c, d = philox(np.uint32(counter), position, seed)
    return gumbel(a if word == 0 else b if word == 1 else c if word == 2 else d)


@compiled
def draw_unfiltered(logits, bits, best, sharpness, position, seed, words, state):
    """Gumbel-max over the whole row. A block is skipped when even the largest random number could not make it win."""
    largest = logits[best]
    winner, score = best, token_noise(best, position, seed)  # d of the largest logit is 0
    scores = words.view(np.float32)
    score_bits = words.view(np.int32)
    for start in range(0, logits.size, BLOCK):
        block, block_bits = logits[start : start + BLOCK], bits[start : start + BLOCK]
        high = SMALLEST_KEY
        for index in range(block_bits.size):
            high = max(high, order_key(block_bits[index]))
        bound = np.float32((float_of(high) - largest) * sharpness) + MAX_GUMBEL
        if bound < score:
            continue
        random_words(start // BLOCK, position, seed, words, state)
        high = SMALLEST_KEY
        for index in range(block.size):
            value = np.float32((block[index] - largest) * sharpness) + gumbel(words[index])
            scores[index] = value
            high = max(high, order_key(np.float32(value).view(np.int32)))
        reached = float_of(high)
        if reached > score or (reached == score and start < winner):
            for index in range(block.size):
                if order_key(score_bits[index]) == high:
                    if reached > score or start + index < winner:
                        winner, score = start + index, reached
                    break
    return winner


@compiled
def float_of(key):
    """The float32 of an order key."""
    magnitude = np.int32(key if key >= np.int32(0) else -key)
    value = np.int32(magnitude).view(np.float32)
    return value if key >= np.int32(0) else np.float32(-value)


@compiled
def gather(weights, floor, tokens, held):
    """Tokens with weight >= floor, in the order of their ids, and their weights; (how many, their sum)."""
    count, total = 0, np.int64(0)
    for start in range(0, weights.size, 64):
        block = weights[start : start + 64]
        high = np.int32(0)
        for index in range(block.size):
            high = max(high, block[index])
        if high < floor:
            continue
        for index in range(block.size):  # without a branch: on random data a mispredicted one costs 10 times the work
            value, keeps = block[index], block[index] >= floor
            tokens[count], held[count] = start + index, value
            total += value if keeps else np.int32(0)
            count += 1 if keeps else 0
    return count, total


@compiled
def amount_from(held, threshold, by_count):
    """How many candidates weigh at least `threshold`, or how much they weigh together."""
    amount = np.int64(0)
    if by_count:
        for index in range(held.size):
            amount += np.int64(1) if held[index] >= threshold else np.int64(0)
    else:
        for index in range(held.size):
            amount += held[index] if held[index] >= threshold else np.int32(0)
    return amount


@compiled
def highest_threshold(held, needed, by_count, scratch):
    """The largest weight t such that the candidates of weight >= t amount to `needed`; 1 if all together do not.

    First the power of two below it, over all candidates, then its other bits, over those that share the power.
    """
    least, most = 0, 30
    while least < most:
        middle = (least + most + 1) >> 1
        if amount_from(held, np.int32(1 << middle), by_count) >= needed:
            least = middle
        else:
            most = middle - 1
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


@compiled
def gather_enough(row, total, least, weights, tokens, held):
    """The candidates among which the filters decide: as few as suffice for top_k and top_p; (how many, their sum)."""
    needed = np.int64(np.ceil(row.top_p * np.float64(total))) if row.top_p < 1.0 else np.int64(0)
    for guess in LIKELY:
        if guess > least:
            count, amount = gather(weights, guess, tokens, held)
            if count >= row.top_k if row.top_k > 0 else amount >= needed > 0:
                return count, amount
    # min_p alone never needs what is below its own bound, but top_k and top_p come first and count it.
    return gather(weights, np.int32(1) if row.top_k > 0 else least, tokens, held)


@compiled
def keep(row, total, weights, tokens, held):
    """Apply top_k, top_p and min_p: compact `tokens` and `held` (their weights) to what is left, in the order of ids.

    What is left is every weight above a threshold, and the first ids at it. `total` is the sum of all weights, which are
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


@compiled
def draw_filtered(logits, best, row, sharpness, weights, tokens, held, masked, masked_bits, words, state):
    """Gumbel-max over what the filters leave: token by token if few are left, else as a row with the others at -inf.

    `masked` may be the row of `logits` itself.
    """
    largest, position = logits[best], np.uint64(row.position)
    count = keep(row, weigh(logits, largest, sharpness, weights), weights, tokens, held)
    if count > logits.size // 32:
        for index in range(count):
            held.view(np.float32)[index] = logits[tokens[index]]
        masked[:] = -np.inf
        for index in range(count):
            masked[tokens[index]] = held.view(np.float32)[index]
        return draw_unfiltered(masked, masked_bits, best, sharpness, position, row.seed, words, state)
    winner, score = best, np.float32(-np.inf)
    for index in range(count):
        token = tokens[index]
        reached = np.float32((logits[token] - largest) * sharpness) + token_noise(token, position, row.seed)
        if reached > score:
            winner, score = token, reached
    return winner


@compiled
def report_top(logits, bits, largest, normaliser, wanted, top_tokens, top_logprobs):
    """The `wanted` largest logits, equal ones by id: an insertion list, with blocks below its last entry skipped."""
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


@compiled
def sample_rows(
    logits, bits, stride, width, rows, seen_starts, seen_tokens, seen_counts, bias_starts, bias_tokens, bias_values,
    banned_starts, banned_tokens, scratch, scratch_bits, weights, candidates, held, words, state, tokens, status,
    logprobs, top_tokens, top_logprobs,
):  # fmt: skip
    """All rows of a step: row i is logits[i * stride :][:width]; `bits` is the same memory as int32.

    `scratch` and `scratch_bits` are two such views of one row.
    """
    for index in range(rows.size):
        row = rows[index]
        status[index] = OK
        raw, raw_bits = logits[index * stride :][:width], bits[index * stride :][:width]
        source, source_bits = raw, raw_bits
        raw_best, usable = scan(source_bits)
        best = raw_best
        draws = row.target < 0
        if usable and draws and (
            (seen_starts.size > 0 and seen_starts[index + 1] > seen_starts[index])
            or (bias_starts.size > 0 and bias_starts[index + 1] > bias_starts[index])
            or (banned_starts.size > 0 and banned_starts[index + 1] > banned_starts[index])
        ):  # fmt: skip
            scratch[:] = source
            source, source_bits = scratch, scratch_bits
            adjust(scratch, row, index, seen_starts, seen_tokens, seen_counts, bias_starts, bias_tokens, bias_values,
                   banned_starts, banned_tokens)  # fmt: skip
            best, usable = scan(source_bits)
        if not usable:
            status[index] = NOT_FINITE
            continue
        sharpness = np.float32(1) / max(row.temperature, GREEDY_BELOW)
        if not draws:
            tokens[index] = row.target
        elif row.temperature < GREEDY_BELOW or row.top_k == 1:
            tokens[index] = best
        elif row.top_k == 0 and row.top_p >= 1.0 and row.min_p == np.float32(0):
            tokens[index] = draw_unfiltered(
                source, source_bits, best, sharpness, np.uint64(row.position), row.seed, words, state
            )
        else:
            tokens[index] = draw_filtered(
                source, best, row, sharpness, weights, candidates, held, scratch, scratch_bits, words, state
            )
        if row.top >= 0:
            total = weigh(raw, raw[raw_best], np.float32(1), weights)
            normaliser = np.log(np.float64(total) / np.float64(ONE))
            logprobs[index] = np.float64(np.float32(raw[tokens[index]] - raw[raw_best])) - normaliser
            if row.top > 0:
                report_top(
                    raw, raw_bits, raw[raw_best], normaliser, min(np.int64(row.top), np.int64(raw.size)),
                    top_tokens[index], top_logprobs[index],
                )  # fmt: skip
