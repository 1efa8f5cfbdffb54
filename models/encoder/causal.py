"""Decoders that make embeddings (Qwen3-Embedding, E5-Mistral): a decoder's folder with sentence-transformers' files.

Each text is prefilled in one step, in KV blocks of its own, and its hidden states after the last norm are pooled. The
logits are never computed, and no block outlives its step.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from ...kernels.layer_norm.reference import layer_norm_reference
from ...kernels.rms_norm.reference import rms_norm_reference
from ...protocol.settings import BLOCK_SIZE, EngineSettings
from ...protocol.steps import MemoryPlan, ReportProgress, ignore_progress
from ..checkpoint.checkpoint import CheckpointFolder
from ..checkpoint.safetensors import to_float32
from ..checkpoint.weights import DecoderWeights, load_weights
from ..cpu.cpu import CpuRunner
from ..cpu.load import plan_on_cpu
from ..cpu.memory import CpuSizes, memory_needs
from ..cpu.rows import Batch
from ..memory_plan import context_length
from .head import Head
from .memory import plan_of_texts
from .runner import Text
from .sentence import SentenceFiles, read_sentence_files
from .weights import ClassifierWeights

FloatArray = npt.NDArray[np.float32]


class CausalCheckpoint(CheckpointFolder):
    """An opened checkpoint of a decoder, with what sentence-transformers' files say of its pooling."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, headless=True)
        self.sentence: SentenceFiles = read_sentence_files(self.folder, self.spec.hidden_size)

    @property
    def max_length(self) -> int:
        """Tokens of the longest text."""
        return min(self.spec.max_position, self.sentence.max_length or self.spec.max_position)

    def head(self, classifier: ClassifierWeights | None = None) -> Head:
        assert classifier is None, "a decoder with these files has no classifier"
        return self.sentence.head


class CausalRunner:
    """Hidden states of texts by the decoder's step. Only one thread at a time may call `forward`."""

    def __init__(
        self,
        checkpoint: CausalCheckpoint,
        sizes: CpuSizes,
        max_texts: int,
        weights: DecoderWeights | None = None,
        report: ReportProgress = ignore_progress,
    ) -> None:
        """`weights`: None: the checkpoint's."""
        weights = weights or load_weights(checkpoint, report)
        norm, self._spec, self.max_texts = weights.final_norm, checkpoint.spec, max_texts
        self._gain = to_float32(norm.gain)
        self._bias = np.float32(0) if norm.bias is None else to_float32(norm.bias)
        self._runner = CpuRunner(checkpoint.spec, weights, sizes, report)

    def forward(self, texts: Sequence[Text]) -> list[FloatArray]:
        """[tokens, hidden] of each text."""
        ends = np.cumsum([len(text.tokens) for text in texts])
        starts = np.concatenate([[0], ends]).astype(np.int32)
        tables = np.zeros((len(texts), self._runner.sizes.table_width), np.int32)
        used = 0
        for row, text in zip(tables, texts, strict=True):
            blocks = -(-len(text.tokens) // BLOCK_SIZE)
            row[:blocks] = np.arange(used, used + blocks)
            used += blocks
        self._runner.forward(
            Batch(
                tokens=np.concatenate([text.tokens for text in texts]).astype(np.int32),
                positions=np.concatenate([np.arange(len(text.tokens), dtype=np.int32) for text in texts]),
                starts=starts,
                block_tables=tables,
                logit_rows=np.zeros(0, np.int32),
            )
        )
        hidden = self._normed(self._runner.hidden_states(int(ends[-1])))
        return np.split(hidden, ends[:-1])

    def use_threads(self, threads: int) -> None:
        """See CpuRunner."""
        self._runner.use_threads(threads)

    def progress(self) -> int:
        """Grows while `forward` runs; for any thread."""
        return self._runner.progress()

    def close(self) -> None:
        """Stop the threads. Idempotent; not while a step runs."""
        self._runner.close()

    def _normed(self, hidden: FloatArray) -> FloatArray:
        if self._spec.layer_norm:
            return layer_norm_reference(hidden, self._gain, self._bias, self._spec.norm_eps).astype(np.float32)
        return rms_norm_reference(hidden, self._gain, self._spec.norm_eps).astype(np.float32)


def plan_causal(
    checkpoint: CausalCheckpoint, settings: EngineSettings, available: int
) -> tuple[CpuSizes, int, MemoryPlan]:
    """The runner's sizes, texts of a step, and memory; all refusals, from headers alone.

    A text is read in one step, so --max-step-tokens bounds its length. Blocks are for the texts of one step.
    """
    step = settings.largest_step()
    length = min(context_length(settings, checkpoint.max_length), step.max_step_tokens)
    texts = min(step.max_running, step.max_step_tokens)
    asked = replace(settings, max_model_len=length, kv_cache_memory=None)
    sizes, _ = plan_on_cpu(checkpoint, asked, available)
    blocks = step.max_step_tokens // BLOCK_SIZE + texts
    sizes = replace(sizes, num_blocks=blocks, max_model_len=length, max_logit_rows=1)
    needs = memory_needs(checkpoint.spec, sizes)
    taken = needs.weights_bytes, needs.workspace_bytes, blocks * needs.kv_block_bytes
    return sizes, texts, plan_of_texts(settings, length, *taken)
