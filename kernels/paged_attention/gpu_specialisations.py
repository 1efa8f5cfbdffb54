"""The compiled forms of paged attention that serving launches, from the launch table's rows. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..gpu.compiling import Specialisation
from ..gpu.table import PAGE_TOKENS
from .gpu_decode import decode_kernel, reduce_kernel
from .gpu_plan import plan_kernel
from .gpu_prefill import prefill_kernel
from .gpu_table import (
    STRICT_SPLITS,
    AttentionLaunch,
    choose_launch,
    group_rows,
    padded_head,
    query_rows,
    reduced_at_once,
)

KV_HEADS = 8
SEQUENCES, TOKENS = 256, 8192  # a large bucket of each kind
DEVICES = (80, 86, 89, 90)
CACHE_BYTES = {"bf16": 2, "fp8e4nv": 1, "i8": 1}
INTEGERS = ("q_stride", "table_width", "sequences", "window")  # of the kernels' arguments
UNALIGNED = frozenset(INTEGERS[1:])  # never specialised, so that a bucket more is no compilation more


@dataclass(frozen=True, slots=True)
class Model:
    """What decides the compiled form: a model's head, group and cache, and what its layers ask for."""

    head_dim: int
    cache: str = "bf16"
    group: int = 4
    windowed: bool = False
    soft_capped: bool = False
    strict: bool = False


GROUPS = {64: 4, 80: 1, 96: 1, 128: 4, 256: 2}  # the usual one of each head size
MODELS = (
    *(Model(head_dim, cache, group) for head_dim, group in GROUPS.items() for cache in CACHE_BYTES),
    Model(128, group=1), Model(128, group=8), Model(128, "fp8e4nv", 8),
    Model(64, group=7), Model(64, "fp8e4nv", 7),  # no power of two: rows of a tile are left over
    Model(128, windowed=True), Model(128, "fp8e4nv", windowed=True), Model(96, "bf16", 1, True),
    Model(256, "bf16", 2, windowed=True, soft_capped=True), Model(256, "fp8e4nv", 2, windowed=True, soft_capped=True),
)  # fmt: skip
STRICT_MODELS = (Model(128, strict=True), Model(128, "fp8e4nv", strict=True))
# Of the second stage: the cache's type is not its business.
REDUCED_MODELS = (Model(64, group=7), Model(96, group=1), Model(128), Model(128, group=8), Model(256, group=2))


def specialisations() -> Iterator[Specialisation]:
    for model in MODELS:
        yield from _over_devices(_decode, model)
        yield from _over_devices(_prefill, model)
    for model in STRICT_MODELS:  # prefill's form is the same
        yield from _over_devices(_decode, model)
    for strict in (False, True):
        yield _form(
            plan_kernel,
            dict.fromkeys(("starts", "lengths", "plan"), "*i32") | {"sequences": "i32", "window": "i32"},
            {"PROGRAMS": 33, "BLOCK": SEQUENCES, "WINDOWED": False} | _cuts(strict),
            warps=4, stages=3,
        )  # fmt: skip
    for model in REDUCED_MODELS:
        yield _reduce(model)
    yield _reduce(replace(REDUCED_MODELS[2], strict=True))


def _over_devices(make: Callable[[Model, int], Specialisation], model: Model) -> Iterator[Specialisation]:
    """One form for the devices of a major version whose table rows come to the same, compiled for the oldest."""
    found: list[Specialisation] = []
    for device in DEVICES:
        form = make(model, device)
        for place, other in enumerate(found):
            alike = replace(form, capabilities=other.capabilities, uses=other.uses, serves=other.serves) == other
            if alike and device // 10 == other.capabilities[0] // 10:
                found[place] = replace(other, serves=(*other.serves, device))
                break
        else:
            found.append(form)
    yield from found


def _form(
    kernel: Any, signature: dict[str, str], constants: dict[str, Any], *, warps: int, stages: int,
    capability: int | None = None, uses: tuple[str, ...] = (), max_spills: int = 0,
) -> Specialisation:  # Any: a kernel; a constexpr may be anything  # fmt: skip
    form = Specialisation(
        kernel=kernel, signature=signature | dict.fromkeys(constants, "constexpr"), constants=constants,
        num_warps=warps, num_stages=stages, unaligned=UNALIGNED, max_spills=max_spills,
    )  # fmt: skip
    if capability is None:
        return form
    return replace(form, capabilities=(capability,), uses={capability: uses}, serves=(capability,))


def _launch(model: Model, capability: int) -> AttentionLaunch:
    return choose_launch(
        capability, model.head_dim, CACHE_BYTES[model.cache], SEQUENCES, TOKENS,
        multiprocessors=132, strict=model.strict,  # no form tells how many
    )  # fmt: skip


def _decode(model: Model, capability: int) -> Specialisation:
    launch = _launch(model, capability)
    decode = launch.decode
    signature = _inputs(model, launch, decode.descriptors) | {
        "plan": "*i32", "partials": "*fp32", "maxima": "*fp32", "totals": "*fp32",
    } | _rest()  # fmt: skip
    constants = _constants(model, launch, decode.descriptors) | _cuts(model.strict)
    constants["ROWS"] = query_rows(model.group * KV_HEADS, KV_HEADS)
    uses = "HMMA", "UTMALDG" if decode.descriptors else "LDGSTS"
    return _form(
        decode_kernel, signature, constants, warps=decode.warps, stages=decode.stages, capability=capability, uses=uses
    )


def _prefill(model: Model, capability: int) -> Specialisation:
    launch = _launch(model, capability)
    prefill = launch.prefill
    signature = _inputs(model, launch, prefill.descriptors) | _rest()
    constants = _constants(model, launch, prefill.descriptors) | {"ROWS": prefill.rows}
    return _form(
        prefill_kernel, signature, constants, warps=prefill.warps, stages=prefill.stages, capability=capability,
        uses=("HMMA",) if capability < 90 else ("HGMMA",), max_spills=prefill.max_spills,
    )  # fmt: skip


def _reduce(model: Model) -> Specialisation:
    heads, padded = model.group * KV_HEADS, padded_head(model.head_dim)
    rows = group_rows(heads, KV_HEADS)
    return _form(
        reduce_kernel,
        {"starts": "*i32", "plan": "*i32", "partials": "*fp32", "maxima": "*fp32", "totals": "*fp32",
         "out": "*bf16", "sequences": "i32"},
        {"HEADS": heads, "KV_HEADS": KV_HEADS, "HEAD_DIM": model.head_dim, "PADDED_DIM": padded, "GROUP_ROWS": rows,
         "PARTS_AT_ONCE": reduced_at_once(rows, padded), **_cuts(model.strict)},
        warps=4, stages=3,
    )  # fmt: skip


def _cuts(strict: bool) -> dict[str, Any]:
    return {"STRICT": strict, "SPLITS": STRICT_SPLITS, "LEAST_SHARE": 2}


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
