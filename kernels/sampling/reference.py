"""How the next token is chosen: the definition, in numpy, one row at a time.

In this order, on float32 logits:
 1. repetition penalty r, on every token seen in prompt or output: l / r if l > 0, else l * r
 2. frequency and presence penalty, on every token seen in the output: l - frequency * count - presence
 3. logit_bias is added; 4. banned tokens (stop tokens while under min_tokens) become -inf, and so do those that the
    row's mask does not allow
 5. temperature: d = (l - max l) * (1 / temperature); at 0, or with top_k = 1, the first of the largest logits is taken
 6. top_k, then top_p of what is left, then min_p (relative to the largest probability). All three keep a head of the
    same order: larger weight first, then smaller id. top_p keeps the shortest head holding at least that share.
 7. the Gumbel-max draw: the first largest of d + gumbel(random word of (seed, position, token)) among what is left.
    Adding Gumbel noise and taking the maximum draws from softmax(d). Noise of a token depends on nothing else: neither
    on the batch, nor on the filters, nor on how often a sequence was computed again.

Log probabilities and ranks are of the raw logits, before step 1, and independent of the temperature.
A row with NaN or +inf, or with nothing but -inf, is reported as NOT_FINITE and draws nothing. One that has nothing but
-inf left after step 4 is NONE_LEFT, and draws nothing either.
"""

from typing import Any

import numpy as np

from .numbers import GREEDY_BELOW, LOWEST, ONE, gumbel, philox, token_counter, weight
from .rows import MAX_TOP, NONE_LEFT, NOT_FINITE, OK, Float32Array, Sampled, SamplingRows


def sample(logits: Float32Array, batch: SamplingRows) -> Sampled:
    count = len(logits)
    result = Sampled(
        np.zeros(count, np.int32),
        np.zeros(count, np.uint8),
        np.zeros(count, np.float32),
        np.zeros(count, np.int32),
        np.zeros((count, MAX_TOP), np.int32),
        np.zeros((count, MAX_TOP), np.float32),
    )
    for index in range(count):
        row, raw = batch.rows[index], logits[index]
        adjusted = _adjust(raw, batch, index) if row["target"] < 0 else raw
        if not (_usable(raw) and _usable(adjusted)):
            none_left = _usable(raw) and bool(np.all(adjusted == -np.inf))
            result.status[index] = NONE_LEFT if none_left else NOT_FINITE
            continue
        result.status[index] = OK
        result.tokens[index] = token = _choose(adjusted, row) if row["target"] < 0 else row["target"]
        if row["top"] >= 0:
            distance = raw - raw.max()
            normaliser = np.log(weight(np.maximum(distance, LOWEST)).sum(dtype=np.int64) / ONE)
            result.logprobs[index] = distance[token] - normaliser
            order = np.lexsort((np.arange(len(raw)), -raw))
            result.ranks[index] = 1 + np.flatnonzero(order == token)[0]
            order = order[: row["top"]]
            result.top_tokens[index, : len(order)] = order
            result.top_logprobs[index, : len(order)] = distance[order] - normaliser
    return result


def _adjust(raw: Float32Array, batch: SamplingRows, index: int) -> Float32Array:
    row, logits = batch.rows[index], raw.copy()
    for entry in _entries(batch.seen_starts, index):
        token, times = batch.seen_tokens[entry], batch.seen_counts[entry]
        value = logits[token]
        value = value / row["repetition"] if value > 0 else value * row["repetition"]
        if times > 0:
            value = value - row["frequency"] * np.float32(times) - row["presence"]
        logits[token] = value
    for entry in _entries(batch.bias_starts, index):
        logits[batch.bias_tokens[entry]] += batch.bias_values[entry]
    for entry in _entries(batch.banned_starts, index):
        logits[batch.banned_tokens[entry]] = -np.inf
    if len(batch.mask_lines) and (line := batch.mask_lines[index]) >= 0:
        allowed = np.unpackbits(batch.masks[line].view(np.uint8), bitorder="little")[: len(logits)]
        logits[allowed == 0] = -np.inf
    return logits


def _choose(logits: Float32Array, row: Any) -> int:  # Any: a numpy record
    if row["temperature"] < GREEDY_BELOW or row["top_k"] == 1:
        return int(logits.argmax())
    d = (logits - logits.max()) * (np.float32(1) / row["temperature"])
    scores = np.where(_kept(d, row), d + noise(len(d), int(row["seed"]), int(row["position"])), np.float32(-np.inf))
    return int(scores.argmax())


def _kept(d: Float32Array, row: Any) -> Any:  # Any: a numpy record; a boolean array
    if row["top_k"] == 0 and row["top_p"] >= 1 and row["min_p"] == 0:
        return np.ones(len(d), dtype=bool)
    weights = weight(np.maximum(d, LOWEST))
    order = np.lexsort((np.arange(len(d)), -weights))
    order = order[weights[order] > 0]
    if row["top_k"] > 0:
        order = order[: row["top_k"]]
    held = weights[order].cumsum(dtype=np.int64)
    needed = np.int64(np.ceil(row["top_p"] * np.float64(held[-1])))
    order = order[: np.searchsorted(held, needed) + 1] if row["top_p"] < 1 else order
    order = order[weights[order] >= np.int64(np.ceil(np.float64(row["min_p"]) * ONE))]
    kept = np.zeros(len(d), dtype=bool)
    kept[order] = True
    return kept


def noise(count: int, seed: int, position: int) -> Float32Array:
    """The Gumbel numbers of tokens 0 … count - 1 at a position."""
    counter, word = token_counter(np.arange(count))
    outputs = np.stack(philox(np.uint32(counter), position, seed))
    drawn: Float32Array = gumbel(outputs[word, np.arange(count)])
    return drawn


def _usable(logits: Float32Array) -> bool:
    return bool(np.all(logits < np.inf) and np.any(logits > -np.inf))


def _entries(starts: Any, index: int) -> range:  # Any: an int64 array
    return range(starts[index], starts[index + 1]) if len(starts) else range(0)
