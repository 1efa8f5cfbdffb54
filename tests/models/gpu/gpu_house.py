"""A two-layer model on the rehearsal device: small enough for the interpreter, and as a CPU stepper beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from triolet.loadtest.device.gpu_model_values import SMALL, small_weights
from triolet.models.checkpoint.latent import LatentSpec
from triolet.models.checkpoint.spec import ModelSpec
from triolet.models.checkpoint.weights import DecoderWeights
from triolet.models.cpu.cpu import CpuRunner
from triolet.models.cpu.memory import CpuSizes
from triolet.models.cpu.stepper import CpuStepper
from triolet.models.gpu.buckets import Buckets, GpuSizes
from triolet.models.gpu.gpu import GpuModel
from triolet.models.gpu.rehearsal import RehearsalDevice
from triolet.models.guides.grammars import GrammarStore
from triolet.models.reference.decoder import reference_logits
from triolet.models.stepper import PendingStep, Stepper
from triolet.protocol.sampling import Sampling
from triolet.protocol.settings import AdapterPlaces
from triolet.protocol.steps import BlockCopy, Chunk, Row, SequenceRecord, Step, StepDone

SPEC = SMALL
# Neither the latent vector nor the rotated key is a power of two.
LATENT = replace(
    SPEC, family="deepseek_v3", num_heads=2, head_dim=68, qk_norm=None, qkv_bias=False, interleaved_rotary=True,
    query_scale=36**-0.5, latent=LatentSpec(kv_rank=48, query_rank=32, plain_dim=16, rope_dim=20, value_dim=16),
)  # fmt: skip
BLOCKS, MAX_RUNNING, MAX_TOKENS, MAX_ROWS = 12, 3, 12, 4
NO_ADAPTERS = AdapterPlaces()


def make_gpu_model(
    *,
    max_running: int = MAX_RUNNING,
    max_tokens: int = MAX_TOKENS,
    quantize: str = "none",
    kv_cache_dtype: str = "bfloat16",
    blocks: int = BLOCKS,
    adapters: AdapterPlaces = NO_ADAPTERS,
    spec: ModelSpec = SPEC,
    weights: DecoderWeights | None = None,
) -> GpuModel:
    return GpuModel(
        RehearsalDevice(),
        spec,
        weights or small_weights(spec),
        GpuSizes(
            quantize=quantize,
            kv_cache_dtype=kv_cache_dtype,
            num_blocks=blocks,
            max_model_len=spec.max_position,
            buckets=Buckets(
                max_tokens=max_tokens, max_chunks=max_running, max_rows=MAX_ROWS, adapters=adapters.count > 0
            ),
            adapters=adapters,
        ),
    )


def make_cpu_stepper(grammars: GrammarStore | None = None) -> CpuStepper:
    sizes = CpuSizes(
        weight_format="float32",
        num_blocks=BLOCKS,
        max_step_tokens=MAX_TOKENS,
        max_logit_rows=MAX_ROWS,
        max_model_len=SPEC.max_position,
    )
    return CpuStepper(CpuRunner(SPEC, small_weights(SPEC), sizes), grammars)


def prompt_of(length: int, seed: int) -> tuple[int, ...]:
    return tuple(int(token) for token in np.random.default_rng(seed).integers(0, SPEC.vocab_size, length))


def clear_prompt(length: int, seed: int, new_tokens: int, weights: DecoderWeights | None = None) -> tuple[int, ...]:
    """A prompt whose greedy continuation hangs on no near tie, with these weights or those of the model.

    Ten roundings of 2^-9 to logits of up to 16 move each by 0.1, so tokens less than 0.2 apart may change places.
    """
    weights = weights or small_weights(SPEC)
    while True:
        tokens, gaps = list(prompt_of(length, seed)), list[float]()
        for _ in range(new_tokens):
            logits = reference_logits(SPEC, weights, tokens)[-1]
            second, first = np.partition(logits, -2)[-2:]
            gaps.append(float(first - second))
            tokens.append(int(logits.argmax()))
        if min(gaps) > 0.2:
            return tuple(tokens[:length])
        seed += 1000


def record(
    number: int,
    tokens: Sequence[int],
    prompt_tokens: int | None = None,
    stop: tuple[int, ...] = (),
    *,
    strict: bool = False,
    adapter: int = 0,
    **sampling: object,
) -> SequenceRecord:
    options = msgspec.convert({"temperature": 0.0, **sampling}, Sampling)
    return SequenceRecord(
        sequence=number, tokens=tuple(tokens), prompt_tokens=prompt_tokens or len(tokens), sampling=options,
        stop_token_ids=stop, strict=strict, adapter=adapter,
    )  # fmt: skip


class Driver:
    """Steps one after another; with `ahead`, the next is begun before the last is finished."""

    def __init__(self, stepper: Stepper, *, ahead: bool = False) -> None:
        self._stepper, self._ahead = stepper, ahead
        self._pending: list[PendingStep] = []
        self._number = 0
        self.results: list[tuple[Row, ...]] = []
        self.done: list[StepDone] = []

    def step(
        self, *chunks: Chunk, new: Iterable[SequenceRecord] = (), dropped: Iterable[int] = (),
        copies: Iterable[BlockCopy] = (),
    ) -> None:  # fmt: skip
        self._number += 1
        step = Step(step=self._number, chunks=chunks, new=tuple(new), dropped=tuple(dropped), copies=tuple(copies))
        self._pending.append(self._stepper.begin_step(step))
        while len(self._pending) > self._ahead:
            self._finish()

    def drain(self) -> list[tuple[Row, ...]]:
        while self._pending:
            self._finish()
        return self.results

    def drop(self, *sequences: int) -> None:
        self.step(dropped=sequences)
        self.drain()

    def tokens(self, sequence: int) -> list[int]:
        """All that a sequence has drawn."""
        return [token for step in self.drain() for row in step if row.sequence == sequence for token in row.tokens]

    def _finish(self) -> None:
        self.done.append(self._pending.pop(0).wait())
        self.results.append(self.done[-1].rows)
