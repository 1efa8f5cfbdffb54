"""The compiled forms of paged attention that serving launches, from the launch table's rows. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..gpu.compiling import Specialisation
from .gpu_decode import decode_kernel, reduce_kernel
from .gpu_plan import plan_kernel
from .gpu_prefill import prefill_kernel
from .gpu_table import PAGE_TOKENS, STRICT_SPLITS, AttentionLaunch, choose_launch, padded_head, query_rows

KV_HEADS = 8
SEQUENCES, TOKENS = 256, 8192  # a large bucket of each kind
CACHE_BYTES = {"bf16": 2, "fp8e4nv": 1, "i8": 1}
INTEGERS = ("q_stride", "table_width", "sequences", "window")  # of the kernels' arguments
UNALIGNED = frozenset(INTEGERS[1:])  # never specialised, so that a bucket more is no compilation more


@dataclass(frozen=True, slots=True)
class Model:
    """What decides the compiled form: a model's head, group and cache, and what its layers ask for."""

    head_dim: int
    cache: str
    group: int = 4
    windowed: bool = False
    soft_capped: bool = False
    strict: bool = False


DECODE_MODELS = (
    Model(128, "bf16", 1), Model(128, "bf16"), Model(128, "bf16", 8), Model(128, "bf16", strict=True),
    Model(128, "fp8e4nv"), Model(128, "i8"), Model(64, "bf16"), Model(64, "fp8e4nv"), Model(80, "bf16", 1),
    Model(96, "bf16", 1), Model(96, "fp8e4nv", 1), Model(256, "bf16", 2, windowed=True, soft_capped=True),
    Model(256, "fp8e4nv"),
)  # fmt: skip
PREFILL_MODELS = (
    Model(128, "bf16"), Model(128, "bf16", windowed=True), Model(128, "fp8e4nv"), Model(128, "i8"), Model(64, "bf16"),
    Model(96, "bf16", 1), Model(256, "bf16", 2, windowed=True, soft_capped=True),
)  # fmt: skip


def specialisations() -> Iterator[Specialisation]:
    for capability in (80, 90):
        for model in DECODE_MODELS:
            yield _decode(model, capability)
        for model in PREFILL_MODELS:
            yield _prefill(model, capability)
    yield _form(
        plan_kernel,
        dict.fromkeys(("starts", "lengths", "plan"), "*i32") | {"sequences": "i32", "window": "i32"},
        {"PROGRAMS": 33, "LEAST_SHARE": 2, "BLOCK": SEQUENCES, "WINDOWED": False},
        warps=4, stages=3,
    )  # fmt: skip
    for head_dim in (96, 128):
        yield _form(
            reduce_kernel,
            {"starts": "*i32", "plan": "*i32", "partials": "*fp32", "maxima": "*fp32", "totals": "*fp32",
             "out": "*bf16", "sequences": "i32"},
            {"HEADS": 32, "HEAD_DIM": head_dim, "PADDED_DIM": padded_head(head_dim), **_cuts(Model(head_dim, "bf16"))},
            warps=4, stages=3,
        )  # fmt: skip


def _form(
    kernel: Any, signature: dict[str, str], constants: dict[str, Any], *, warps: int, stages: int,
    capability: int | None = None, uses: tuple[str, ...] = (), max_spills: int = 0,
) -> Specialisation:  # Any: a kernel; a constexpr may be anything  # fmt: skip
    return Specialisation(
        kernel=kernel, signature=signature | dict.fromkeys(constants, "constexpr"), constants=constants,
        num_warps=warps, num_stages=stages, unaligned=UNALIGNED,
        capabilities=(80, 90) if capability is None else (capability,),
        uses={} if capability is None else {capability: uses}, max_spills=max_spills,
    )  # fmt: skip


def _decode(model: Model, capability: int) -> Specialisation:
    launch = choose_launch(capability, model.head_dim, CACHE_BYTES[model.cache], SEQUENCES, TOKENS)
    decode = launch.decode
    signature = _inputs(model, launch, decode.descriptors) | {
        "plan": "*i32", "partials": "*fp32", "maxima": "*fp32", "totals": "*fp32",
    } | _rest()  # fmt: skip
    constants = _constants(model, launch, decode.descriptors) | _cuts(model)
    constants["ROWS"] = query_rows(model.group * KV_HEADS, KV_HEADS)
    uses = "HMMA", "UTMALDG" if decode.descriptors else "LDGSTS"
    return _form(
        decode_kernel, signature, constants, warps=decode.warps, stages=decode.stages, capability=capability, uses=uses
    )


def _prefill(model: Model, capability: int) -> Specialisation:
    launch = choose_launch(capability, model.head_dim, CACHE_BYTES[model.cache], SEQUENCES, TOKENS)
    prefill = launch.prefill
    signature = _inputs(model, launch, prefill.descriptors) | _rest()
    constants = _constants(model, launch, prefill.descriptors) | {"ROWS": prefill.rows}
    return _form(
        prefill_kernel, signature, constants, warps=prefill.warps, stages=prefill.stages, capability=capability,
        uses=("HMMA",) if capability < 90 else ("HGMMA",), max_spills=prefill.max_spills,
    )  # fmt: skip


def _cuts(model: Model) -> dict[str, Any]:
    return {"STRICT": model.strict, "SPLITS": STRICT_SPLITS, "LEAST_SHARE": 2}


def _inputs(model: Model, launch: AttentionLaunch, descriptors: bool) -> dict[str, str]:
    element = "u8" if model.cache == "fp8e4nv" and launch.e4m3_bits else model.cache
    pages = f"tensordesc<{element}[{PAGE_TOKENS},{padded_head(model.head_dim)}]>" if descriptors else f"*{element}"
    scales = "constexpr" if model.cache == "bf16" else "*fp32"
    return {
        "q": "*bf16", "keys": pages, "values": pages, "key_scales": scales, "value_scales": scales,
        "starts": "*i32", "lengths": "*i32", "tables": "*i32",
    }  # fmt: skip


def _rest() -> dict[str, str]:
    return {"out": "*bf16"} | dict.fromkeys(INTEGERS, "i32") | {"factor": "fp32", "cap": "fp32"}


def _constants(model: Model, launch: AttentionLaunch, descriptors: bool) -> dict[str, Any]:
    scaled = model.cache != "bf16"
    return ({} if scaled else {"key_scales": None, "value_scales": None}) | {
        "HEADS": model.group * KV_HEADS, "KV_HEADS": KV_HEADS, "HEAD_DIM": model.head_dim,
        "PADDED_DIM": padded_head(model.head_dim), "WINDOWED": model.windowed, "SOFT_CAPPED": model.soft_capped,
        "SCALED": scaled, "E4M3_BITS": model.cache == "fp8e4nv" and launch.e4m3_bits, "DESCRIPTORS": descriptors,
    }  # fmt: skip
