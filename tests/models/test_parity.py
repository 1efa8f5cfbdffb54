"""Our decoders against transformers on random checkpoints: float32 logits within 1e-4 and 64 greedy tokens equal.

The reference decoder first (it is the definition), then the CPU runner: alone, in a batch of mixed lengths, and with
the prompts cut into chunks. Planted errors, a wrong rotary table and an off-by-one window, must fail the same check.
"""

import random
from collections.abc import Callable, Iterator
from math import inf

import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace

from triolet.models.checkpoint.open import open_checkpoint
from triolet.models.checkpoint.spec import Activation, LayerSpec, ModelSpec
from triolet.models.checkpoint.weights import DecoderWeights, load_weights
from triolet.models.cpu.cpu import CpuRunner
from triolet.models.cpu.memory import CpuSizes
from triolet.models.cpu.rows import Batch
from triolet.models.cpu.stepper import CpuStepper
from triolet.models.reference.decoder import reference_logits
from triolet.protocol.sampling import Sampling
from triolet.protocol.steps import Chunk, SequenceRecord, Step

from .parity_cases import ParityCase

BLOCK = 64
Loaded = tuple[ModelSpec, DecoderWeights]
FloatArray = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def loaded(parity_case: ParityCase) -> Loaded:
    checkpoint = open_checkpoint(parity_case.folder)
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
    assert error < case.tolerances[index], f"{case.variant}, seed {case.seed}, prompt {index}: logits differ by {error}"
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

    def with_layers(change: Callable[[LayerSpec], LayerSpec]) -> ModelSpec:
        return replace(spec, layers=tuple(change(layer) for layer in spec.layers))

    def with_rope(**changes: object) -> ModelSpec:
        return with_layers(lambda layer: replace(layer, rope=layer.rope and replace(layer.rope, **changes)))

    def with_window(change: int) -> ModelSpec:
        return with_layers(lambda layer: replace(layer, window=layer.window and layer.window + change))

    def scaled(name: str, factor: float) -> dict[str, ModelSpec]:
        """A number that the spec has, slightly changed."""
        value: float | None = getattr(spec, name)
        if value is None or (name.endswith("_factor") and value == 1.0):
            return {}
        return {name: replace(spec, **{name: value * factor})}

    ropes = {layer.rope for layer in spec.layers if layer.rope is not None}
    rope = max(ropes, key=lambda one: one.kind != "default")
    wrong = {"theta": with_rope(theta=rope.theta * 1.01)}
    if rope.kind in ("linear", "llama3", "yarn"):
        wrong["unscaled"] = with_rope(kind="default", attention_factor=1.0)
        wrong["factor"] = with_rope(factor=rope.factor * 1.02)
    if rope.kind in ("yarn", "longrope"):
        wrong["magnitude"] = with_rope(attention_factor=rope.attention_factor * 1.003)
    if rope.kind == "longrope":
        wrong["other range"] = with_rope(short_factors=rope.long_factors, long_factors=rope.short_factors)
    if rope.query_growth:
        wrong["growth"] = with_rope(query_growth=rope.query_growth * 1.02)
    if len(ropes) > 1 or None in {layer.rope for layer in spec.layers}:
        wrong["rotation of another layer"] = replace(spec, layers=spec.layers[1:] + spec.layers[:1])
    if any(layer.window for layer in spec.layers):
        wrong |= {"window + 1": with_window(1), "window - 1": with_window(-1)}
    if spec.experts is not None:
        routing, count = spec.experts.routing, spec.experts.count
        routings = {
            "another number of experts": replace(routing, chosen=routing.chosen % count + 1),
            "weights": replace(routing, scale=1.01),
        }
        if routing.scores == "softmax of chosen":
            routings["shares of all"] = replace(routing, scores="softmax")
        else:
            routings["weights that do not add up"] = replace(routing, normalised=not routing.normalised)
        if routing.groups > 1:
            routings["all groups"] = replace(routing, groups=1)
        wrong |= {name: replace(spec, experts=replace(spec.experts, routing=one)) for name, one in routings.items()}
        if spec.experts.gate_limit < inf:
            gates = {"gate_limit": 1.02, "gate_slope": 1.01, "up_offset": 0.99}
            for name, factor in gates.items():
                value: float = getattr(spec.experts, name)
                wrong[name] = replace(spec, experts=replace(spec.experts, **{name: value * factor}))
    if spec.sinks:
        wrong["no sinks"] = replace(spec, sinks=False)
    if spec.latent is not None:
        wrong["norm of latent vectors"] = replace(spec, latent=replace(spec.latent, norm_eps=1e-2))
    for name in ("query_scale", "score_cap", "logit_cap", "embedding_factor", "logit_factor"):
        wrong |= scaled(name, 1.01)
    if spec.layer_norm:
        wrong["norm"] = replace(spec, layer_norm=False)
    if spec.parallel:
        wrong["sequential"] = replace(spec, parallel=False)
    if spec.rotary_dim is not None and not rope.short_factors:
        wrong["all dimensions"] = replace(spec, rotary_dim=None)
    if spec.interleaved_rotary:
        wrong["pairs"] = replace(spec, interleaved_rotary=False)
    if spec.qk_norm == "row":
        wrong["heads alone"] = replace(spec, qk_norm="heads")
    if spec.activation != "silu":
        other: Activation = "gelu_tanh" if spec.activation == "gelu" else "gelu"
        wrong["activation"] = replace(spec, activation=other)
    return wrong


def test_planted_errors_are_noticed(parity_case: ParityCase, loaded: Loaded) -> None:
    """All by the reference decoder, and one of them, drawn by the run's seed, by the runner."""
    spec, weights = loaded
    tokens = parity_case.prompts[0] + parity_case.continuations[0]
    wrong = planted_errors(spec)
    for name, other in wrong.items():
        print(name)
        with pytest.raises(AssertionError, match="logits differ"):
            check(parity_case, 0, reference_logits(other, weights, tokens))
    name = random.Random(parity_case.seed).choice(list(wrong))
    print("by the runner:", name)
    runner = make_runner(wrong[name], weights)
    logits = run_whole(runner, tokens, [])
    runner.close()
    with pytest.raises(AssertionError, match="logits differ"):
        check(parity_case, 0, logits)
