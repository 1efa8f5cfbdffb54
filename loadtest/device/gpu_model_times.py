"""Whole models on random weights, without HTTP and scheduler: how fast a worker's steps are.

One stream against the bandwidth roofline, batches, prompts, idle time, the kernels of a step, and cold start.
"""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import torch

from triolet.kernels.gpu.language import OVERLAPPING, overlap_launches
from triolet.loadtest.device.gpu_case import Figures, Goal, GpuCase, GpuMachine, Skip
from triolet.loadtest.device.gpu_model_run import LoadedGpuModel
from triolet.loadtest.device.gpu_models import DRY_SIZES, KINDS, SIZES, SPECS, Kind, check_growth, device_of
from triolet.loadtest.device.gpu_strict_bits import check_strict
from triolet.loadtest.device.gpu_timeline import launches_of, step_figures
from triolet.loadtest.device.gpu_timing import timer
from triolet.loadtest.device.random_adapter import random_adapter
from triolet.models.checkpoint.spec import ModelSpec
from triolet.models.gpu.buckets import PassShape
from triolet.models.gpu.cache import cache_layout
from triolet.models.gpu.gpu import buffer_layout
from triolet.models.gpu.packet import packet_layout
from triolet.models.gpu.weights import weights_layout
from triolet.protocol.settings import BLOCK_SIZE

PROMPT, WARM_UP, STEPS, REPLAYS = 128, 8, 64, 20
LONG_PROMPT, LONG_STEPS = 2048, 32  # 64 of them are as many bytes of bfloat16 cache as the 8B model has weights
STRICT_TOKENS = 9
ADAPTED = Kind("llama-8b", adapters=32)
APART = Kind("llama-8b", overlaps=False), Kind("llama-8b", "int4", overlaps=False)
TINIEST = Kind("tiny", "int4")  # of the dry run
ROOFLINE = {"none": Goal("of_roofline", 0.80, 0.92), "int4": Goal("of_roofline", 0.60, 0.78)}
OF_BASE = Goal("of_base", 0.70, 0.85)
IDLE = Goal("idle", 0.05, 0.01, less=True)
_loaded: dict[Kind, LoadedGpuModel] = {}
_refused: dict[Kind, str] = {}


def unload() -> None:
    """Give the device's memory back."""
    for model in _loaded.values():
        model.stepper.close()
    _loaded.clear()
    gc.collect()  # a model and its graphs hold each other
    torch.cuda.empty_cache()


def loaded(kind: Kind, machine: GpuMachine) -> LoadedGpuModel:
    """One at a time: the last model goes before the next comes."""
    machine.need(kind.quantize)
    if kind in _refused:
        raise Skip(f"this model did not load: {_refused[kind]}")
    if kind not in _loaded:
        unload()
        try:
            device, spec, sizes = device_of(machine), SPECS[kind.name], DRY_SIZES if machine.dry else SIZES
            overlap_launches(kind.overlaps and machine.capability >= OVERLAPPING)
            model = LoadedGpuModel(device, spec, kind.quantize, sizes, kind.cache, adapters=kind.adapters)
            overlap_launches(machine.capability >= OVERLAPPING)  # its graphs are captured
            if kind.adapters:
                model.add_adapters([random_adapter(spec, 1, alike=True)] * kind.adapters)
            _loaded[kind] = model
        except Exception as error:  # the case that asked first fails, the others need not wait for the same again
            _refused[kind] = f"{type(error).__name__}: {error}"[:200]
            raise
    return _loaded[kind]


def time_cold_start(kind: Kind, machine: GpuMachine) -> Figures:
    """Of a model without adapters."""
    model = loaded(kind, machine)
    plan, sizes = model.plan, model.model.sizes
    buffers = (
        buffer_layout(model.model.device, model.spec, sizes).size + packet_layout(sizes, model.spec.vocab_size).size
    )
    return model.cold_start | {
        "weights_gb": plan.weights_bytes / 1e9,
        "buffers_gb": buffers / 1e9,
        "planned_kernels_and_graphs_gb": (plan.workspace_bytes - buffers) / 1e9,
    }


def bytes_of_a_step(spec: ModelSpec, quantize: str, kv_cache_dtype: str, cached_tokens: float) -> float:
    """Weights that a decode step reads, all but an embedding that is no output layer; and the cache."""
    unread = 0 if spec.tied_embeddings else 2 * spec.vocab_size * spec.hidden_size
    of_a_token = cache_layout(spec, 1, kv_cache_dtype).size / BLOCK_SIZE
    return weights_layout(spec, quantize).size - unread + cached_tokens * of_a_token


def time_decode(kind: Kind, batch: int, prompt: int, steps: int, machine: GpuMachine) -> Figures:
    """Tokens per second, the roofline's share, and the share of a step in which no kernel runs."""
    model = loaded(kind, machine)
    seconds, prefilled = model.decode(batch, prompt, WARM_UP, steps)
    busy = graph_seconds(model, batch)
    cached = batch * (prompt + WARM_UP + steps / 2)
    least = bytes_of_a_step(model.spec, kind.quantize, kind.cache, cached) / (machine.limit("copy_gb_s") * 1e9)
    return {
        "tokens_s": batch / seconds,
        "step_us": 1e6 * seconds,
        "graph_us": 1e6 * busy,
        "of_roofline": least / seconds,
        "idle": max(0.0, 1 - busy / seconds),
        "prompts_s": prefilled,
    }


def time_adapters(kind: Kind, machine: GpuMachine) -> Figures:
    """A batch in which every row has an adapter of its own, against the same without; in turns."""
    model, batch = loaded(kind, machine), kind.adapters
    found: dict[bool, tuple[float, float]] = {}
    for adapted in (False, True) * 3:
        seconds, _ = model.decode(batch, PROMPT, WARM_UP, STEPS, adapted=adapted)
        times = seconds, graph_seconds(model, batch, adapted=adapted)
        found[adapted] = min(found.get(adapted, times), times)
    (base, base_graph), (seconds, graph) = found[False], found[True]
    figures = {"tokens_s": batch / seconds, "step_us": 1e6 * seconds, "graph_us": 1e6 * graph}
    figures |= {"base_step_us": 1e6 * base, "base_graph_us": 1e6 * base_graph, "of_base": base / seconds}
    return figures | model.growth()


def decode_shape(model: LoadedGpuModel, batch: int, *, adapted: bool = False) -> PassShape:
    return model.model.buckets.shape([1] * batch, batch, adapted=adapted)


def graph_seconds(model: LoadedGpuModel, batch: int, *, adapted: bool = False) -> float:
    """What the device takes for a step's graphs, over and over: with the last step's packet."""
    shape, device = decode_shape(model, batch, adapted=adapted), model.model.device
    begin, end = timer(), timer()
    device.run(begin.record)  # on the device's stream, which is current there
    for _ in range(REPLAYS):
        model.model.replay(shape)
    device.run(end.record)
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / REPLAYS


def time_kernels(kind: Kind, batch: int, machine: GpuMachine) -> Figures:
    """Where a decode step's time goes, kernel by kernel."""
    model, prompt = loaded(kind, machine), 1 if machine.dry else PROMPT
    model.decode(batch, prompt, 1, 1)  # its last packet is what is replayed
    replay = partial(model.model.replay, decode_shape(model, batch))
    return step_figures(launches_of(model.model.device, replay), model.spec.num_layers)


def time_prefill(kind: Kind, machine: GpuMachine) -> Figures:
    """The largest prompt of one step."""
    model, tokens = loaded(kind, machine), SIZES.max_step_tokens
    spec = model.spec
    model.prefill_seconds(tokens)
    seconds = min(model.prefill_seconds(tokens) for _ in range(3))
    matrices = spec.parameters - spec.vocab_size * spec.hidden_size * (1 if spec.tied_embeddings else 2)
    attention = 2 * tokens * (tokens + 1) * spec.num_heads * spec.head_dim * spec.num_layers
    rate = (2 * matrices * tokens + attention) / seconds / 1e12
    return {
        "ms": 1e3 * seconds,
        "tokens_s": tokens / seconds,
        "tflops": rate,
        "of_bf16_gemm": rate / machine.limit("bf16_tflops"),
    }


def growth(kind: Kind, machine: GpuMachine) -> Figures:
    """After everything above."""
    return check_growth(loaded(kind, machine), ((3, 77), (17, 200), (1, 1000)))


def strict_bits(kind: Kind, machine: GpuMachine) -> Figures:
    return check_strict(loaded(kind, machine), STRICT_TOKENS)


# What is timed of a model, and by what; bits and growth are checked.
CASES: dict[str, tuple[Any, ...]] = {  # Any: a function of a kind, what it is given, and a machine
    "cold start": (time_cold_start,),
    "one stream": (time_decode, 1, PROMPT, STEPS),
    "batch 64": (time_decode, 64, PROMPT, STEPS),
    "batch 256": (time_decode, 256, PROMPT, STEPS),
    "batch 64 behind 2k": (time_decode, 64, LONG_PROMPT, LONG_STEPS),  # where the cache is as large as the weights
    "kernels of one stream": (time_kernels, 1),
    "kernels of batch 64": (time_kernels, 64),
    "prompt of 8192": (time_prefill,),
    "bits alone": (strict_bits,),
    "grows by nothing": (growth,),
}


def case(kind: Kind, title: str, goal: Goal | None = None) -> GpuCase:
    run, *given = CASES[title]
    checks = run in (strict_bits, growth)
    return GpuCase(f"{kind.title} {title}", partial(run, kind, *given), goal, checks=checks, on_host=True)


def times(dry: bool) -> list[GpuCase]:
    if dry:
        return [case(TINIEST, title) for title in ("cold start", "kernels of one stream")]
    found: list[GpuCase] = []
    for kind in KINDS[:3]:
        goals = {"batch 64": IDLE, "batch 256": IDLE}
        goals |= {"one stream": ROOFLINE[kind.quantize]} if kind.name == "llama-8b" else {}
        left_out = () if kind == Kind("llama-8b") else ("batch 64 behind 2k",)
        found += [case(kind, title, goals.get(title)) for title in CASES if title not in left_out]
    found += [case(kind, title) for kind in APART for title in ("one stream", "kernels of one stream")]
    for kind in KINDS[3:]:
        of_weights, of_cache = ("one stream", "batch 64", "prompt of 8192"), ("batch 64 behind 2k",)
        asked = of_weights if kind.quantize == "fp8" else of_cache
        found += [case(kind, title) for title in ("cold start", *asked, "bits alone")]
    each = f"{ADAPTED.title}, a row each"
    return [*found, GpuCase(each, partial(time_adapters, ADAPTED), OF_BASE, on_host=True)]
