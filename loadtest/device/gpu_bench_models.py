"""Whole models on random weights: one stream against the bandwidth roofline, batches, prompts, idle time, cold start.

No HTTP and no scheduler here: what is measured is what the worker does with a step.
"""

from __future__ import annotations

from functools import cache, partial

import torch

from triolet.loadtest.device.gpu_case import Case, Figures, Goal, Machine, Skip
from triolet.loadtest.device.gpu_model_run import LoadedGpuModel, Sizes
from triolet.loadtest.device.gpu_random_model import LLAMA_8B, QWEN_600M
from triolet.loadtest.device.gpu_timing import timer
from triolet.models.gpu_buckets import Shape
from triolet.models.gpu_cuda import CudaDevice
from triolet.models.gpu_weights import weights_layout
from triolet.models.spec import ModelSpec

SPECS = {"llama-8b": LLAMA_8B, "qwen-0.6b": QWEN_600M}
SIZES = Sizes(max_running=256, max_step_tokens=8192, max_model_len=8448, kv_bytes=24 << 30)
PROMPT, WARM_UP, STEPS, REPLAYS = 128, 8, 64, 20
_loaded: dict[tuple[str, str], LoadedGpuModel] = {}
_refused: dict[tuple[str, str], str] = {}


@cache
def the_device() -> CudaDevice:
    return CudaDevice()


def loaded(name: str, quantize: str) -> LoadedGpuModel:
    """One at a time: the last model goes before the next comes."""
    if (name, quantize) in _refused:
        raise Skip(f"this model did not load: {_refused[name, quantize]}")
    if (name, quantize) not in _loaded:
        for model in _loaded.values():
            model.stepper.close()
        _loaded.clear()
        torch.cuda.empty_cache()
        try:
            _loaded[name, quantize] = LoadedGpuModel(the_device(), SPECS[name], quantize, SIZES)
        except Exception as error:  # the case that asked first fails, the others need not wait for the same again
            _refused[name, quantize] = f"{type(error).__name__}: {error}"[:200]
            raise
    return _loaded[name, quantize]


def cold_start(name: str, quantize: str, machine: Machine) -> Figures:
    del machine
    model = loaded(name, quantize)
    plan = model.plan
    return model.cold_start | {"weights_gb": plan.weights_bytes / 1e9, "workspace_gb": plan.workspace_bytes / 1e9}


def bytes_of_a_token(spec: ModelSpec, quantize: str) -> int:
    """Weights that a decode step reads: all but an embedding that is no output layer."""
    unread = 0 if spec.tied_embeddings else 2 * spec.vocab_size * spec.hidden_size
    return weights_layout(spec, quantize).size - unread


def decode(name: str, quantize: str, batch: int, machine: Machine) -> Figures:
    """Tokens per second, the roofline's share, and the share of a step in which no kernel runs."""
    model, spec = loaded(name, quantize), SPECS[name]
    seconds, prefilled = model.decode(batch, PROMPT, WARM_UP, STEPS)
    busy = graph_seconds(model, batch)
    cached = 2 * 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * batch * (PROMPT + WARM_UP + STEPS // 2)
    least = (bytes_of_a_token(spec, quantize) + cached) / (machine.limit("copy_gb_s") * 1e9)
    return {
        "tokens_s": batch / seconds,
        "step_us": 1e6 * seconds,
        "graph_us": 1e6 * busy,
        "of_roofline": least / seconds,
        "idle": max(0.0, 1 - busy / seconds),
        "prompts_s": prefilled,
    }


def graph_seconds(model: LoadedGpuModel, batch: int) -> float:
    """What the device takes for the graph of such a step, over and over: with the last step's packet."""
    size = next(size for size in model.model.buckets.decode if size >= batch)
    graph, stream = model.model._graphs[Shape(size, size, size, True)], the_device()._stream
    begin, end = timer(), timer()
    begin.record(stream)
    for _ in range(REPLAYS):
        graph.replay()
    end.record(stream)
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / REPLAYS


def prefill(name: str, quantize: str, machine: Machine) -> Figures:
    """The largest prompt of one step."""
    model, spec, tokens = loaded(name, quantize), SPECS[name], SIZES.max_step_tokens
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


def growth(name: str, quantize: str, machine: Machine) -> Figures:
    """After everything above: nothing was allocated, nothing compiled."""
    del machine
    model = loaded(name, quantize)
    for batch, prompt in ((3, 77), (17, 200), (1, 1000)):
        model.decode(batch, prompt, 1, 2)
    return model.growth()


ROOFLINE = {"none": Goal("of_roofline", 0.80, 0.92), "int4": Goal("of_roofline", 0.60, 0.78)}
IDLE = Goal("idle", 0.05, 0.01, less=True)


def cases(dry: bool) -> list[Case]:
    del dry  # never there
    found: list[Case] = []
    for name, quantize in (("qwen-0.6b", "none"), ("llama-8b", "none"), ("llama-8b", "int4")):
        title = name if quantize == "none" else f"{name} {quantize}"
        goal = ROOFLINE[quantize] if name == "llama-8b" else None
        found += [
            Case(f"{title} cold start", partial(cold_start, name, quantize), on_host=True),
            Case(f"{title} one stream", partial(decode, name, quantize, 1), goal, on_host=True),
            *(
                Case(f"{title} batch {batch}", partial(decode, name, quantize, batch), IDLE, on_host=True)
                for batch in (64, 256)
            ),
            Case(f"{title} prompt of 8192", partial(prefill, name, quantize), on_host=True),
            Case(f"{title} grows by nothing", partial(growth, name, quantize), checks=True, on_host=True),
        ]
    return found
