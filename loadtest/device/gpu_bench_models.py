"""Whole models on random weights: one stream against the bandwidth roofline, batches, prompts, idle time, cold start.

No HTTP and no scheduler here: what is measured is what the worker does with a step.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import torch

from triolet.loadtest.device.gpu_case import Case, Figures, Goal, Machine, Skip
from triolet.loadtest.device.gpu_model_run import LoadedGpuModel, Sizes
from triolet.loadtest.device.gpu_model_values import sampled_in_every_way
from triolet.loadtest.device.gpu_requests import Request, answers
from triolet.loadtest.device.gpu_strict_bits import check_strict
from triolet.loadtest.device.gpu_timing import timer
from triolet.loadtest.device.random_model import LLAMA_8B, QWEN_600M
from triolet.models.checkpoint.spec import ModelSpec
from triolet.models.gpu.cache import cache_layout
from triolet.models.gpu.cuda import CudaDevice
from triolet.models.gpu.weights import weights_layout
from triolet.protocol.settings import BLOCK_SIZE
from triolet.protocol.steps import BlockCopy

SPECS = {"llama-8b": LLAMA_8B, "qwen-0.6b": QWEN_600M}
SIZES = Sizes(max_running=256, max_step_tokens=8192, max_model_len=8448, kv_bytes=24 << 30)
PROMPT, WARM_UP, STEPS, REPLAYS = 128, 8, 64, 20
LONG_PROMPT, LONG_STEPS = 2048, 32  # 64 of them are as many bytes of bfloat16 cache as the 8B model has weights
STRICT_TOKENS = 9


class Kind(NamedTuple):
    """A model and how it is stored."""

    name: str
    quantize: str = "none"
    cache: str = "bfloat16"

    @property
    def title(self) -> str:
        """As it is called in the table: what is left out is bfloat16."""
        weights = "" if self.quantize == "none" else f" {self.quantize}"
        return f"{self.name}{weights}{'' if self.cache == 'bfloat16' else f' {self.cache} cache'}"

    def need(self, machine: Machine) -> None:
        """Raises Skip where the device cannot multiply these weights; a cache of 8 bits it can always read."""
        if self.quantize == "fp8":
            machine.need_float8()


KINDS = (
    Kind("llama-8b"), Kind("llama-8b", "int4"), Kind("qwen-0.6b"), Kind("llama-8b", "fp8"),
    Kind("llama-8b", cache="fp8"), Kind("llama-8b", cache="int8"),
)  # fmt: skip
_loaded: dict[Kind, LoadedGpuModel] = {}
_refused: dict[Kind, str] = {}


def unload() -> None:
    """Give the device's memory back."""
    for model in _loaded.values():
        model.stepper.close()
    _loaded.clear()
    gc.collect()  # a model and its graphs hold each other
    torch.cuda.empty_cache()


def loaded(kind: Kind, machine: Machine) -> LoadedGpuModel:
    """One at a time: the last model goes before the next comes."""
    kind.need(machine)
    if kind in _refused:
        raise Skip(f"this model did not load: {_refused[kind]}")
    if kind not in _loaded:
        unload()
        try:
            _loaded[kind] = LoadedGpuModel(CudaDevice(), SPECS[kind.name], kind.quantize, SIZES, kind.cache)
        except Exception as error:  # the case that asked first fails, the others need not wait for the same again
            _refused[kind] = f"{type(error).__name__}: {error}"[:200]
            raise
    return _loaded[kind]


def cold_start(kind: Kind, machine: Machine) -> Figures:
    model = loaded(kind, machine)
    plan = model.plan
    return model.cold_start | {"weights_gb": plan.weights_bytes / 1e9, "workspace_gb": plan.workspace_bytes / 1e9}


def bytes_of_a_step(spec: ModelSpec, quantize: str, kv_cache_dtype: str, cached_tokens: float) -> float:
    """Weights that a decode step reads, all but an embedding that is no output layer; and the cache."""
    unread = 0 if spec.tied_embeddings else 2 * spec.vocab_size * spec.hidden_size
    of_a_token = cache_layout(spec, 1, kv_cache_dtype).size / BLOCK_SIZE
    return weights_layout(spec, quantize).size - unread + cached_tokens * of_a_token


def decode(kind: Kind, batch: int, prompt: int, steps: int, machine: Machine) -> Figures:
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


def graph_seconds(model: LoadedGpuModel, batch: int) -> float:
    """What the device takes for a step's graph, over and over: with the last step's packet."""
    size = next(size for size in model.model.buckets.decode if size >= batch)
    graph, device = model.model.decode_graph(size), model.model.device
    begin, end = timer(), timer()
    device.run(begin.record)  # on the device's stream, which is current there
    for _ in range(REPLAYS):
        graph.replay()
    device.run(end.record)
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / REPLAYS


def prefill(kind: Kind, machine: Machine) -> Figures:
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


def growth(kind: Kind, machine: Machine) -> Figures:
    """After everything above: nothing was allocated, nothing compiled."""
    return check_growth(loaded(kind, machine), ((3, 77), (17, 200), (1, 1000)))


def check_growth(model: LoadedGpuModel, batches: Iterable[tuple[int, int]]) -> Figures:
    """Nor by rows that ask the sampler for more than the largest logit, a preemption, or a copy of blocks."""
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


def strict_bits(kind: Kind, machine: Machine) -> Figures:
    model = loaded(kind, machine)
    return check_strict(model, STRICT_TOKENS)


ROOFLINE = {"none": Goal("of_roofline", 0.80, 0.92), "int4": Goal("of_roofline", 0.60, 0.78)}
IDLE = Goal("idle", 0.05, 0.01, less=True)


def cases(dry: bool) -> list[Case]:
    del dry  # never there
    found: list[Case] = []
    for kind in KINDS[:3]:
        goal = ROOFLINE[kind.quantize] if kind.name == "llama-8b" else None
        found += [
            Case(f"{kind.title} cold start", partial(cold_start, kind), on_host=True),
            Case(f"{kind.title} one stream", partial(decode, kind, 1, PROMPT, STEPS), goal, on_host=True),
            *(
                Case(f"{kind.title} batch {batch}", partial(decode, kind, batch, PROMPT, STEPS), IDLE, on_host=True)
                for batch in (64, 256)
            ),
            Case(f"{kind.title} prompt of 8192", partial(prefill, kind), on_host=True),
            Case(f"{kind.title} bits alone", partial(strict_bits, kind), checks=True, on_host=True),
        ]
        if kind == Kind("llama-8b"):
            found.append(long_decode(kind))
        found.append(Case(f"{kind.title} grows by nothing", partial(growth, kind), checks=True, on_host=True))
    for kind in KINDS[3:]:
        found.append(Case(f"{kind.title} cold start", partial(cold_start, kind), on_host=True))
        if kind.quantize == "fp8":
            found += [
                Case(f"{kind.title} one stream", partial(decode, kind, 1, PROMPT, STEPS), on_host=True),
                Case(f"{kind.title} batch 64", partial(decode, kind, 64, PROMPT, STEPS), on_host=True),
                Case(f"{kind.title} prompt of 8192", partial(prefill, kind), on_host=True),
            ]
        else:
            found.append(long_decode(kind))
        found.append(Case(f"{kind.title} bits alone", partial(strict_bits, kind), checks=True, on_host=True))
    return found


def long_decode(kind: Kind) -> Case:
    """Where the cache is as large as the weights."""
    run = partial(decode, kind, 64, LONG_PROMPT, LONG_STEPS)
    return Case(f"{kind.title} batch 64 behind 2k", run, on_host=True)
