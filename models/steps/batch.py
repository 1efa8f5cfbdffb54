"""What a runner is asked to compute in one step."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Chunks of several sequences, one after another. All arrays are int32, and best C-contiguous and writeable
    (others are copied).

    A chunk is one sequence's next tokens: one in decoding, many in prefill, at any position. Whatever precedes it is
    in the KV cache already; its own keys and values are written before its queries are answered.
    """

    tokens: Int32Array  # [T] token ids
    positions: Int32Array  # [T] absolute positions, consecutive within a chunk
    starts: Int32Array  # [C + 1] chunk c is tokens[starts[c] : starts[c + 1]], none empty
    block_tables: Int32Array  # [C, W] KV block ids of each chunk's sequence; unused entries may be anything
    logit_rows: Int32Array  # [S] indices into tokens whose logits are wanted; may be empty
