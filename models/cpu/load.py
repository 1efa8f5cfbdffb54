"""Makes a stepper on the CPU from a checkpoint: refusals, memory plan, weights."""

from collections.abc import Sequence

from msgspec.structs import replace

from ...kernels.embedding.cpu import FLOAT32_TABLE
from ...kernels.gemm.tile_fp4 import packed_bits
from ...kernels.sampling.compile_apart import sampler_compiled_apart
from ...kernels.simd.formats import CacheFormat, WeightFormat
from ...protocol.settings import BLOCK_SIZE, EngineSettings
from ...protocol.steps import LoadProgress, MemoryPlan, ReportProgress, ignore_progress
from ..checkpoint.open import Checkpoint
from ..checkpoint.stored import CodedMatrix, StoredMatrix
from ..checkpoint.weights import load_weights, outline_weights, stored_matrices
from ..errors import UnsupportedDevice, UnsupportedModel
from ..guides.grammars import load_grammars
from ..host import available_memory, physical_cores, usable_cores
from ..memory_plan import choose_num_blocks, context_length, plan_of, shortest_length, size
from ..read_ahead import reading_ahead
from ..stepper import LoadedModel
from .allowed_cores import followed_cores
from .cpu import CpuRunner
from .kept import KeptWeights, open_kept_weights
from .memory import CpuSizes, make_shape, memory_needs
from .numa import interleave_memory
from .stepper import CpuStepper
from .weights import MeasuredWeights

MAX_LOGIT_BYTES = 64 << 20  # working memory for logits; steps that need more rows run in parts


def load_on_cpu(checkpoint: Checkpoint, settings: EngineSettings, report: ReportProgress) -> LoadedModel:
    """Plan, load and compile. dtype "auto" is the checkpoint's."""
    interleave_memory()
    sizes, memory = plan_on_cpu(checkpoint, settings, available_memory())
    kept: KeptWeights | None = None
    if settings.keep_packed_weights:
        kept = open_kept_weights(checkpoint.path, checkpoint.weight_files, checkpoint.spec, sizes.weight_format)
    ahead = [kept.path] if kept is not None and kept.is_current() else []
    with reading_ahead(ahead, parts=1), sampler_compiled_apart():  # the weights are these pages
        grammars = load_grammars(checkpoint, jump_ahead=not settings.no_jump_ahead)  # while the disk reads
        runner = load_runner(checkpoint, sizes, report, kept)
        report(LoadProgress(stage="loading sampler", done=0, total=1))
    stepper = CpuStepper(runner, grammars, followed_cores(sizes))
    report(LoadProgress(stage="loading sampler", done=1, total=1))
    return LoadedModel(
        stepper=stepper,
        device="cpu",
        dtype=described_dtype(checkpoint, sizes.weight_format),
        kv_cache_dtype=sizes.kv_format,
        context_length=sizes.max_model_len,
        largest_step=settings.largest_step(),
        memory=memory,
        table_bytes=sizes.stored_embedding_bytes,
        libraries=("numba", "llvmlite"),
    )


def plan_on_cpu(checkpoint: Checkpoint, settings: EngineSettings, available: int) -> tuple[CpuSizes, MemoryPlan]:
    """All refusals, using only the checkpoint's headers. `available`: bytes of memory that may be taken."""
    spec, step = checkpoint.spec, settings.largest_step()
    if spec.latent is not None and settings.kv_cache_dtype == "int8":
        raise UnsupportedDevice(f"--kv-cache-dtype int8: not for the latent vectors of {spec.family}; leave it at auto")
    stored = stored_matrices(checkpoint)
    dtype = checkpoint.dtype if settings.dtype == "auto" else settings.dtype
    weight_format = weight_format_of(dtype, settings.quantize)
    if stored:
        weight_format = _format_of_stored(stored, weight_format, settings)
    if spec.latent is not None and weight_format == "stored":
        remedy = "does not run from integers as they are stored: --dtype bfloat16 widens them"
        raise UnsupportedModel("latent attention", stored[0].format, remedy)
    most_rows = max(step.max_running, MAX_LOGIT_BYTES // (4 * spec.vocab_size))
    sizes = CpuSizes(
        weight_format=weight_format,
        cache_format=_cache_format(weight_format, settings.kv_cache_dtype),
        max_model_len=context_length(settings, spec.max_position),
        max_step_tokens=step.max_step_tokens,
        max_logit_rows=max(1, min(step.max_step_tokens, most_rows)),
        threads=physical_cores() if settings.threads is None else settings.threads,
        first_threads=usable_cores() if settings.threads is None else None,
        adapters=settings.adapter_places.count > 0,
    )
    if stored:
        sizes = _with_stored_bytes(sizes, checkpoint)
    needs = memory_needs(spec, sizes)
    blocks = choose_num_blocks(
        available=available,
        fixed_bytes=needs.weights_bytes + needs.workspace_bytes + checkpoint.widened_bytes,
        block_bytes=needs.kv_block_bytes,
        max_model_len=sizes.max_model_len,
        shortest=shortest_length(settings, sizes.max_model_len),
        max_running=step.max_running,
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


def load_runner(
    checkpoint: Checkpoint,
    sizes: CpuSizes,
    report: ReportProgress = ignore_progress,
    kept: KeptWeights | None = None,
) -> CpuRunner:
    """Read and pack the weights, or read them as an earlier start packed and kept them; allocate, compile."""
    weights = load_weights(checkpoint, report)

    def report_packed(progress: LoadProgress) -> None:
        checkpoint.release_pages()  # so that a matrix is in memory twice, read and packed, only while it is packed
        report(progress)

    return CpuRunner(checkpoint.spec, weights, sizes, report_packed, kept)


def weight_format_of(dtype: str, quantize: str) -> WeightFormat:
    match quantize, dtype:
        case "none", "float32" | "bfloat16":
            return dtype
        case "int8" | "int4" | "int4-128", "float32" | "bfloat16":
            return quantize
        case "none", _:
            raise UnsupportedDevice(f"--dtype {dtype}: the CPU runs bfloat16 and float32")
        case _:
            raise UnsupportedDevice(f"--quantize {quantize}: the CPU runs none, int8, int4 and int4-128")


def _format_of_stored(stored: Sequence[StoredMatrix], plain: WeightFormat, settings: EngineSettings) -> WeightFormat:
    """Codes run as they are stored; other quantised weights (FP8, NF4) are widened: no type of ours is theirs."""
    codes = sorted({matrix.format for matrix in stored if isinstance(matrix, CodedMatrix)})
    if not codes:
        return plain
    if settings.quantize != "none":
        raise UnsupportedDevice(
            f"--quantize {settings.quantize}: the checkpoint is quantised already ({', '.join(codes)}) and would only "
            "lose more; leave it out, or take the unquantised checkpoint"
        )
    return "stored" if settings.dtype == "auto" else plain


def _with_stored_bytes(sizes: CpuSizes, checkpoint: Checkpoint) -> CpuSizes:
    weights = outline_weights(checkpoint)
    measured = MeasuredWeights(checkpoint.spec, make_shape(checkpoint.spec, sizes, FLOAT32_TABLE), weights)
    return replace(sizes, stored_bytes=measured.bytes, stored_embedding_bytes=measured.embedding_bytes)


def described_dtype(checkpoint: Checkpoint, weight_format: WeightFormat) -> str:
    """For the start report."""
    stored = stored_matrices(checkpoint)
    formats = ", ".join(sorted({matrix.format for matrix in stored}))
    if weight_format == "stored":
        return "; ".join([f"{formats} as stored, other matrices in 16 bits", *_wider_codes(stored)])
    plain = "float32" if weight_format == "float32" else "bfloat16"
    return f"{plain} (widened from {formats})" if formats and weight_format == plain else plain


def _wider_codes(stored: Sequence[StoredMatrix]) -> list[str]:
    """Which codes take more bits here than in the file, and what that costs."""
    more: dict[tuple[str, int], int] = {}
    for matrix in stored:
        if isinstance(matrix, CodedMatrix) and matrix.file_bits is not None:
            bits, (rows, columns) = packed_bits(matrix.layout), matrix.shape
            kind = matrix.format, bits
            more[kind] = more.get(kind, 0) + rows * columns * (bits - matrix.file_bits) // 8
    return [
        f"{name} in {bits}-bit codes, {size(count)} more than the file" for (name, bits), count in more.items() if count
    ]


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
