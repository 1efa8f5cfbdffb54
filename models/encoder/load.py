"""Makes a stepper of an encoder: refusals, memory plan, weights. Encoders run on the CPU."""

from ...protocol.settings import BLOCK_SIZE, EngineSettings
from ...protocol.steps import LoadProgress, MemoryPlan, PoolingModel, ReportProgress
from ..cpu.load import weight_format_of
from ..errors import DoesNotFit, UnsupportedDevice
from ..host import available_memory, usable_cores
from ..memory_plan import context_length, size
from ..stepper import LoadedModel
from .checkpoint import EncoderCheckpoint
from .memory import EncoderSizes, make_shape, weight_bytes, workspace_sizes
from .runner import EncoderRunner
from .stepper import EncoderStepper
from .weights import load_encoder_weights


def load_encoder(checkpoint: EncoderCheckpoint, settings: EngineSettings, report: ReportProgress) -> LoadedModel:
    """Plan, load and compile."""
    if settings.device == "cuda":
        raise UnsupportedDevice("--device cuda: encoders run on the CPU; leave it out, or pass --device cpu")
    sizes, memory = plan_encoder(checkpoint, settings, available_memory())
    weights = load_encoder_weights(checkpoint, checkpoint.spec, report)

    def report_packed(progress: LoadProgress) -> None:
        checkpoint.release_pages()
        report(progress)

    runner = EncoderRunner(checkpoint.spec, weights, sizes, report_packed)
    return LoadedModel(
        stepper=EncoderStepper(runner, checkpoint.head(weights.classifier)),
        device="cpu",
        dtype="float32" if sizes.weight_format == "float32" else "bfloat16",
        kv_cache_dtype="none",
        context_length=sizes.max_length,
        memory=memory,
        libraries=("numba", "llvmlite"),
        model_context_length=checkpoint.max_length,
        pooling=pooling_of(checkpoint),
    )


def plan_encoder(
    checkpoint: EncoderCheckpoint, settings: EngineSettings, available: int
) -> tuple[EncoderSizes, MemoryPlan]:
    """All refusals, using only the checkpoint's headers. `available`: bytes of memory that may be taken.

    A text is read in one step, so --max-step-tokens bounds its length. Its keys and values live for one layer: the
    plan's blocks are counted as for a decoder, but take no memory.
    """
    spec = checkpoint.spec
    length = min(context_length(settings, checkpoint.max_length), settings.max_step_tokens)
    dtype = checkpoint.dtype if settings.dtype == "auto" else settings.dtype
    sizes = EncoderSizes(
        weight_format=weight_format_of(dtype, settings.quantize),
        max_step_tokens=settings.max_step_tokens,
        max_length=length,
        max_texts=min(settings.max_running, settings.max_step_tokens),
        threads=usable_cores() if settings.threads is None else settings.threads,
    )
    shape = make_shape(spec, sizes, embedding_is_bfloat16=True)
    weights = weight_bytes(spec, shape, sizes.weight_format)
    workspace = sum(workspace_sizes(spec, shape, sizes).values())
    if (needed := weights + workspace + checkpoint.widened_bytes) > available:
        raise DoesNotFit(
            f"the model needs {size(needed)} for weights and working memory, but only {size(available)} are available: "
            "use --quantize int8, or lower --max-step-tokens or --max-running"
        )
    of_a_text = -(-length // BLOCK_SIZE)
    return sizes, MemoryPlan(
        weights_bytes=weights,
        workspace_bytes=workspace,
        kv_bytes=0,
        num_blocks=(settings.max_running + 1) * (of_a_text + 1),  # a planner keeps one free per running text
        block_size=BLOCK_SIZE,
        sequences_at_full_length=settings.max_running,
    )


def pooling_of(checkpoint: EncoderCheckpoint) -> PoolingModel:
    """What the front must know of it."""
    spec, files = checkpoint.spec, checkpoint.sentence
    if files is not None:
        return PoolingModel(
            task="embed",
            size=files.head.size(spec.hidden_size),
            pooling=files.head.pooling,
            normalised=files.head.ending == "normalise",
            prompts=files.prompts,
            default_prompt=files.default_prompt,
            dimensions=files.dimensions,
        )
    classifier = spec.classifier
    assert classifier is not None, "a checkpoint has either"
    return PoolingModel(
        task="classify",
        size=len(classifier.labels),
        pooling=classifier.pooling,
        labels=classifier.labels,
        several_labels=classifier.several,
        raw_scores=classifier.raw_scores,
    )
