"""Runs an encoder on the CPU: texts packed one after another, without padding, through one compiled function.

A text's hidden states are bitwise the same whatever else is in its step, and for any number of threads.
"""

import weakref
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from ...kernels.compile_cache import telling_compilations
from ...kernels.encoder_step.cpu import work
from ...kernels.encoder_step.stage import (
    BAD_BLOCKS,
    BAD_LENGTH,
    BAD_STARTS,
    BAD_TOKEN,
    BAD_TYPE,
    OK,
    stage_texts,
)
from ...kernels.simd.formats import CACHE_TAGS, TAGS
from ...kernels.threads.pool import WorkerPool
from ...kernels.threads.shares import Crew
from ...protocol.steps import LoadProgress, ReportProgress, ignore_progress
from ..cpu.cpu import FIRST_START, run_stopped
from .memory import KEY_FORMAT, EncoderMemory, EncoderSizes, make_shape
from .packed import PackedEncoder
from .spec import EncoderSpec
from .weights import EncoderWeights

FloatArray = npt.NDArray[np.float32]
FAULTS = {
    BAD_STARTS: "texts must not be empty",
    BAD_TOKEN: "tokens must be ids of the vocabulary",
    BAD_TYPE: "token types must be below the model's number of them",
    BAD_LENGTH: "texts must have at most max_length tokens",
    BAD_BLOCKS: "more texts than max_texts",
}


class Text(Struct, frozen=True):
    """The tokens of one text, or of two: from `second` on they are the second one's (0: there is none)."""

    tokens: npt.NDArray[np.int32]
    second: int = 0


class EncoderRunner:
    """Only one thread at a time may call `forward`."""

    def __init__(
        self,
        spec: EncoderSpec,
        weights: EncoderWeights,
        sizes: EncoderSizes,
        report: ReportProgress = ignore_progress,
    ) -> None:
        for name in ("max_step_tokens", "max_length", "max_texts", "threads"):
            value: int = getattr(sizes, name)
            if value < 1:
                raise ValueError(f"{name} = {value}: must be at least 1")
        self.spec, self.sizes = spec, sizes
        embedding = np.ascontiguousarray(weights.embedding)
        shape = make_shape(spec, sizes, embedding_is_bfloat16=embedding.dtype == np.uint16)
        held = EncoderMemory(spec, shape, sizes)
        packed = PackedEncoder(spec, shape, weights, sizes.weight_format, held, report)
        memory = held.memory(embedding.ctypes.data)
        self._shape, self._memory = shape, held
        tag, cache_tag = TAGS[sizes.weight_format], CACHE_TAGS[KEY_FORMAT]

        def body(crew: Crew, _keep_alive: object = (packed, embedding, held)) -> None:
            work(tag, cache_tag, crew, shape, memory, held.staged)

        def report_compilation(done: int, total: int) -> None:
            report(LoadProgress(stage=FIRST_START, done=done, total=total))

        report(LoadProgress(stage="loading kernels", done=0, total=1))
        with telling_compilations(report_compilation):
            run_stopped(body)
        self._pool = WorkerPool(sizes.threads, body, sizes.first_threads)
        self._close = weakref.finalize(self, self._pool.close)
        self.forward([Text(np.zeros(1, np.int32))])  # compiles what is left
        report(LoadProgress(stage="loading kernels", done=1, total=1))

    @property
    def max_texts(self) -> int:
        """Of one step."""
        return self.sizes.max_texts

    def forward(self, texts: Sequence[Text]) -> list[FloatArray]:
        """Hidden states [tokens, hidden] of each text: views that the next step overwrites."""
        lengths = [len(text.tokens) for text in texts]
        starts = np.zeros(len(texts) + 1, np.int32)
        np.cumsum(lengths, out=starts[1:])
        total = int(starts[-1])
        if not 1 <= total <= self.sizes.max_step_tokens or len(texts) > self.sizes.max_texts:
            raise ValueError(
                f"{len(texts)} texts of {total} tokens in one step; at most max_texts = {self.sizes.max_texts} "
                f"and max_step_tokens = {self.sizes.max_step_tokens}"
            )
        types = np.zeros(total, np.int32)
        for text, start, end in zip(texts, starts.tolist(), starts[1:].tolist(), strict=False):
            if text.second:
                types[start + text.second : end] = min(1, self.spec.token_types - 1)
        tokens = np.concatenate([text.tokens for text in texts]).astype(np.int32, copy=False)
        fault, index = stage_texts(self._shape, self._memory.staged, tokens, types, starts)
        if fault != OK:
            raise ValueError(f"{FAULTS[fault]} (at index {index})")
        self._pool.run()
        hidden = self._memory.hidden[:, : self._shape.hidden]
        return [hidden[start:end] for start, end in zip(starts.tolist(), starts[1:].tolist(), strict=False)]

    def use_threads(self, threads: int) -> None:
        """In the steps from now on; at most `threads` of the sizes. Not while a step runs. See WorkerPool.use."""
        self._pool.use(threads)

    def progress(self) -> int:
        """Grows while `forward` runs; for any thread."""
        return self._pool.progress()

    def close(self) -> None:
        """Stop the threads. Idempotent; not while a step runs."""
        self._close()
