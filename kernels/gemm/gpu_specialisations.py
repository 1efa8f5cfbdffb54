"""The compiled forms of the GEMM kernels: every row of the launch tables with the formats' main variants.

Sizes are those of models: multiples of every tile. A launch of other sizes only adds masks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..gpu.compiling import Specialisation
from ..gpu.language import tl
from .gpu_dequantise import w4_dequantise_kernel, w8_dequantise_kernel
from .gpu_epilogue import reduce_kernel
from .gpu_narrow import narrow_gemm_kernel
from .gpu_packed import w4_gemm_kernel, w8_gemm_kernel
from .gpu_packed_tall import w4_tall_gemm_kernel
from .gpu_table import REDUCE_BLOCK, REDUCE_WARPS, STRICT, TABLES, Few, Launch, Library, LinearFormat
from .gpu_wide import wide_gemm_descriptor_kernel, wide_gemm_kernel

Constants = Mapping[str, Any]  # Any: whatever a constexpr may be
SIZES = {"M", "N", "K", "padded_n", "stride_x", "first_row"}
TYPES = {"w8a8": "i8", "fp8": "fp8e4nv", "bf16": "bf16"}
TENSOR_CORE = {
    "w8a8": {80: "IMMA", 90: "IGMMA"},
    "fp8": {90: "QGMMA"},
    "bf16": {80: "HMMA", 90: "HGMMA"},
}


def _form(
    kernel: Any, pointers: Mapping[str, str], constants: Constants, launch: tuple[int, int], capability: int,
    *uses: str, max_spills: int = 0,
) -> Specialisation:  # fmt: skip
    """Arguments that are neither pointers nor sizes nor constants are tensors that the caller left out."""
    names = kernel.arg_names
    kinds = {name: pointers.get(name, "i32" if name in SIZES else "constexpr") for name in names}
    values = {name: constants.get(name) for name in names if kinds[name] == "constexpr"}
    return Specialisation(
        kernel, kinds, values, *launch, unaligned=frozenset({"M"}), capabilities=(capability,),
        uses={capability: uses}, max_spills=max_spills,
    )  # fmt: skip


def _launches(kind: LinearFormat, capability: int) -> list[Launch]:
    tables = (TABLES[kind], STRICT[kind])
    return list(dict.fromkeys(row.launch for table in tables for row in table.get(capability, ())))


def specialisations() -> Iterator[Specialisation]:
    for capability in (80, 90):
        yield from _packed(capability)
        yield from _unpacking(capability)
        for kind in ("w8a8", "fp8", "bf16"):
            for launch in _launches(kind, capability):
                yield from _plain(kind, launch, capability)
        summed = {"parts": "*fp32", "out": "*bf16", "residual": "*bf16"}
        block = {"SPLIT": 8, "BLOCK": REDUCE_BLOCK}
        yield _form(reduce_kernel, summed, block, (REDUCE_WARPS, 1), capability)
        exact = summed | {"parts": "*i32", "x_scales": "*fp32", "w_scales": "*fp32", "bias": "*bf16"}
        yield _form(reduce_kernel, exact, block, (REDUCE_WARPS, 1), capability)


def _packed(capability: int) -> Iterator[Specialisation]:
    uses = ("HGMMA" if capability == 90 else "HMMA", "LDGSTS", "PRMT")
    parts = {"x": "*bf16", "packed": "*u8", "scales": "*bf16", "out": "*fp32"}
    whole = parts | {"out": "*bf16", "bias": "*bf16", "residual": "*bf16"}
    zeros = parts | {"offsets": "*bf16"}
    for place, launch in enumerate(row.launch for row in TABLES["w4a16"][capability]):
        if isinstance(launch, Few):
            # All variants for the row of decoding, the extremes for the others.
            decoding = [] if place else [(whole, 1), (zeros, 1), (parts, 2)]
            variants = [(parts, 1), (zeros, 4), *decoding]
            for pointers, groups in variants:
                constants = {**_few(launch), "GROUPS": groups}
                kernel = w4_tall_gemm_kernel if launch.tall else w4_gemm_kernel
                yield _form(kernel, pointers, constants, (launch.warps, launch.stages), capability, *uses)
    for launch in (row.launch for row in TABLES["w8a16"][capability]):
        if isinstance(launch, Few):
            pointers = parts | {"scales": "*fp32"}
            yield _form(w8_gemm_kernel, pointers, _few(launch), (launch.warps, launch.stages), capability, *uses)


def _few(launch: Few) -> Constants:
    return {
        "EVEN_K": True,
        "BLOCK_M": launch.block_m,
        "BLOCKS": launch.block_n // 64,
        "STAGES": launch.stages,
    }


def _unpacking(capability: int) -> Iterator[Specialisation]:
    pointers = {"packed": "*u8", "scales": "*bf16", "out": "*bf16"}
    for groups, offsets in ((1, {}), (4, {"offsets": "*bf16"})):
        yield _form(w4_dequantise_kernel, pointers | offsets, {"GROUPS": groups}, (4, 3), capability, "PRMT")
    yield _form(w8_dequantise_kernel, pointers | {"scales": "*fp32"}, {}, (4, 3), capability, "PRMT")


def _plain(kind: LinearFormat, launch: Launch, capability: int) -> Iterator[Specialisation]:
    element = TYPES[kind]
    pointers = {"x": f"*{element}", "w": f"*{element}", "out": "*bf16", "residual": "*bf16"}
    if kind != "bf16":
        pointers |= {"x_scales": "*fp32", "w_scales": "*fp32"}
    uses = TENSOR_CORE[kind].get(capability, "")
    for by_block in (False, True) if kind == "fp8" else (False,):
        constants: dict[str, Any] = {
            "SUM": tl.int32 if kind == "w8a8" else tl.float32,
            "BLOCK_SCALES": by_block,
            "X_PER_ROW": True,
            "W_PER_ROW": True,
            "PRECISE": launch.block_k if kind == "fp8" and not isinstance(launch, Library) else None,
            "EVEN_K": True,
        }
        if isinstance(launch, Library):
            continue
        constants |= {
            "BLOCK_M": launch.block_m, "BLOCK_N": launch.block_n, "BLOCK_K": launch.block_k, "STAGES": launch.stages,
        }  # fmt: skip
        options = (launch.warps, launch.stages)
        if isinstance(launch, Few):
            parts = {name: kind_ for name, kind_ in pointers.items() if name != "residual"} | {"out": "*fp32"}
            if kind == "w8a8":
                parts = {"x": "*i8", "w": "*i8", "out": "*i32"}
            yield _form(narrow_gemm_kernel, parts, constants, options, capability, uses, "LDGSTS")
        elif launch.descriptors:
            described = pointers | {
                "x": f"tensordesc<{element}[{launch.block_m},{launch.block_k}]>",
                "w": f"tensordesc<{element}[{launch.block_n},{launch.block_k}]>",
            }
            constants["GROUP_M"] = launch.group_m
            yield _form(wide_gemm_descriptor_kernel, described, constants, options, capability, uses, "UTMALDG")
        else:
            constants["GROUP_M"] = launch.group_m
            yield _form(wide_gemm_kernel, pointers, constants, options, capability, uses, "LDGSTS")
