"""Compiled Gumbel-max draws: over a whole row, and over what the filters leave."""

import numpy as np
from numba.extending import register_jitable

from ..compile_cache import inner
from . import numbers
from .filters import keep, weigh
from .keys import SMALLEST_KEY, float_of, order_key
from .numbers import MAX_GUMBEL, PHILOX_M0, PHILOX_M1, PHILOX_ROUNDS, RANDOM_BLOCK

log = register_jitable(numbers.log)
gumbel = register_jitable(numbers.gumbel)
philox = register_jitable(numbers.philox)
token_counter = register_jitable(numbers.token_counter)

LANES = 64  # Philox counters side by side
ODD0, ODD1 = np.uint32(numbers.PHILOX_W0), np.uint32(numbers.PHILOX_W1)


@inner
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


@inner
def token_noise(token, position, seed):
    counter, word = token_counter(token)
    a, b, c, d = philox(np.uint32(counter), position, seed)
    return gumbel(a if word == 0 else b if word == 1 else c if word == 2 else d)


@inner
def draw_unfiltered(logits, bits, best, sharpness, position, seed, words, state):
    """Gumbel-max over the whole row. Skips a block if even the largest random number could not make it win."""
    largest = logits[best]
    winner, score = best, token_noise(best, position, seed)  # d of the largest logit is 0
    scores = words.view(np.float32)
    score_bits = words.view(np.int32)
    for start in range(0, logits.size, RANDOM_BLOCK):
        block, block_bits = logits[start : start + RANDOM_BLOCK], bits[start : start + RANDOM_BLOCK]
        high = SMALLEST_KEY
        for index in range(block_bits.size):
            high = max(high, order_key(block_bits[index]))
        bound = np.float32((float_of(high) - largest) * sharpness) + MAX_GUMBEL
        if bound < score:
            continue
        random_words(start // RANDOM_BLOCK, position, seed, words, state)
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


@inner
def draw_filtered(logits, best, row, sharpness, weights, tokens, held, masked, masked_bits, words, state):
    """Gumbel-max over what the filters leave: token by token if it is little, else as a row with the others at -inf.

    `masked` may be the row of `logits` itself.
    """
    largest, position = logits[best], np.uint64(row.position)
    count = keep(row, weigh(logits, largest, sharpness, weights), weights, tokens, held)
    if count > logits.size // 32:
        place = 0
        for index in range(count):
            masked[place : tokens[index]] = -np.inf
            masked[tokens[index]] = logits[tokens[index]]
            place = tokens[index] + 1
        masked[place:] = -np.inf
        return draw_unfiltered(masked, masked_bits, best, sharpness, position, row.seed, words, state)
    winner, score = best, np.float32(-np.inf)
    for index in range(count):
        token = np.int64(tokens[index])  # as above: for another type it would be compiled twice
        reached = np.float32((logits[token] - largest) * sharpness) + token_noise(token, position, row.seed)
        if reached > score:
            winner, score = token, reached
    return winner
