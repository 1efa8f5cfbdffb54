"""Every compiled form that serving these models may launch (compile_models.py), found by launching: for each of them
and each GPU, all that a worker of its own does before it is ready, with nothing behind the tensors and nothing run.

A worker runs every shape of its steps once before it serves (`GpuModel`), so what is recorded here is what is launched
there. Steps of up to 256 sequences are recorded: the plan of attention has a form for 16, 32, … of them. Kernels and
variants that no setting reaches yet are in `compile_unreached.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import torch

from triolet.kernels.gpu.compiling import Specialisation
from triolet.kernels.gpu.launches import KernelForm, recording
from triolet.kernels.gpu.table import E4M3_CAPABILITY
from triolet.kernels.paged_attention.gpu_table import choose_launch
from triolet.loadtest.device.compile_models import MATRICES, MODELS, LaunchedModel
from triolet.loadtest.device.compile_unreached import launch_unreached
from triolet.models.gpu.buckets import Buckets, GpuSizes
from triolet.models.gpu.device import DeviceEvent, Graph, Growth, Result, Work
from triolet.models.gpu.gpu import GpuModel
from triolet.models.gpu.linear import IN_8_BITS

# Capability and multiprocessors: A100, A10, L4, H200.
DEVICES = {80: 108, 86: 72, 89: 58, 90: 132}
QUICK_TOKENS = (64, 512, 4096)  # of the largest step
# The tensor core's instruction by the type of the right operand.
TENSOR_CORE = {
    "i8": {80: "IMMA", 90: "IGMMA"},
    "fp8e4nv": {89: "QMMA", 90: "QGMMA"},
    "bf16": {80: "HMMA", 90: "HGMMA"},
}
TENSOR_CORES = tuple(sorted({name for table in TENSOR_CORE.values() for name in table.values()}))
OPERANDS = ("keys", "w", "a", "b")  # of the kernels with products


class RecordingDevice:
    """A GPU without memory, on which a model can be made and warmed up: tensors have shapes and places alone."""

    def __init__(self, capability: int, place: str = "meta") -> None:
        self.place = torch.device(place)
        self.capability, self.multiprocessors = capability, DEVICES[capability]
        self.name = f"recording, sm_{capability}"

    def free_memory(self) -> tuple[int, int]:
        return 1 << 40, 1 << 40

    def allocate(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.place)

    def pinned(self, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.uint8)

    def upload(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Nothing: the target has no memory."""

    download = upload

    def run(self, work: Callable[[], Result]) -> Result:
        return work()

    def compile(self, work: Work) -> None:
        work()

    def capture(self, work: Work) -> Graph:
        return self

    def replay(self) -> None:
        """As a graph of its own: nothing."""

    def record(self) -> DeviceEvent:
        return self

    def wait(self) -> None:
        """As an event of its own: everything is done."""

    def synchronize(self) -> None:
        """Nothing is under way."""

    def seal(self) -> None:
        """Nothing is counted."""

    def growth(self) -> Growth:
        return Growth(0, 0)


def forms_of(served: LaunchedModel, capability: int, place: str = "meta") -> set[KernelForm]:
    """What a worker with this model launches before it is ready, on a device of this capability."""
    found = set[KernelForm]()
    sizes = sizes_of(served, 1 << 10 if place == "meta" else 2)
    with recording(found.add):
        GpuModel(RecordingDevice(capability, place), served.spec, None, sizes)
    return found


def sizes_of(served: LaunchedModel, blocks: int = 1 << 10) -> GpuSizes:
    """The model's, with a KV cache of so many blocks."""
    return GpuSizes(
        quantize=served.quantize,
        kv_cache_dtype=served.kv_cache_dtype,
        num_blocks=blocks,
        max_model_len=served.spec.max_position,
        buckets=Buckets(
            max_tokens=served.max_tokens,
            max_chunks=served.max_running,
            max_rows=served.max_rows,
            adapters=served.adapters.count > 0,
        ),
        adapters=served.adapters,
        stored={} if served.stored is None else dict.fromkeys(MATRICES, served.stored),
    )


def every_specialisation(*, quick: bool = False) -> list[Specialisation]:
    """Each form once for the GPUs of a major version that launch it, compiled for the oldest of them.

    `quick`: of each model those of one GPU, the oldest or the newest that runs it, and of few shapes; drawn anew.
    """
    found: dict[tuple[int, KernelForm], Specialisation] = {}
    serving = dict[int, list[LaunchedModel]]()
    for served in MODELS:
        float8 = IN_8_BITS.get(served.quantize, (None, 0))[0] == torch.float8_e4m3fn
        fitting = [capability for capability in DEVICES if not float8 or capability >= E4M3_CAPABILITY]
        if quick:
            served, fitting = served.smaller(random.choice(QUICK_TOKENS)), random.sample((fitting[0], fitting[-1]), 1)
        for capability in fitting:
            serving.setdefault(capability, []).append(served)
    for capability in DEVICES:
        launched = set[KernelForm]().union(*(forms_of(served, capability) for served in serving.get(capability, [])))
        with recording(launched.add):
            launch_unreached(capability, DEVICES[capability])
        for form in launched:
            key = capability // 10, form
            known = found.get(key)
            found[key] = (
                expected(form, capability) if known is None else replace(known, serves=(*known.serves, capability))
            )
    return sorted(found.values(), key=lambda one: (one.form.name, one.capability, str(one.form.constants)))


def expected(form: KernelForm, capability: int) -> Specialisation:
    """What a form's machine code must hold to: instructions, and spills where the launch table allows some."""
    kernel, types, values = form.name.rpartition(".")[2], form.types, form.values
    major, spills = max(known for known in (80, 90) if known <= capability), 0
    by_copy = any(kind.startswith("tensordesc") for kind in types.values())
    staged = "UTMALDG" if by_copy else "LDGSTS"
    uses: tuple[str, ...] = ()
    if any(types.get(name) == "*fp32" for name in OPERANDS):  # a tensor core would take them as TF32
        spills = 16 if kernel == "decode_kernel" and major == 80 else 0
        return Specialisation(form, capability, (capability,), (), spills, TENSOR_CORES)
    match kernel:
        case "shrink_kernel" | "expand_kernel":
            uses = ("HMMA",)
        case "decode_kernel":
            # Triton 3.6 on other GPUs than sm_90: what adds up a row in parts shares registers with the loop.
            uses, spills = ("HMMA", staged), 0 if major == 90 else 16
        case "prefill_kernel" if values["ROPE_DIM"] > 0:  # tiles of 32 rows
            uses = ("HMMA", staged)
        case "prefill_kernel":
            uses = (TENSOR_CORE["bf16"][major], staged)
            bytes_each = 2 if "bf16" in types["keys"] else 1
            launch = choose_launch(capability, values["HEAD_DIM"], bytes_each, 1, 1, multiprocessors=1)
            spills = launch.prefill.max_spills
        case "narrow_gemm_kernel" | "wide_gemm_kernel" | "plain_experts_kernel":
            element = next(name for name in TENSOR_CORE if name in types["w"])
            uses = (TENSOR_CORE[element].get(capability) or TENSOR_CORE[element][major], staged)
        case "heads_gemm_kernel":
            uses = (TENSOR_CORE["bf16"][major], staged)
        case "w4_gemm_kernel" | "w8_gemm_kernel" | "w4_experts_kernel" | "w8_experts_kernel":
            uses = (TENSOR_CORE["bf16"][major], "LDGSTS", "PRMT")
            # A few addresses: ptxas would rather run one more program. The loops are a tenth to a half shorter than
            # those that spilt nothing, before weights were `held`.
            spills = 14 if major == 80 and values["GROUPS"] > 1 else 0
        case "w4_dequantise_kernel" | "w8_dequantise_kernel":
            uses = ("PRMT",)
        case _:
            pass
    return Specialisation(form, capability, (capability,), uses, spills)
