"""Whole models on random weights, without HTTP and scheduler: what a worker computes with a step is right.

Checked are small models in every format, against the definition, and one layer of each large one in its real shapes,
where every launch of the executor runs: strict determinism keeps its bits and agrees with the default, and nothing
grows. These checks take longest, mostly for compiling, and fill Triton's cache on disk for whole models. They share
that cache and run beside each other, so their starting times say little.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import NamedTuple

from msgspec import structs

from triolet.loadtest.device.gpu_case import Figures, GpuCase, GpuMachine, check, planted
from triolet.loadtest.device.gpu_model_run import LoadedGpuModel, Sizes
from triolet.loadtest.device.gpu_model_values import (
    MERGED_SIZES,
    OF_CACHE,
    OF_WEIGHTS,
    SMALL_SIZES,
    WRONG_SCALE,
    check_against_default,
    check_definition,
    check_merged,
    sampled_in_every_way,
)
from triolet.loadtest.device.gpu_requests import Request, answers
from triolet.loadtest.device.gpu_strict_bits import check_strict
from triolet.loadtest.device.gpu_timeline import ListingRehearsal
from triolet.loadtest.device.random_model import LLAMA_8B, QWEN_600M, TINY
from triolet.models.gpu.cuda import CudaDevice
from triolet.models.gpu.device import Device
from triolet.models.gpu.stored import FLOAT32
from triolet.protocol.steps import BlockCopy

SPECS = {"llama-8b": LLAMA_8B, "qwen-0.6b": QWEN_600M, "tiny": TINY}
SIZES = Sizes(max_running=256, max_step_tokens=8192, max_model_len=8448, kv_bytes=24 << 30)
CACHE_BYTES = 1 << 30  # of one layer's keys and values: room for 64 sequences of 2k
LAYER_TOKENS = 5
SMALL_LENGTH = 150  # tokens: three pages of keys and values
DRY_MERGED_SIZES = Sizes(max_running=3, max_step_tokens=6, max_model_len=64, kv_bytes=1 << 17)
DRY_SIZES, DRY_LENGTH = Sizes(max_running=1, max_step_tokens=4, max_model_len=64, kv_bytes=1 << 16), 10


class Kind(NamedTuple):
    """A model and how it is stored."""

    name: str
    quantize: str = "none"
    cache: str = "bfloat16"
    adapters: int = 0  # LoRA, of rank 16 on all matrices
    overlaps: bool = True  # launches, where the device can

    @property
    def title(self) -> str:
        """As it is called in the table: what is left out is bfloat16."""
        weights = "" if self.quantize == "none" else f" {self.quantize}"
        adapters = f" {self.adapters} adapters" if self.adapters else ""
        cache = "" if self.cache == "bfloat16" else f" {self.cache} cache"
        return f"{self.name}{weights}{cache}{adapters}{'' if self.overlaps else ' launched apart'}"


KINDS = (
    Kind("llama-8b"), Kind("llama-8b", "int4"), Kind("qwen-0.6b"), Kind("llama-8b", "fp8"),
    Kind("llama-8b", cache="fp8"), Kind("llama-8b", cache="int8"),
)  # fmt: skip


def check_growth(model: LoadedGpuModel, batches: Iterable[tuple[int, int]]) -> Figures:
    """Nothing is allocated or compiled after the start.

    Nor by rows that ask the sampler for more than the largest logit, a preemption, or a copy of blocks.
    """
    for batch, prompt in batches:
        model.decode(batch, prompt, 1, 2)
    for strict in (False, True):
        asked = sampled_in_every_way(model.spec.vocab_size)
        requests = [Request((4, 3, 2, 1), (2,), index % 2, sampling) for index, sampling in enumerate(asked)]
        answers(model, requests[: model.model.buckets.chunks], 3, strict=strict)
    last = model.plan.num_blocks - 1
    model.begin([], copies=(BlockCopy(0, last), BlockCopy(1, last - 1)))
    model.drain()
    return model.growth()


def device_of(machine: GpuMachine) -> Device:
    return ListingRehearsal(capability=machine.capability) if machine.dry else CudaDevice()


def check_layer(kind: Kind, machine: GpuMachine) -> Figures:
    machine.need(kind.quantize)
    spec = structs.replace(SPECS[kind.name], layers=SPECS[kind.name].layers[:1])
    sizes = replace(SIZES, kv_bytes=CACHE_BYTES)
    with LoadedGpuModel(device_of(machine), spec, kind.quantize, sizes, kind.cache) as model:
        figures = check_strict(model, LAYER_TOKENS) | check_against_default(model, kind.cache, 300)
        return {"ready_s": model.cold_start["ready_s"]} | figures | check_growth(model, ((17, 200),))


def check_small(
    quantize: str, cache: str, machine: GpuMachine, wrong_scale: float = 1.0, *, smallest: bool = False
) -> Figures:
    machine.need(quantize)
    length, sizes = (DRY_LENGTH, DRY_SIZES) if machine.dry or smallest else (SMALL_LENGTH, SMALL_SIZES)
    return check_definition(device_of(machine), quantize, cache, length, sizes, wrong_scale)


def check_adapters(quantize: str, machine: GpuMachine, wrong_scale: float = 1.0) -> Figures:
    machine.need(quantize)
    length, sizes = (DRY_LENGTH, DRY_MERGED_SIZES) if machine.dry else (SMALL_LENGTH, MERGED_SIZES)
    return check_merged(device_of(machine), quantize, length, sizes, wrong_scale)


def checks(dry: bool) -> list[GpuCase]:
    """Interpreted a model takes seconds: the dry run has the smallest. Tests interpret some more formats."""
    formats = [] if dry else [*product(OF_WEIGHTS, OF_CACHE), (FLOAT32, FLOAT32)]
    smallest = partial(check_small, "int4", "int8", smallest=True)
    layers = [
        check(f"one layer of {kind.title}", partial(check_layer, kind), on_host=True) for kind in (() if dry else KINDS)
    ]
    small = [
        check(f"small model {weights} {cache} cache", partial(check_small, weights, cache), on_host=True)
        for weights, cache in formats
    ]
    adapted = [
        check(f"small model {weights} with adapters", partial(check_adapters, weights), on_host=True)
        for weights in (("none",) if dry else ("none", "int4", "fp8"))
    ]
    wrong = partial(check_small, "none", "bfloat16", wrong_scale=WRONG_SCALE)
    wrongly_adapted = partial(check_adapters, "none", wrong_scale=WRONG_SCALE)
    return [
        check("smallest model int4 int8 cache", smallest, on_host=True),
        *(*layers, *small, *adapted),
        planted("a small model with a wrong matrix", wrong, on_host=True),
        planted("adapters of a wrong scale", wrongly_adapted, on_host=True),
    ]
