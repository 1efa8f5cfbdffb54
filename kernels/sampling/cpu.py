"""The compiled sampler: bit for bit as `reference.py` defines, one row at a time on the calling thread.

Passes over a row of V logits (times at V = 32,000 on one Zen 5 core):
    greedy            one integer pass for the largest logit and for NaN (2 us)
    unfiltered draw   random words and Gumbel numbers per token, blocks that cannot win are skipped (at most 80 us)
    filtered draw     integer weights per token, then a threshold by bisection over the likely candidates only: no sort
    log probabilities one pass of weights, and a pass for the top n that skips blocks below the n-th
A row with penalties, bias, bans or a mask is first copied; the caller's logits are never written.
"""

import numpy as np

from ..compile_cache import compiled, inner
from .draws import draw_filtered, draw_unfiltered
from .filters import weigh
from .keys import rank_of, report_top, scan
from .numbers import GREEDY_BELOW, ONE
from .rows import NONE_LEFT, NOT_FINITE, OK

ALL_ALLOWED = np.uint32(0xFFFFFFFF)
NEGATIVE_INFINITY = np.float32(-np.inf)


@inner
def adjust(logits, row, index, seen_starts, seen_tokens, seen_counts, bias_starts, bias_tokens, bias_values,
           banned_starts, banned_tokens, mask_lines, masks):  # fmt: skip
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
    if mask_lines.size > 0 and mask_lines[index] >= 0:
        apply_mask(logits, masks[mask_lines[index]])


@inner
def apply_mask(logits, mask):
    """Logits of tokens that the mask does not allow become -inf. Most words allow all their tokens, or none."""
    for word in range(mask.size):
        bits = mask[word]
        if bits == ALL_ALLOWED:
            continue
        block = logits[word * 32 : word * 32 + 32]
        for index in range(block.size):
            block[index] = block[index] if (bits >> np.uint32(index)) & np.uint32(1) else NEGATIVE_INFINITY


@compiled
def sample_rows(
    logits, bits, stride, width, rows, seen_starts, seen_tokens, seen_counts, bias_starts, bias_tokens, bias_values,
    banned_starts, banned_tokens, mask_lines, masks, scratch, scratch_bits, weights, candidates, held, words, state,
    tokens, status, logprobs, ranks, top_tokens, top_logprobs,
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
            or (mask_lines.size > 0 and mask_lines[index] >= 0)
        ):  # fmt: skip
            scratch[:] = source
            source, source_bits = scratch, scratch_bits
            adjust(scratch, row, index, seen_starts, seen_tokens, seen_counts, bias_starts, bias_tokens, bias_values,
                   banned_starts, banned_tokens, mask_lines, masks)  # fmt: skip
            best, usable = scan(source_bits)
            if not usable and scratch.max() == NEGATIVE_INFINITY:  # and no NaN
                status[index] = NONE_LEFT
                continue
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
            ranks[index] = rank_of(tokens[index], raw)
            logprobs[index] = np.float64(np.float32(raw[tokens[index]] - raw[raw_best])) - normaliser
            if row.top > 0:
                report_top(
                    raw, raw_bits, raw[raw_best], normaliser, min(np.int64(row.top), np.int64(raw.size)),
                    top_tokens[index], top_logprobs[index],
                )  # fmt: skip


@compiled
def greedy_rows(bits, stride, width, tokens, status):
    """One token for every entry of `tokens`; row i is bits[i * stride :][:width], the logits as int32.

    The same as `sample_rows` for rows without penalties, bias, bans, masks or scores, but with fewer arguments. numba
    unpacks every argument of a call, from memory that a step has evicted from the caches. For one row, the twenty
    arguments of `sample_rows` cost as much as finding the largest logit.
    """
    for index in range(tokens.size):
        tokens[index], usable = scan(bits[index * stride :][:width])
        status[index] = OK if usable else NOT_FINITE
