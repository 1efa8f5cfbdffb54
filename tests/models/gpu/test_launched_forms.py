"""What is compiled is what is launched: the catalogue's recording of a model has every form that a worker with it takes
on, and names a form as Triton does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from triolet.kernels.activation import gpu as activation
from triolet.kernels.gpu.language import jit, tl
from triolet.kernels.gpu.launches import KernelForm, form_of
from triolet.kernels.gpu.table import LaunchRow
from triolet.loadtest.device.compile_catalogue import forms_of
from triolet.loadtest.device.compile_models import LLAMA_8B, MODELS, LaunchedModel
from triolet.loadtest.device.gpu_model_values import small_weights
from triolet.models.checkpoint.gguf.matrix import QUANTISED
from triolet.models.checkpoint.spec import ModelSpec
from triolet.models.gpu.load import MAX_LOGIT_ROWS
from triolet.models.gpu.memory import STEPS
from triolet.models.gpu.rehearsal import RehearsalDevice
from triolet.models.gpu.stepper import GpuStepper
from triolet.models.gpu.stored import format_of
from triolet.protocol.settings import ON_A_CPU, AdapterPlaces, LargestStep
from triolet.protocol.steps import BlockCopy, Chunk

from .gpu_house import LATENT, MAX_ROWS, MAX_RUNNING, MAX_TOKENS, SPEC, Driver, make_gpu_model, prompt_of, record

Served = tuple[ModelSpec, str, str, int]  # weights, cache, places for adapters
FORMATS: list[Served] = [
    (SPEC, "none", "bfloat16", 0), (SPEC, "int4", "int8", 0), (SPEC, "fp8", "fp8", 2), (LATENT, "none", "bfloat16", 0),
]  # fmt: skip


def rehearsed(spec: ModelSpec, quantize: str, kv_cache_dtype: str, adapters: int) -> set[KernelForm]:
    """Of a worker that starts, and of steps with everything that a request can ask for."""
    places = AdapterPlaces(count=adapters)
    model = make_gpu_model(
        spec=spec, weights=small_weights(spec), quantize=quantize, kv_cache_dtype=kv_cache_dtype, adapters=places
    )
    driver = Driver(GpuStepper(model), ahead=True)
    prompt = prompt_of(5, 1)
    new = [
        record(1, prompt, temperature=1.0, top_k=5, top_p=0.9, min_p=0.01, seed=1, frequency_penalty=0.5),
        record(2, prompt, strict=True, logprobs=2, logit_bias=[(3, 1.0)]),
    ]
    driver.step(*(Chunk(sequence=n, start=0, count=5, blocks=(n,), sample=True) for n in (1, 2)), new=new)
    copies = [BlockCopy(source=1, target=3)]
    driver.step(*(Chunk(sequence=n, start=5, count=1, sample=True) for n in (1, 2)), copies=copies)
    driver.drain()
    assert isinstance(model.device, RehearsalDevice)
    return model.device.forms


def recorded(spec: ModelSpec, quantize: str, kv_cache_dtype: str, adapters: int) -> set[KernelForm]:
    places = AdapterPlaces(count=adapters)
    served = LaunchedModel(spec, quantize, kv_cache_dtype, MAX_RUNNING, MAX_TOKENS, MAX_ROWS, places)
    return forms_of(served, RehearsalDevice().capability, "cpu")


@pytest.mark.parametrize("step", [ON_A_CPU, *(step for _, step in STEPS)])
def test_the_catalogue_has_the_forms_of_a_worker_with_the_default_settings(step: LargestStep) -> None:
    served, rows = LaunchedModel(LLAMA_8B), max(step.max_running, MAX_LOGIT_ROWS)
    default = replace(served, max_running=step.max_running, max_tokens=step.max_step_tokens, max_rows=rows)
    assert forms_of(default, 80) <= forms_of(served, 80)


def test_the_catalogue_has_every_format_that_gguf_files_store() -> None:
    stored = {format_of(block.layout, LLAMA_8B.hidden_size) for block in QUANTISED.values()}
    assert stored - {None} <= {served.stored for served in MODELS}


@pytest.mark.parametrize("served", FORMATS)
def test_every_launched_form_is_recorded_for_compiling(served: Served) -> None:
    assert named(rehearsed(*served)) == named(recorded(*served))


def test_a_form_that_was_not_recorded_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    known = named(recorded(*FORMATS[0]))
    monkeypatch.setattr(activation, "TILES", {80: (LaunchRow(None, activation.ActivationLaunch(32, 4), "planted"),)})
    unknown = named(rehearsed(*FORMATS[0])) - known
    assert {form.name.rpartition(".")[2] for form in unknown} == {"activation_kernel"}


def named(forms: set[KernelForm]) -> set[KernelForm]:
    """Without the number of programs, by which devices differ."""
    return {replace(form, constants=tuple(pair for pair in form.constants if pair[0] != "PROGRAMS")) for form in forms}


@jit(do_not_specialize=["free"])
def many_kernel(  # Any: Triton's own types
    tensor: Any, shifted: Any, block: Any, none: Any, one: Any, whole: Any, odd: Any, large: Any, free: Any, flag: Any,
    real: Any, SIZE: tl.constexpr,
) -> None:  # fmt: skip
    pass


def test_a_form_is_named_as_triton_names_it() -> None:
    from triton._C import libtriton
    from triton.backends.compiler import BaseBackend

    rows = torch.zeros(8, 16, dtype=torch.bfloat16)
    values: dict[str, Any] = {
        "tensor": rows, "shifted": rows.view(-1)[1:], "block": TensorDescriptor.from_tensor(rows, [4, 16]),
        "none": None, "one": 1, "whole": 32, "odd": 7, "large": 1 << 40, "free": 16, "flag": True, "real": 0.5,
    }  # fmt: skip
    form = form_of(many_kernel, tuple(values.values()), {"SIZE": 16, "num_warps": 8})
    for name, value in values.items():
        kind, key = cast("Any", libtriton).native_specialize_impl(BaseBackend, value, False, name != "free", True)
        assert (form.types[name], name in form.aligned) == (kind, key == "D"), name
    assert form.values == {"none": None, "one": 1, "SIZE": 16}
    assert (form.num_warps, form.num_stages, form.fuses) == (8, 3, True)
