"""What of a `ModelSpec`, and of settings with it, the GPU's kernels implement; everything else is refused by name
before anything is loaded.
"""

from __future__ import annotations

from ...protocol.settings import EngineSettings
from ..checkpoint.spec import ModelSpec
from ..errors import UnsupportedDevice, UnsupportedModel

REMEDY = "the GPU's kernels do not have this yet; use --device cpu"


def refuse_structure(spec: ModelSpec) -> None:
    """Raises UnsupportedModel, naming the first part of the structure that no kernel implements."""
    if spec.parallel and spec.experts is not None:
        raise UnsupportedModel("experts beside attention", spec.family, REMEDY)


def refuse_settings(spec: ModelSpec, settings: EngineSettings) -> None:
    """Raises what names the first setting that this structure does not go with."""
    found = f"--quantize {settings.quantize}"
    if settings.quantize in ("fp8-block", "w8a8") and spec.experts is not None:
        raise UnsupportedDevice(f"{found}: not for experts; use --quantize fp8, int8 or int4")
    if settings.quantize == "fp8-block" and settings.adapter_places.count > 0:
        raise UnsupportedDevice(f"{found}: LoRA adapters read no blocks; use --quantize fp8, or leave --lora out")
    if settings.dtype == "float32":
        _refuse_float32(spec, settings)
    if spec.latent is None:
        return
    if settings.kv_cache_dtype not in ("auto", "bfloat16"):
        found = f"--kv-cache-dtype {settings.kv_cache_dtype}"
        raise UnsupportedDevice(f"{found}: not for the latent vectors of {spec.family}; leave it at auto")
    if settings.adapter_places.count > 0:
        raise UnsupportedModel("latent attention", spec.family, "takes no LoRA adapters: leave --lora out")


def _refuse_float32(spec: ModelSpec, settings: EngineSettings) -> None:
    if settings.quantize != "none":
        raise UnsupportedDevice(
            f"--quantize {settings.quantize}: the GPU's quantised weights have no float32 activations; leave it or "
            "--dtype float32 out"
        )
    if settings.kv_cache_dtype != "auto":
        raise UnsupportedDevice(
            f"--kv-cache-dtype {settings.kv_cache_dtype}: with --dtype float32 the cache is so too; leave it at auto"
        )
    if spec.latent is not None:
        raise UnsupportedModel("latent attention", spec.family, "a GPU runs it in bfloat16: leave --dtype float32 out")
