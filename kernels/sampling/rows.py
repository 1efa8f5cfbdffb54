"""The sampler's input for each row of logits, and its results. Plain numpy arrays, one entry per row.

Sparse lists are in CSR form: entries starts[row]:starts[row + 1] belong to a row. Token ids must be valid: the caller
checks them when a sequence arrives, the kernel does not.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Uint32Array = npt.NDArray[np.uint32]
Float32Array = npt.NDArray[np.float32]

MAX_TOP = 20  # alternatives reported per token
# Sampled.status. NONE_LEFT: the logits are usable, and bias, bans and mask together leave no token.
OK, NOT_FINITE, NONE_LEFT = 0, 1, 2

# One record per row. Fields are in the order in which they act.
ROW = np.dtype(
    [
        ("repetition", np.float32),  # 1 = off
        ("presence", np.float32),
        ("frequency", np.float32),
        ("temperature", np.float32),  # below 1e-5: greedy
        ("top_k", np.int32),  # 0 = all, 1 = greedy
        ("min_p", np.float32),
        ("top_p", np.float64),
        ("seed", np.uint64),
        ("position", np.int64),  # index of the token to be drawn in its whole sequence
        ("target", np.int32),  # -1: draw; a token id: only report its log probability (prompt logprobs)
        ("top", np.int32),  # -1: no log probabilities; n: the token's own and the n largest
    ],
    align=True,
)


_NO_STARTS = np.zeros(0, dtype=np.int64)
_NO_IDS = np.zeros(0, dtype=np.int32)
_NO_VALUES = np.zeros(0, dtype=np.float32)
_NO_MASKS = np.zeros((0, 0), dtype=np.uint32)


def _no_starts() -> Int64Array:
    return _NO_STARTS


def _no_ids() -> Int32Array:
    return _NO_IDS


def _no_values() -> Float32Array:
    return _NO_VALUES


def _no_masks() -> Uint32Array:
    return _NO_MASKS


def mask_words(vocab_size: int) -> int:
    """The words of a mask: one bit for every token, which is set if the token is allowed."""
    return -(-vocab_size // 32)


@dataclass(slots=True)
class SamplingRows:
    """The rows of one step. An empty `starts` or `mask_lines` means that no row has entries of that kind."""

    rows: npt.NDArray[np.void]  # [S] of ROW
    seen_starts: Int64Array = field(default_factory=_no_starts)  # distinct tokens of prompt and output
    seen_tokens: Int32Array = field(default_factory=_no_ids)
    seen_counts: Int32Array = field(default_factory=_no_ids)  # occurrences in the output; 0 = only in the prompt
    bias_starts: Int64Array = field(default_factory=_no_starts)
    bias_tokens: Int32Array = field(default_factory=_no_ids)
    bias_values: Float32Array = field(default_factory=_no_values)
    banned_starts: Int64Array = field(default_factory=_no_starts)  # stop tokens while under min_tokens
    banned_tokens: Int32Array = field(default_factory=_no_ids)
    mask_lines: Int32Array = field(default_factory=_no_ids)  # [S]: the row's line of `masks`; -1: all are allowed
    masks: Uint32Array = field(default_factory=_no_masks)  # [lines, mask_words(vocab)]: bit t % 32 of word t // 32


@dataclass(frozen=True, slots=True)
class Sampled:
    """One entry per row. If its status is not OK, the rest of the entry is meaningless."""

    tokens: Int32Array
    status: npt.NDArray[np.uint8]
    logprobs: Float32Array  # of `tokens`; only for rows that asked
    ranks: Int32Array  # likewise: 1 for the largest logit; of equal ones, the smaller id comes first
    top_tokens: Int32Array  # [S, MAX_TOP], most probable first, equal ones by id; only the first `top` are valid
    top_logprobs: Float32Array
