"""One layer of each model in its real shapes: every launch of the executor runs, and strict determinism keeps its bits.

They take longest, mostly for compiling, and fill Triton's cache on disk for whole models: so they come first, side by
side. What their starts take is a start with nothing compiled before.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from msgspec import structs

from triolet.loadtest.device.gpu_bench_models import KINDS, SIZES, SPECS, Kind, check_strict
from triolet.loadtest.device.gpu_case import Case, Figures, Machine
from triolet.loadtest.device.gpu_model_run import LoadedGpuModel
from triolet.models.gpu_cuda import CudaDevice

CACHE_BYTES = 1 << 30  # of one layer's keys and values: room for 64 sequences of 2k
LENGTHS, COMPANIES, STEPS = (5, 70, 300), (1, 60), 4


def check(kind: Kind, machine: Machine) -> Figures:
    del machine
    spec = structs.replace(SPECS[kind.name], num_layers=1)
    sizes = replace(SIZES, kv_bytes=CACHE_BYTES)
    model = LoadedGpuModel(CudaDevice(), spec, kind.quantize, sizes, kind.cache)
    figures = check_strict(model, LENGTHS, COMPANIES, STEPS)
    model.decode(17, 200, 1, 2)
    growth = model.growth()
    model.stepper.close()
    return {"ready_s": model.cold_start["ready_s"]} | figures | growth


def cases(dry: bool) -> list[Case]:
    if dry:
        return []  # tests walk the same path on a model of one small layer
    return [Case(f"one layer of {kind.title}", partial(check, kind), checks=True, on_host=True) for kind in KINDS]
