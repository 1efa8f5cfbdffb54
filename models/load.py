"""Loads a model: opens the checkpoint, chooses the device, and describes both for the front."""

from importlib import metadata
from os import getpid
from pathlib import Path
from platform import python_version

from ..kernels.gpu.mode import interpret_kernels
from ..protocol.settings import EngineSettings
from ..protocol.steps import Ready, ReportProgress, TokenWork, ignore_progress
from .checkpoint.generation import GenerationDefaults
from .checkpoint.open import Checkpoint, open_checkpoint
from .checkpoint.spec import ModelSpec
from .encoder.checkpoint import EncoderCheckpoint, makes_vectors
from .errors import UnsupportedDevice
from .gpu.device import gpu_problem, missing_package
from .host import has_nvidia_driver
from .plan.work import work_of
from .read_ahead import reading_ahead
from .stepper import LoadedModel, Stepper


def load_model(settings: EngineSettings, report: ReportProgress = ignore_progress) -> tuple[Stepper, Ready]:
    """Read the checkpoint, plan the memory, load and compile. Every refusal is a LoadError, raised early.

    dtype "auto" follows the checkpoint: bfloat16 stays, float32 and float16 run as float32. On a GPU all
    run as bfloat16.
    """
    path, active = Path(settings.model), 0
    checkpoint: Checkpoint | EncoderCheckpoint
    work: TokenWork | None = None
    if makes_vectors(path):
        from .encoder.load import load_vector_model, open_vector_checkpoint

        checkpoint = vectors = open_vector_checkpoint(path)
        loaded, generation = load_vector_model(vectors, settings, report), GenerationDefaults()
    else:
        checkpoint = decoder = open_checkpoint(path)
        active, generation = decoder.spec.active_parameters, decoder.generation
        # A third for the files, one for what is packed of them, one for the rest. Kept weights may do without them.
        with reading_ahead(() if settings.keep_packed_weights else decoder.weight_files, parts=3):
            loaded = _load_decoder(decoder, settings, report)
        work = _work(decoder.spec, loaded)
    libraries = {name: _version(name) for name in ("triolet", "numpy", *loaded.libraries)}
    return loaded.stepper, Ready(
        model=checkpoint.name,
        architecture=checkpoint.spec.family,
        parameters=checkpoint.spec.parameters,
        active_parameters=active,
        device=loaded.device,
        dtype=loaded.dtype,
        quantize=settings.quantize,
        kv_cache_dtype=loaded.kv_cache_dtype,
        context_length=loaded.context_length,
        model_context_length=loaded.model_context_length or checkpoint.spec.max_position,
        vocab_size=checkpoint.spec.vocab_size,
        eos_token_ids=generation.eos_token_ids,
        max_step_tokens=loaded.largest_step.max_step_tokens,
        max_running=loaded.largest_step.max_running,
        memory=loaded.memory,
        work=work,
        sampling_defaults=generation.sampling,
        versions={"python": python_version()} | libraries,
        pid=getpid(),
        pooling=loaded.pooling,
    )


def _work(spec: ModelSpec, loaded: LoadedModel) -> TokenWork:
    shared = loaded.device != "cpu" and spec.tied_embeddings
    return work_of(spec, loaded.memory, dtype=loaded.dtype, table_bytes=loaded.table_bytes, shared_table=shared)


def _load_decoder(checkpoint: Checkpoint, settings: EngineSettings, report: ReportProgress) -> LoadedModel:
    loaded = _load_on_gpu(checkpoint, settings, report)
    if loaded is None:
        from .cpu.load import load_on_cpu

        loaded = load_on_cpu(checkpoint, settings, report)
    return loaded


def _load_on_gpu(checkpoint: Checkpoint, settings: EngineSettings, report: ReportProgress) -> LoadedModel | None:
    """None if the CPU must run it. `auto` takes a usable GPU; torch is imported only if there is a driver."""
    interpreted = settings.kernels == "interpret"
    if settings.device == "cpu":
        if interpreted:
            raise UnsupportedDevice("--kernels interpret: these are the GPU's kernels; pass --device cuda with it")
        return None
    if interpreted:
        if missing := missing_package():
            raise UnsupportedDevice(f"--kernels interpret: {missing}")
        interpret_kernels()  # before Triton is imported, which the next import does
    elif settings.device == "auto" and not has_nvidia_driver():
        return None
    if not interpreted and (problem := gpu_problem()):
        if settings.device == "cuda":
            raise UnsupportedDevice(f"--device cuda: {problem}, or pass --device cpu")
        return None
    from .gpu.load import load_on_gpu, open_device

    return load_on_gpu(checkpoint, settings, open_device(settings.kernels), report)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:  # some builds of torch carry Triton under another name
        return "unknown"
