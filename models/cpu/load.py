"""Makes a stepper on the CPU from a checkpoint: refusals, memory plan, weights."""

from msgspec.structs import replace

from ...kernels.sampling.compile_apart import sampler_compiled_apart
from ...kernels.simd.formats import CacheFormat, WeightFormat
from ...protocol.settings import BLOCK_SIZE, EngineSettings
from ...protocol.steps import LoadProgress, MemoryPlan, ReportProgress, ignore_progress
from ..checkpoint.checkpoint import Checkpoint
from ..checkpoint.weights import load_weights
from ..errors import UnsupportedDevice
from ..guides.grammars import load_grammars
from ..host import available_memory, usable_cores
from ..memory_plan import choose_num_blocks, context_length, plan_of, shortest_length
from ..stepper import LoadedModel
from .cpu import CpuRunner
from .memory import CpuSizes, memory_needs
from .stepper import CpuStepper

MAX_LOGIT_BYTES = 64 << 20  # working memory for logits; steps that need more rows run in parts


def load_on_cpu(checkpoint: Checkpoint, settings: EngineSettings, report: ReportProgress) -> LoadedModel:
    """Plan, load and compile. dtype "auto" is the checkpoint's."""
    sizes, memory = plan_on_cpu(checkpoint, settings, available_memory())
    with sampler_compiled_apart():
        runner = load_runner(checkpoint, sizes, report)
        report(LoadProgress(stage="loading sampler", done=0, total=1))
    stepper = CpuStepper(runner, load_grammars(checkpoint, jump_ahead=not settings.no_jump_ahead))
    report(LoadProgress(stage="loading sampler", done=1, total=1))
    return LoadedModel(
        stepper=stepper,
        device="cpu",
        dtype="float32" if sizes.weight_format == "float32" else "bfloat16",
        kv_cache_dtype=sizes.kv_format,
        context_length=sizes.max_model_len,
        memory=memory,
        libraries=("numba", "llvmlite"),
    )


def plan_on_cpu(checkpoint: Checkpoint, settings: EngineSettings, available: int) -> tuple[CpuSizes, MemoryPlan]:
    """All refusals, using only the checkpoint's headers. `available`: bytes of memory that may be taken."""
    spec = checkpoint.spec
    weight_format = _weight_format(checkpoint.dtype if settings.dtype == "auto" else settings.dtype, settings.quantize)
    most_rows = max(settings.max_running, MAX_LOGIT_BYTES // (4 * spec.vocab_size))
    sizes = CpuSizes(
        weight_format=weight_format,
        cache_format=_cache_format(weight_format, settings.kv_cache_dtype),
        max_model_len=context_length(settings, spec.max_position),
        max_step_tokens=settings.max_step_tokens,
        max_logit_rows=max(1, min(settings.max_step_tokens, most_rows)),
        threads=usable_cores() if settings.threads is None else settings.threads,
    )
    needs = memory_needs(spec, sizes)
    blocks = choose_num_blocks(
        available=available,
        fixed_bytes=needs.weights_bytes + needs.workspace_bytes + checkpoint.widened_bytes,
        block_bytes=needs.kv_block_bytes,
        max_model_len=sizes.max_model_len,
        shortest=shortest_length(settings, sizes.max_model_len),
        max_running=settings.max_running,
        kv_cache_memory=settings.kv_cache_memory,
    )
    if blocks * BLOCK_SIZE < sizes.max_model_len:
        sizes = replace(sizes, max_model_len=blocks * BLOCK_SIZE)
        needs = memory_needs(spec, sizes)  # no more than before
    memory = plan_of(
        blocks,
        needs.kv_block_bytes,
        sizes.max_model_len,
        weights=needs.weights_bytes,
        workspace=needs.workspace_bytes,
    )
    return replace(sizes, num_blocks=blocks), memory


def load_runner(checkpoint: Checkpoint, sizes: CpuSizes, report: ReportProgress = ignore_progress) -> CpuRunner:
    """Read and pack the weights, allocate, compile."""
    weights = load_weights(checkpoint, report)

    def report_packed(progress: LoadProgress) -> None:
        checkpoint.release_pages()  # so that a matrix is in memory twice, read and packed, only while it is packed
        report(progress)

    return CpuRunner(checkpoint.spec, weights, sizes, report_packed)


def _weight_format(dtype: str, quantize: str) -> WeightFormat:
    match quantize, dtype:
        case "none", "float32" | "bfloat16":
            return dtype
        case "int8" | "int4" | "int4-128", "float32" | "bfloat16":
            return quantize
        case "none", _:
            raise UnsupportedDevice(f"--dtype {dtype}: the CPU runs bfloat16 and float32")
        case _:
            raise UnsupportedDevice(f"--quantize {quantize}: the CPU runs none, int8, int4 and int4-128")


def _cache_format(weight_format: WeightFormat, kv_cache_dtype: str) -> CacheFormat:
    """auto is float32 for float32 weights, else bfloat16."""
    match kv_cache_dtype, weight_format:
        case "int8", _:
            return "int8"
        case "auto", "float32":
            return "float32"
        case "auto", _:
            return "bfloat16"
        case "bfloat16", "float32":
            raise UnsupportedDevice("--kv-cache-dtype bfloat16 beside float32 weights: leave it at auto, or pass int8")
        case "bfloat16", _:
            return "bfloat16"
        case _:
            raise UnsupportedDevice(f"--kv-cache-dtype {kv_cache_dtype}: the CPU has bfloat16 and int8")
