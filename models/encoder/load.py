"""Makes a stepper of a model whose texts become vectors: refusals, memory plan, weights. They run on the CPU."""

from pathlib import Path

from ...protocol.settings import EngineSettings
from ...protocol.steps import LoadProgress, MemoryPlan, PoolingModel, ReportProgress
from ..cpu.allowed_cores import followed_cores
from ..cpu.load import described_dtype, weight_format_of
from ..cpu.numa import interleave_memory
from ..errors import DoesNotFit, UnsupportedDevice
from ..host import available_memory, physical_cores, usable_cores
from ..memory_plan import context_length, size
from ..stepper import LoadedModel
from .causal import CausalCheckpoint, CausalRunner, plan_causal
from .checkpoint import EncoderCheckpoint, holds_encoder
from .memory import EncoderSizes, make_shape, plan_of_texts, weight_bytes, workspace_sizes
from .runner import EncoderRunner
from .stepper import EncoderStepper
from .weights import load_encoder_weights

VectorCheckpoint = EncoderCheckpoint | CausalCheckpoint


def open_vector_checkpoint(path: Path) -> VectorCheckpoint:
    """Of a folder for which `makes_vectors` holds."""
    return EncoderCheckpoint(path) if holds_encoder(path) else CausalCheckpoint(path)


def load_vector_model(checkpoint: VectorCheckpoint, settings: EngineSettings, report: ReportProgress) -> LoadedModel:
    """Plan, load and compile."""
    if settings.device == "cuda":
        raise UnsupportedDevice("--device cuda: embedding models run on the CPU; leave it out, or pass --device cpu")
    interleave_memory()
    if isinstance(checkpoint, EncoderCheckpoint):
        return _load_encoder(checkpoint, settings, report)
    return _load_causal(checkpoint, settings, report)


def plan_vectors(checkpoint: VectorCheckpoint, settings: EngineSettings, available: int) -> tuple[int, MemoryPlan]:
    """Tokens of the longest text, and the memory; from headers alone."""
    if isinstance(checkpoint, EncoderCheckpoint):
        sizes, memory = plan_encoder(checkpoint, settings, available)
        return sizes.max_length, memory
    causal, _, memory = plan_causal(checkpoint, settings, available)
    return causal.max_model_len, memory


def _load_causal(checkpoint: CausalCheckpoint, settings: EngineSettings, report: ReportProgress) -> LoadedModel:
    sizes, texts, memory = plan_causal(checkpoint, settings, available_memory())
    runner = CausalRunner(checkpoint, sizes, texts, report=report)
    return LoadedModel(
        stepper=EncoderStepper(runner, checkpoint.head(), followed_cores(sizes)),
        device="cpu",
        dtype=described_dtype(checkpoint, sizes.weight_format),
        kv_cache_dtype=sizes.kv_format,
        context_length=sizes.max_model_len,
        largest_step=settings.largest_step(),
        memory=memory,
        libraries=("numba", "llvmlite"),
        model_context_length=checkpoint.max_length,
        pooling=pooling_of(checkpoint),
    )


def _load_encoder(checkpoint: EncoderCheckpoint, settings: EngineSettings, report: ReportProgress) -> LoadedModel:
    sizes, memory = plan_encoder(checkpoint, settings, available_memory())
    weights = load_encoder_weights(checkpoint, checkpoint.spec, report)

    def report_packed(progress: LoadProgress) -> None:
        checkpoint.release_pages()
        report(progress)

    runner = EncoderRunner(checkpoint.spec, weights, sizes, report_packed)
    return LoadedModel(
        stepper=EncoderStepper(runner, checkpoint.head(weights.classifier), followed_cores(sizes)),
        device="cpu",
        dtype="float32" if sizes.weight_format == "float32" else "bfloat16",
        kv_cache_dtype="none",
        context_length=sizes.max_length,
        largest_step=settings.largest_step(),
        memory=memory,
        libraries=("numba", "llvmlite"),
        model_context_length=checkpoint.max_length,
        pooling=pooling_of(checkpoint),
    )


def plan_encoder(
    checkpoint: EncoderCheckpoint, settings: EngineSettings, available: int
) -> tuple[EncoderSizes, MemoryPlan]:
    """All refusals, using only the checkpoint's headers. `available`: bytes of memory that may be taken.

    A text is read in one step, so --max-step-tokens bounds its length. Its keys and values live for one layer.
    """
    spec, step = checkpoint.spec, settings.largest_step()
    length = min(context_length(settings, checkpoint.max_length), step.max_step_tokens)
    dtype = checkpoint.dtype if settings.dtype == "auto" else settings.dtype
    sizes = EncoderSizes(
        weight_format=weight_format_of(dtype, settings.quantize),
        max_step_tokens=step.max_step_tokens,
        max_length=length,
        max_texts=min(step.max_running, step.max_step_tokens),
        threads=physical_cores() if settings.threads is None else settings.threads,
        first_threads=usable_cores() if settings.threads is None else None,
    )
    shape = make_shape(spec, sizes, embedding_is_bfloat16=True)
    weights = weight_bytes(spec, shape, sizes.weight_format)
    workspace = sum(workspace_sizes(spec, shape, sizes).values())
    if (needed := weights + workspace + checkpoint.widened_bytes) > available:
        raise DoesNotFit(
            f"the model needs {size(needed)} for weights and working memory, but only {size(available)} are available: "
            "use --quantize int8, or lower --max-step-tokens or --max-running"
        )
    return sizes, plan_of_texts(settings, length, weights, workspace)


def pooling_of(checkpoint: VectorCheckpoint) -> PoolingModel:
    """What the front must know of it."""
    files = checkpoint.sentence
    if files is not None:
        return PoolingModel(
            task="embed",
            size=files.head.size(checkpoint.spec.hidden_size),
            pooling=files.head.pooling,
            normalised=files.head.ending == "normalise",
            prompts=files.prompts,
            default_prompt=files.default_prompt,
            dimensions=files.dimensions,
        )
    assert isinstance(checkpoint, EncoderCheckpoint), "a decoder has these files"
    classifier = checkpoint.spec.classifier
    assert classifier is not None, "a checkpoint has either"
    return PoolingModel(
        task="classify",
        size=len(classifier.labels),
        pooling=classifier.pooling,
        labels=classifier.labels,
        several_labels=classifier.several,
        raw_scores=classifier.raw_scores,
    )
