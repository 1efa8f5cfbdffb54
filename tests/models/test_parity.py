"""Our decoders against transformers on random checkpoints: float32 logits within 1e-4 and 64 greedy tokens equal.

The reference decoder first (it is the definition), then the CPU runner: alone, in a batch of mixed lengths, and with
the prompts cut into chunks. Planted errors, a wrong rotary table and an off-by-one window, must fail the same check.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace

from triolet.models.checkpoint.checkpoint import Checkpoint
from triolet.models.checkpoint.spec import ModelSpec
from triolet.models.checkpoint.weights import DecoderWeights, load_weights
from triolet.models.cpu.cpu import CpuRunner
from triolet.models.cpu.memory import CpuSizes
from triolet.models.cpu.rows import Batch
from triolet.models.cpu.stepper import CpuStepper
from triolet.models.reference import reference_logits
from triolet.protocol.sampling import Sampling
from triolet.protocol.steps import Chunk, SequenceRecord, Step

from .parity_cases import TOLERANCE, ParityCase

BLOCK = 64
Loaded = tuple[ModelSpec, DecoderWeights]
FloatArray = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def loaded(parity_case: ParityCase) -> Loaded:
    checkpoint = Checkpoint(parity_case.folder)
    return checkpoint.spec, load_weights(checkpoint)


@pytest.fixture(scope="module")
def runner(loaded: Loaded) -> Iterator[CpuRunner]:
    runner = make_runner(*loaded)
    yield runner
    runner.close()


def make_runner(spec: ModelSpec, weights: DecoderWeights) -> CpuRunner:
    sizes = CpuSizes(weight_format="float32", num_blocks=24, max_step_tokens=224, max_logit_rows=224, max_model_len=256)
    return CpuRunner(spec, weights, sizes)


def check(case: ParityCase, index: int, logits: FloatArray) -> None:
    """Logits of a prompt and its continuation, fed with transformers' tokens: if every row's largest is the next
    token, then by induction our own greedy decoding gives the same tokens."""
    expected, prompt = case.logits[index], case.prompts[index]
    error = float(np.abs(logits - expected).max())
    assert error < TOLERANCE, f"{case.variant}, seed {case.seed}, prompt {index}: logits differ by {error}"
    greedy = logits[len(prompt) - 1 : -1].argmax(axis=-1).tolist()
    assert greedy == case.continuations[index], f"{case.variant}, seed {case.seed}, prompt {index}"


def run_whole(runner: CpuRunner, tokens: list[int], cuts: list[int]) -> FloatArray:
    """Logits of every token, the sequence fed in chunks that end at `cuts`; its blocks are scattered."""
    table = np.array([[7, 2, 19, 11]], np.int32)
    rows: list[FloatArray] = []
    for start, end in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        batch = Batch(
            tokens=np.array(tokens[start:end], np.int32),
            positions=np.arange(start, end, dtype=np.int32),
            starts=np.array([0, end - start], np.int32),
            block_tables=table,
            logit_rows=np.arange(end - start, dtype=np.int32),
        )
        rows.append(runner.forward(batch).copy())
    return np.concatenate(rows)


def test_reference_decoder(parity_case: ParityCase, loaded: Loaded) -> None:
    for index, prompt in enumerate(parity_case.prompts):
        check(parity_case, index, reference_logits(*loaded, prompt + parity_case.continuations[index]))


def test_cpu_runner_logits_whole_and_in_chunks(parity_case: ParityCase, loaded: Loaded, runner: CpuRunner) -> None:
    for index, prompt in enumerate(parity_case.prompts):
        tokens = prompt + parity_case.continuations[index]
        check(parity_case, index, run_whole(runner, tokens, []))
        check(parity_case, index, run_whole(runner, tokens, [1, 2, len(tokens) // 2, len(tokens) - 1]))


@pytest.mark.parametrize("step_tokens", [224, 23], ids=["whole", "chunked"])
def test_cpu_runner_greedy(parity_case: ParityCase, runner: CpuRunner, step_tokens: int) -> None:
    """Every prompt alone, then all of them at once: decode rows and pieces of prompts share the steps."""
    for index, prompt in enumerate(parity_case.prompts):
        assert decode(runner, [prompt], step_tokens) == [parity_case.continuations[index]]
    assert decode(runner, parity_case.prompts, step_tokens) == parity_case.continuations


def decode(runner: CpuRunner, prompts: list[list[int]], step_tokens: int) -> list[list[int]]:
    """64 greedy tokens of each prompt through CpuStepper, by a small scheduler: decode first, the rest of the budget to
    prompts. Each sequence owns 4 blocks, handed out when it reaches them."""
    stepper = CpuStepper(runner)
    computed, new = [0] * len(prompts), [list[int]() for _ in prompts]
    records = tuple(
        SequenceRecord(
            sequence=index, tokens=tuple(prompt), prompt_tokens=len(prompt), sampling=Sampling(temperature=0),
            stop_token_ids=(),
        )
        for index, prompt in enumerate(prompts)
    )  # fmt: skip
    step = 0
    while any(len(tokens) < 64 for tokens in new):
        budget, chunks = step_tokens, list[Chunk]()
        for index in sorted(range(len(prompts)), key=lambda index: not new[index]):
            total = len(prompts[index]) + len(new[index])
            count = min(total - computed[index], budget)
            if count == 0 or len(new[index]) == 64:
                continue
            held, needed = (-(-tokens // BLOCK) for tokens in (computed[index], computed[index] + count))
            blocks = tuple(4 * block + index for block in range(held, needed))
            sample = computed[index] + count == total
            chunks.append(Chunk(sequence=index, start=computed[index], count=count, blocks=blocks, sample=sample))
            computed[index] += count
            budget -= count
        pending = stepper.begin_step(Step(step=step, chunks=tuple(chunks), new=records if step == 0 else ()))
        for row in pending.wait().rows:
            new[row.sequence] += row.tokens
        step += 1
    return new


def planted_errors(spec: ModelSpec) -> dict[str, ModelSpec]:
    """Specs that are slightly wrong: each must be noticed."""
    rope = spec.rope
    wrong = {"theta": replace(spec, rope=replace(rope, theta=rope.theta * 1.01))}
    if rope.kind != "default":
        wrong["unscaled"] = replace(spec, rope=replace(rope, kind="default", attention_factor=1.0))
        wrong["factor"] = replace(spec, rope=replace(rope, factor=rope.factor * 1.02))
    if rope.kind == "yarn":
        wrong["magnitude"] = replace(spec, rope=replace(rope, attention_factor=rope.attention_factor * 1.001))
    if spec.sliding_window is not None:
        wrong["window + 1"] = replace(spec, sliding_window=spec.sliding_window + 1)
        wrong["window - 1"] = replace(spec, sliding_window=spec.sliding_window - 1)
    return wrong


def test_planted_errors_are_noticed(parity_case: ParityCase, loaded: Loaded) -> None:
    spec, weights = loaded
    tokens = parity_case.prompts[0] + parity_case.continuations[0]
    for name, wrong in planted_errors(spec).items():
        print(name)
        reference = reference_logits(wrong, weights, tokens)
        with pytest.raises(AssertionError, match="logits differ"):
            check(parity_case, 0, reference)
        runner = make_runner(wrong, weights)
        logits = run_whole(runner, tokens, [])
        runner.close()
        with pytest.raises(AssertionError, match="logits differ"):
            check(parity_case, 0, logits)
