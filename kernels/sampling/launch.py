"""The sampler as its callers see it: checks, owns the scratch memory, launches the compiled kernel."""

import numpy as np
from numpy.lib.stride_tricks import as_strided

from .rows import MAX_TOP, ROW, Float32Array, Sampled, SamplingRows


class CpuSampler:
    """Samples rows of logits of one vocabulary size. Not thread-safe: the scratch memory is one row's."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._row = np.empty(vocab_size, np.float32)
        self._weights = np.empty(vocab_size, np.int32)
        self._candidates = np.empty(vocab_size, np.int32)
        self._held = np.empty(vocab_size, np.int32)
        self._words = np.empty(256, np.uint32)
        self._state = np.empty((4, 64), np.uint32)

    def sample(self, logits: Float32Array, batch: SamplingRows) -> Sampled:
        """Draw one token per row of `logits` [S, vocab]; `reference.py` is the definition. The logits are only read.

        Their rows may lie further apart than `vocab` (a runner pads them), but each must be contiguous.
        """
        from .cpu import sample_rows  # compiles or loads from the cache on first use: see warm_up

        count = len(batch.rows)
        if logits.shape != (count, self.vocab_size) or logits.dtype != np.float32 or logits.strides[1] != 4:
            raise ValueError(f"expected float32 logits [{count}, {self.vocab_size}], got {logits.dtype} {logits.shape}")
        result = Sampled(
            tokens=np.zeros(count, np.int32),
            status=np.zeros(count, np.uint8),
            logprobs=np.zeros(count, np.float32),
            top_tokens=np.zeros((count, MAX_TOP), np.int32),
            top_logprobs=np.zeros((count, MAX_TOP), np.float32),
        )
        if count == 0:
            return result
        stride = logits.strides[0] // 4
        flat = as_strided(logits, ((count - 1) * stride + self.vocab_size,), (4,))
        sample_rows(
            flat, flat.view(np.int32), stride, self.vocab_size,
            batch.rows, batch.seen_starts, batch.seen_tokens, batch.seen_counts,
            batch.bias_starts, batch.bias_tokens, batch.bias_values, batch.banned_starts, batch.banned_tokens,
            self._row, self._row.view(np.int32), self._weights, self._candidates, self._held, self._words, self._state,
            result.tokens, result.status, result.logprobs, result.top_tokens, result.top_logprobs,
        )  # fmt: skip
        return result

    def warm_up(self) -> None:
        """Compile the kernel, or load it when a process apart has compiled it: nothing compiles after this."""
        from .compile_apart import SAMPLER

        SAMPLER.wait()
        self.sample(np.zeros((1, self.vocab_size), np.float32), SamplingRows(np.zeros(1, ROW)))
