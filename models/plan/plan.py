"""What a model takes of a machine, and how fast it can be there: from headers, by the code that plans its load."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from msgspec import Struct, structs

from ...protocol.settings import BLOCK_SIZE, EngineSettings
from ...protocol.steps import MemoryPlan, TokenWork
from ..checkpoint.open import Checkpoint
from ..errors import LoadError, UnsupportedDevice
from ..memory_plan import shortest_length
from .devices import DEVICES, DeviceFigures
from .speed import Rates, Speeds, cost_of_million, speeds
from .work import work_of

if TYPE_CHECKING:
    from ..gpu.device import Device

CPU_SHARE: Final = 0.9  # of a planned machine's memory: the system takes the rest
CPU_FORMATS: Final = ("none", "int8", "int4")
GPU_FORMATS: Final = ("none", "fp8", "int8", "int4")
_ON_GPU: Final = {"fp8": "fp8", "fp8-block": "fp8", "w8a8": "int8"}  # what products run in; others: bfloat16

FindRates = Callable[[str, int], Rates]  # by what the weights are stored as, and threads


class Costs(Struct, frozen=True, kw_only=True):
    """Of a million tokens, in the currency of the price; None where the speed is not known."""

    prompt: float | None
    generated_alone: float | None
    generated_together: float | None


class PrecisionPlan(Struct, frozen=True, kw_only=True):
    """The model with its weights in one format. `problem` says why it does not run so; then the rest is None."""

    quantize: str
    weights: str  # the format by name: that of the checkpoint, or of --quantize
    problem: str = ""
    memory: MemoryPlan | None = None
    context_length: int = 0  # that the memory allows
    work: TokenWork | None = None
    speeds: Speeds | None = None
    costs: Costs | None = None


class ModelPlan(Struct, frozen=True, kw_only=True):
    """One model on one machine. `available`: bytes of memory that it may take."""

    model: str
    architecture: str
    parameters: int
    active_parameters: int  # of a mixture of experts: those that one token uses
    context_length: int
    device: str
    available: int
    source: str  # of the machine's figures
    precisions: tuple[PrecisionPlan, ...]


class _Fitted(Struct, frozen=True):
    """A load that fits: its memory, precision as the start report says it, longest sequence in tokens, sequences of a
    step, threads. `products`: the format that decides what they run in, where `dtype` is a description.
    """

    memory: MemoryPlan
    dtype: str
    length: int
    max_running: int
    threads: int = 0
    table_bytes: int | None = None
    products: str = ""


class PlannedGpu:
    """A GPU that is not here, for the functions that plan its memory."""

    def __init__(self, figures: DeviceFigures) -> None:
        assert figures.capability is not None
        self.name = figures.name
        self.capability = figures.capability
        self.multiprocessors = figures.multiprocessors
        self._memory = figures.memory

    def free_memory(self) -> tuple[int, int]:
        return self._memory, self._memory


def plan_for(
    checkpoint: Checkpoint, settings: EngineSettings, figures: DeviceFigures, price: float | None = None
) -> ModelPlan:
    """On a machine of the table. With `settings.quantize` for that format alone, else for all that the device runs.

    Raises UnsupportedDevice if the packages that plan a GPU's memory are missing.
    """
    formats = _formats(settings, GPU_FORMATS if figures.is_gpu else CPU_FORMATS)
    available = figures.memory if figures.is_gpu else int(figures.memory * CPU_SHARE)

    def rates(weights: str, _threads: int) -> Rates:
        operations = figures.operations.get(_ON_GPU.get(weights, "bfloat16"))
        return Rates(bandwidth=figures.bandwidth, operations=operations)

    def plan(chosen: EngineSettings) -> _Fitted:
        if figures.is_gpu:
            return _plan_on_gpu(checkpoint, chosen, cast("Device", PlannedGpu(figures)))
        return _plan_on_cpu(checkpoint, chosen, available)

    return _model_plan(checkpoint, settings, formats, plan, rates, figures.name, available, figures.source, price)


def plan_here(
    checkpoint: Checkpoint,
    settings: EngineSettings,
    available: int,
    rates: FindRates,
    price: float | None = None,
) -> ModelPlan:
    """On this machine's CPU, with `available` bytes free."""

    def plan(chosen: EngineSettings) -> _Fitted:
        return _plan_on_cpu(checkpoint, chosen, available)

    source = "this machine, by `triolet bench offline`"
    formats = _formats(settings, CPU_FORMATS)
    return _model_plan(checkpoint, settings, formats, plan, rates, "cpu", available, source, price)


def _formats(settings: EngineSettings, all_formats: tuple[str, ...]) -> tuple[str, ...]:
    return all_formats if settings.quantize == "none" else (settings.quantize,)


def _model_plan(
    checkpoint: Checkpoint,
    settings: EngineSettings,
    formats: tuple[str, ...],
    plan: Callable[[EngineSettings], _Fitted],
    rates: FindRates,
    device: str,
    available: int,
    source: str,
    price: float | None,
) -> ModelPlan:
    found: list[PrecisionPlan] = []
    for quantize in formats:
        chosen = structs.replace(settings, quantize=quantize)
        try:
            fitted = plan(chosen)
        except LoadError as error:
            found.append(
                PrecisionPlan(quantize=quantize, weights=_format_name(checkpoint, quantize), problem=str(error))
            )
            continue
        memory, length = fitted.memory, fitted.length
        weights = fitted.dtype if quantize == "none" else quantize
        on_gpu = device in DEVICES and DEVICES[device].is_gpu
        shared = on_gpu and checkpoint.spec.tied_embeddings
        work = work_of(checkpoint.spec, memory, dtype=fitted.dtype, table_bytes=fitted.table_bytes, shared_table=shared)
        most = max(1, min(fitted.max_running, int(memory.sequences_at_full_length)))
        fast = speeds(work, rates(fitted.products or weights, fitted.threads), context=length, most=most)
        found.append(
            PrecisionPlan(
                quantize=quantize,
                weights=weights,
                memory=memory,
                context_length=length,
                work=work,
                speeds=fast,
                costs=None if price is None else _costs(price, fast),
            )
        )
    return ModelPlan(
        model=checkpoint.name,
        architecture=checkpoint.spec.family,
        parameters=checkpoint.spec.parameters,
        active_parameters=checkpoint.spec.active_parameters,
        context_length=checkpoint.spec.max_position,
        device=device,
        available=available,
        source=source,
        precisions=tuple(found),
    )


def _format_name(checkpoint: Checkpoint, quantize: str) -> str:
    return checkpoint.dtype if quantize == "none" else quantize


def _costs(price: float, fast: Speeds) -> Costs:
    def cost(rate: float | None) -> float | None:
        return None if rate is None else cost_of_million(price, rate)

    return Costs(
        prompt=cost(fast.prefill), generated_alone=cost(fast.decode), generated_together=cost(fast.decode_many)
    )


def _plan_on_cpu(checkpoint: Checkpoint, settings: EngineSettings, available: int) -> _Fitted:
    from ..cpu.load import described_dtype, plan_on_cpu

    sizes, memory = plan_on_cpu(checkpoint, settings, available)
    dtype = described_dtype(checkpoint, sizes.weight_format)
    running = settings.largest_step().max_running
    threads = sizes.first_threads or sizes.threads
    return _Fitted(memory, dtype, sizes.max_model_len, running, threads, sizes.stored_embedding_bytes)


def _plan_on_gpu(checkpoint: Checkpoint, settings: EngineSettings, device: Device) -> _Fitted:
    from ..gpu.device import missing_package

    if missing := missing_package():
        raise UnsupportedDevice(f"to plan for {device.name}: {missing}")
    from ..gpu.load import sizes_of
    from ..gpu.memory import plan_on_gpu
    from ..gpu.stored import described_formats

    sizes = sizes_of(checkpoint, settings, device)
    shortest = shortest_length(settings, sizes.max_model_len)
    gpu_memory, kv_cache_memory = settings.gpu_memory, settings.kv_cache_memory
    memory = plan_on_gpu(device, checkpoint.spec, sizes, gpu_memory, kv_cache_memory, shortest)
    dtype = described_formats(checkpoint, sizes.stored, sizes.quantize)
    length = min(sizes.max_model_len, memory.num_blocks * BLOCK_SIZE)
    return _Fitted(memory, dtype, length, sizes.buckets.chunks, products=sizes.quantize)
