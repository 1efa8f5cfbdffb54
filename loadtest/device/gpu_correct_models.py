"""Whole models on the device: small ones in every format against the definition, one layer of each in its real shapes.

In real shapes every launch of the executor runs: strict determinism keeps its bits and agrees with the default, and
nothing grows. They take longest, mostly for compiling, and fill Triton's cache on disk for whole models: so they come
first. Cases share that cache and run beside each other, so their starting times say little: the models part has cold
starts.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from msgspec import structs

from triolet.loadtest.device.gpu_bench_models import KINDS, SIZES, SPECS, Kind, check_growth
from triolet.loadtest.device.gpu_case import Case, Figures, Machine
from triolet.loadtest.device.gpu_model_run import LoadedGpuModel, Sizes
from triolet.loadtest.device.gpu_model_values import (
    OF_CACHE,
    OF_WEIGHTS,
    WRONG_SCALE,
    check_against_default,
    check_definition,
)
from triolet.loadtest.device.gpu_strict_bits import check_strict
from triolet.models.gpu.cuda import CudaDevice
from triolet.models.gpu.device import Device
from triolet.models.gpu.rehearsal import RehearsalDevice

CACHE_BYTES = 1 << 30  # of one layer's keys and values: room for 64 sequences of 2k
TOKENS = 5
SMALL_LENGTH = 150  # tokens: three pages of keys and values
DRY_SIZES, DRY_LENGTH = Sizes(max_running=1, max_step_tokens=4, max_model_len=64, kv_bytes=1 << 16), 10


def device_of(machine: Machine) -> Device:
    return RehearsalDevice(capability=machine.capability) if machine.dry else CudaDevice()


def check_layer(kind: Kind, machine: Machine) -> Figures:
    kind.need(machine)
    spec = structs.replace(SPECS[kind.name], num_layers=1)
    sizes = replace(SIZES, kv_bytes=CACHE_BYTES)
    model = LoadedGpuModel(device_of(machine), spec, kind.quantize, sizes, kind.cache)
    try:
        figures = check_strict(model, TOKENS) | check_against_default(model, kind.cache, 300)
        return {"ready_s": model.cold_start["ready_s"]} | figures | check_growth(model, ((17, 200),))
    finally:
        model.stepper.close()


def check_small(quantize: str, cache: str, machine: Machine, wrong_scale: float = 1.0) -> Figures:
    if quantize == "fp8":
        machine.need_float8()
    if machine.dry:
        return check_definition(device_of(machine), quantize, cache, DRY_LENGTH, DRY_SIZES, wrong_scale)
    return check_definition(device_of(machine), quantize, cache, SMALL_LENGTH, wrong_scale=wrong_scale)


def cases(dry: bool) -> list[Case]:
    """Interpreted a model takes seconds: the dry run has one. Tests interpret some more formats."""
    formats = [("int4", "int8")] if dry else [(weights, cache) for weights in OF_WEIGHTS for cache in OF_CACHE]
    layers = [
        Case(f"one layer of {kind.title}", partial(check_layer, kind), checks=True, on_host=True)
        for kind in (() if dry else KINDS)
    ]
    small = [
        Case(f"small model {weights} {cache} cache", partial(check_small, weights, cache), checks=True, on_host=True)
        for weights, cache in formats
    ]
    return [*layers, *small, PLANTED]


PLANTED = Case(
    "planted: a small model with a wrong matrix",
    partial(check_small, "none", "bfloat16", wrong_scale=WRONG_SCALE),
    checks=True,
    planted=True,
    on_host=True,
)
