"""Whole models on random weights: one stream against the bandwidth roofline, batches, prompts, idle time, cold start.

No HTTP and no scheduler here: what is measured is what the worker does with a step.
"""

from __future__ import annotations

import gc
import random
from functools import partial
from typing import NamedTuple

import torch

from triolet.loadtest.device.gpu_case import Case, Figures, Goal, Machine, Skip
from triolet.loadtest.device.gpu_check import require
from triolet.loadtest.device.gpu_model_run import BLOCK_SIZE, LoadedGpuModel, Sizes
from triolet.loadtest.device.gpu_random_model import LLAMA_8B, QWEN_600M
from triolet.loadtest.device.gpu_timing import timer
from triolet.models.device import Graph
from triolet.models.gpu_cache import cache_layout
from triolet.models.gpu_cuda import CudaDevice
from triolet.models.gpu_weights import weights_layout
from triolet.models.spec import ModelSpec
from triolet.models.step import TokenScore

SPECS = {"llama-8b": LLAMA_8B, "qwen-0.6b": QWEN_600M}
SIZES = Sizes(max_running=256, max_step_tokens=8192, max_model_len=8448, kv_bytes=24 << 30)
PROMPT, WARM_UP, STEPS, REPLAYS = 128, 8, 64, 20
LONG_PROMPT, LONG_STEPS = 2048, 32  # 64 of them are as many bytes of bfloat16 cache as the 8B model has weights
STRICT_STEPS = 8


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


def loaded(kind: Kind) -> LoadedGpuModel:
    """One at a time: the last model goes before the next comes."""
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
    del machine
    model = loaded(kind)
    plan = model.plan
    return model.cold_start | {"weights_gb": plan.weights_bytes / 1e9, "workspace_gb": plan.workspace_bytes / 1e9}


def bytes_of_a_step(spec: ModelSpec, quantize: str, kv_cache_dtype: str, cached_tokens: float) -> float:
    """Weights that a decode step reads, all but an embedding that is no output layer; and the cache."""
    unread = 0 if spec.tied_embeddings else 2 * spec.vocab_size * spec.hidden_size
    of_a_token = cache_layout(spec, 1, BLOCK_SIZE, kv_cache_dtype).size / BLOCK_SIZE
    return weights_layout(spec, quantize).size - unread + cached_tokens * of_a_token


def decode(kind: Kind, batch: int, prompt: int, steps: int, machine: Machine) -> Figures:
    """Tokens per second, the roofline's share, and the share of a step in which no kernel runs."""
    model = loaded(kind)
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


def decode_graph(model: LoadedGpuModel, batch: int) -> Graph:
    size = next(size for size in model.model.buckets.decode if size >= batch)
    return model.model._passes[size, False]


def graph_seconds(model: LoadedGpuModel, batch: int) -> float:
    """What the device takes for a step's graph, over and over: with the last step's packet."""
    graph, device = decode_graph(model, batch), model.model.device
    assert isinstance(device, CudaDevice)
    stream = device._stream
    begin, end = timer(), timer()
    begin.record(stream)
    for _ in range(REPLAYS):
        graph.replay()
    end.record(stream)
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / REPLAYS


def prefill(kind: Kind, machine: Machine) -> Figures:
    """The largest prompt of one step."""
    model, tokens = loaded(kind), SIZES.max_step_tokens
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
    del machine
    model = loaded(kind)
    for batch, prompt in ((3, 77), (17, 200), (1, 1000)):
        model.decode(batch, prompt, 1, 2)
    return model.growth()


def strict_bits(kind: Kind, machine: Machine) -> Figures:
    del machine
    return check_strict(loaded(kind), (5, 70, 300), (1, 13, 60), STRICT_STEPS)


def check_strict(model: LoadedGpuModel, lengths: tuple[int, ...], companies: tuple[int, ...], steps: int) -> Figures:
    """Under strict determinism a sequence has the same tokens and log probabilities alone and in any company.

    In company long prompts are cut in two, as a scheduler cuts them.
    """
    draw = random.Random(0)

    def prompt(length: int) -> list[int]:
        return [draw.randrange(model.spec.vocab_size) for _ in range(length)]

    watched = [prompt(length) for length in lengths]
    alone = [model.scores([one], steps, strict=True)[0] for one in watched]
    for company in companies:
        # The watched ones stand at the front, at the end and between strangers.
        strangers = [prompt(draw.randrange(1, max(lengths))) for _ in range(company)]
        batch = [watched[0], *strangers, *watched[1:]]
        found = model.scores(batch, steps, strict=True, cut=max(lengths) // 3)
        for length, wanted, one in zip(lengths, alone, [found[0], *found[1 + company :]], strict=True):
            require(
                one == wanted, f"{length} tokens among {company} others: other bits than alone, {first(one, wanted)}"
            )
    return {"sequences": len(lengths), "companies": len(companies), "tokens": steps + 1}


def first(found: list[TokenScore], wanted: list[TokenScore]) -> str:
    """The first place where they differ."""
    for place, (one, other) in enumerate(zip(found, wanted, strict=False)):
        if one != other:
            return f"at token {place}: {one.token} {one.logprob!r}, not {other.token} {other.logprob!r}"
    return f"{len(found)} tokens, not {len(wanted)}"


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
