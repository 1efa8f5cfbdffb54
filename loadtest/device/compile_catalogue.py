"""Every compiled form that serving may launch, found by launching: for each real model and GPU, all that a worker of
its own does before it is ready, with nothing behind the tensors and nothing run.

A worker runs every shape of its steps once before it serves (`GpuModel`), so what is recorded here is what is launched
there. Steps of up to 256 sequences are recorded: the plan of attention has a form for 16, 32, … of them. Kernels and
variants that no setting reaches yet are in `compile_unreached.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from msgspec.structs import replace as changed

from triolet.kernels.experts.routing import Routing
from triolet.kernels.gpu.compiling import Specialisation
from triolet.kernels.gpu.launches import KernelForm, recording
from triolet.kernels.paged_attention.gpu_table import choose_launch
from triolet.loadtest.device.compile_unreached import launch_unreached
from triolet.models.checkpoint.experts import ExpertSpec
from triolet.models.checkpoint.spec import LayerSpec, ModelSpec, alike
from triolet.models.gpu.buckets import Buckets, GpuSizes
from triolet.models.gpu.device import DeviceEvent, Graph, Growth, Work
from triolet.models.gpu.gpu import GpuModel
from triolet.models.gpu.stored import StoredFormat
from triolet.protocol.settings import AdapterPlaces

# Capability and multiprocessors: A100, A10, L4, H200.
DEVICES = {80: 108, 86: 72, 89: 58, 90: 132}


MATRICES = ("qkv", "o", "gate_up", "down")
NO_ADAPTERS, ADAPTERS = AdapterPlaces(), AdapterPlaces(count=16)


@dataclass(frozen=True, slots=True)
class LaunchedModel:
    """A model as a worker may be told to serve it. One layer has the launches of all."""

    spec: ModelSpec
    quantize: str = "none"
    kv_cache_dtype: str = "bfloat16"
    max_running: int = 256
    max_tokens: int = 8192
    max_rows: int = 256  # of logits, and so of a decode step
    adapters: AdapterPlaces = NO_ADAPTERS
    stored: StoredFormat | None = None  # of all matrices of its layer


def _spec(
    family: str, vocab: int, hidden: int, heads: int, kv_heads: int, head_dim: int, mlp: int, **other: object
) -> ModelSpec:
    plain = ModelSpec(
        family=family, vocab_size=vocab, hidden_size=hidden, layers=alike(1), num_heads=heads, num_kv_heads=kv_heads,
        head_dim=head_dim, mlp_size=mlp, norm_eps=1e-5, max_position=131_072,
    )  # fmt: skip
    return changed(plain, **other)


LLAMA_8B = _spec("llama", 128_256, 4096, 32, 8, 128, 14_336)
LLAMA_70B = _spec("llama", 128_256, 8192, 64, 8, 128, 28_672)
QWEN3_600M = _spec("qwen3", 151_936, 1024, 16, 8, 128, 3072, qk_norm="head", tied_embeddings=True)
QWEN3_30B_A3B = _spec(
    "qwen3_moe", 151_936, 2048, 32, 4, 128, 0, qk_norm="head", layers=(LayerSpec(experts=True),),
    experts=ExpertSpec(count=128, width=768, routing=Routing(chosen=8, normalised=True)),
)  # fmt: skip
# As AWQ and GPTQ without zero points, AWQ, Q4_1, Q4_K, Q8_0 and Q6_K have them.
STORED = (
    StoredFormat(4, 128, "float16"),
    StoredFormat(4, 128, "float16", "zeros"),
    StoredFormat(4, 32, "float16", "float16"),
    StoredFormat(4, 32, "float32", "float32"),
    StoredFormat(8, 32, "float16"),
    StoredFormat(8, 16, "float32"),
)
MODELS = (
    *(LaunchedModel(LLAMA_8B, quantize) for quantize in ("none", "int8", "int4", "fp8")),
    *(LaunchedModel(LLAMA_8B, kv_cache_dtype=cache) for cache in ("fp8", "int8")),
    LaunchedModel(LLAMA_8B, adapters=ADAPTERS),
    LaunchedModel(LLAMA_8B, "fp8", adapters=ADAPTERS),
    LaunchedModel(LLAMA_70B, "fp8"),
    LaunchedModel(QWEN3_600M),
    LaunchedModel(QWEN3_600M, "fp8"),
    *(LaunchedModel(QWEN3_30B_A3B, quantize) for quantize in ("none", "int8", "int4", "fp8")),
    *(LaunchedModel(LLAMA_8B, stored=stored) for stored in STORED),
)
# The tensor core's instruction by the type of the right operand.
TENSOR_CORE = {
    "i8": {80: "IMMA", 90: "IGMMA"},
    "fp8e4nv": {89: "QMMA", 90: "QGMMA"},
    "bf16": {80: "HMMA", 90: "HGMMA"},
}


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

    def load(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Nothing: the target has no memory."""

    upload = download = load

    def run(self, work: Work) -> None:
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
    sizes = GpuSizes(
        quantize=served.quantize,
        kv_cache_dtype=served.kv_cache_dtype,
        num_blocks=1 << 10 if place == "meta" else 2,
        max_model_len=served.spec.max_position,
        buckets=Buckets(
            max_tokens=served.max_tokens,
            max_chunks=served.max_running,
            max_rows=served.max_rows,
            adapters=served.adapters.count > 0,
        ),
        adapters=served.adapters,
        stored={} if served.stored is None else {f"0.{name}": served.stored for name in MATRICES},
    )
    with recording(found.add):
        GpuModel(RecordingDevice(capability, place), served.spec, None, sizes)
    return found


def every_specialisation() -> list[Specialisation]:
    """Each form once for the GPUs of a major version that launch it, compiled for the oldest of them."""
    found: dict[tuple[int, KernelForm], Specialisation] = {}
    for capability in DEVICES:
        launched = set[KernelForm]()
        for served in MODELS:
            if served.quantize != "fp8" or capability >= 89:
                launched |= forms_of(served, capability)
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
    match kernel:
        case "shrink_kernel" | "expand_kernel":
            uses = ("HMMA",)
        case "decode_kernel":
            uses = ("HMMA", staged)
        case "prefill_kernel":
            uses = (TENSOR_CORE["bf16"][major],)
            bytes_each = 2 if "bf16" in types["keys"] else 1
            launch = choose_launch(capability, values["HEAD_DIM"], bytes_each, 1, 1, multiprocessors=1)
            spills = launch.prefill.max_spills
        case "narrow_gemm_kernel" | "wide_gemm_kernel" | "plain_experts_kernel":
            element = next(name for name in TENSOR_CORE if name in types["w"])
            uses = (TENSOR_CORE[element].get(capability) or TENSOR_CORE[element][major], staged)
        case "w4_gemm_kernel" | "w8_gemm_kernel" | "w4_experts_kernel" | "w8_experts_kernel":
            uses = (TENSOR_CORE["bf16"][major], "LDGSTS", "PRMT")
        case "w4_dequantise_kernel" | "w8_dequantise_kernel":
            uses = ("PRMT",)
        case _:
            pass
    return Specialisation(form, capability, (capability,), uses, spills)
