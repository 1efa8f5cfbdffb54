"""The compiled forms of the GEMM kernels: every launch of the tables, strict ones too, with the formats' main variants.

What varies beside the launch: how weights are scaled, whether K is split (float32 or int32 parts) or the result
written directly, whether K is a multiple of the tile, bias and residual. Each value of each is compiled with every
launch or with the one for decoding; not every combination, which would be several hundred forms.
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
from .gpu_table import REDUCE_BLOCK, REDUCE_WARPS, STRICT, TABLES, Few, Launch, Library, LinearFormat, Many
from .gpu_wide import wide_gemm_kernel

Constants = Mapping[str, Any]  # Any: whatever a constexpr may be
DIRECT = {"out": "*bf16"}  # K is not split; what is written as float32 is the same for parts and for logits
SIZES = {"M", "N", "K", "padded_n", "stride_x", "first_row"}
PLAIN: tuple[LinearFormat, ...] = ("w8a8", "fp8", "bf16")
TYPES = {"w8a8": "i8", "fp8": "fp8e4nv", "bf16": "bf16"}
TENSOR_CORE: Mapping[str, Mapping[int, tuple[str, ...]]] = {
    "w8a8": {80: ("IMMA",), 90: ("IGMMA",)},
    "fp8": {89: ("QMMA",), 90: ("QGMMA",)},
    "bf16": {80: ("HMMA",), 90: ("HGMMA",)},
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
    for capability in (80, 89, 90):
        for kind in PLAIN:
            for launch in _launches(kind, capability):
                if not isinstance(launch, Library):
                    yield from _plain(kind, launch, capability)
    for capability in (80, 90):
        yield from _packed(capability)
        yield from _unpacking(capability)
        yield from _reducing(capability)


def _reducing(capability: int) -> Iterator[Specialisation]:
    logits = {"parts": "*fp32", "out": "*fp32"}
    summed = logits | DIRECT | {"residual": "*bf16"}
    exact = summed | {"parts": "*i32", "x_scales": "*fp32", "w_scales": "*fp32", "bias": "*bf16"}
    for pointers, split in ((summed, 8), (exact, 8), (logits, 2)):
        block = {"SPLIT": split, "BLOCK": REDUCE_BLOCK}
        yield _form(reduce_kernel, pointers, block, (REDUCE_WARPS, 1), capability)


def _packed(capability: int) -> Iterator[Specialisation]:
    """Every row twice: as it is used most, and at the other end of everything that varies."""
    uses = ("HGMMA" if capability == 90 else "HMMA", "LDGSTS", "PRMT")
    w8 = {"x": "*bf16", "packed": "*u8", "scales": "*fp32", "out": "*fp32"}
    w4 = w8 | {"scales": "*bf16"}
    zeros = w4 | {"offsets": "*bf16"}
    for launch in _launches("w4a16", capability):
        if isinstance(launch, Few):
            variants = [(zeros, 1, True), (zeros | DIRECT, 4, False)]
            if launch.block_m == 16:  # decoding
                whole = w4 | DIRECT | {"bias": "*bf16", "residual": "*bf16"}
                variants += [
                    (zeros | DIRECT, 1, True),
                    (zeros, 4, True),
                    (w4, 1, True),
                    (w4, 2, True),
                    (whole, 1, True),
                ]
            for pointers, groups, even in variants:
                constants = _few(launch, even) | {"GROUPS": groups, "TALL": launch.tall}
                yield _form(w4_gemm_kernel, pointers, constants, (launch.warps, launch.stages), capability, *uses)
    for launch in _launches("w8a16", capability):
        if isinstance(launch, Few):
            for pointers, even in ((w8, True), (w8 | DIRECT, False)):
                options = (launch.warps, launch.stages)
                yield _form(w8_gemm_kernel, pointers, _few(launch, even), options, capability, *uses)


def _few(launch: Few, even: bool) -> dict[str, Any]:
    return {
        "EVEN_K": even,
        "BLOCK_M": launch.block_m,
        "BLOCKS": launch.block_n // 64,
        "STAGES": launch.stages,
    }


def _unpacking(capability: int) -> Iterator[Specialisation]:
    pointers = {"packed": "*u8", "scales": "*bf16", "out": "*bf16"}
    for groups, offsets in ((1, {}), (4, {"offsets": "*bf16"})):
        yield _form(w4_dequantise_kernel, pointers | offsets, {"GROUPS": groups}, (4, 3), capability, "PRMT")
    yield _form(w8_dequantise_kernel, pointers | {"scales": "*fp32"}, {}, (4, 3), capability, "PRMT")


def _plain(kind: LinearFormat, launch: Few | Many, capability: int) -> Iterator[Specialisation]:
    element, core = TYPES[kind], TENSOR_CORE[kind][capability]
    constants: dict[str, Any] = {
        "SUM": tl.int32 if kind == "w8a8" else tl.float32,
        "BLOCK_SCALES": False,
        "X_PER_ROW": True,
        "W_PER_ROW": True,
        "PRECISE": launch.block_k if kind == "fp8" else None,
        "EVEN_K": True,
        "BLOCK_M": launch.block_m,
        "BLOCK_N": launch.block_n,
        "BLOCK_K": launch.block_k,
        "STAGES": launch.stages,
    }
    uneven, by_block = {"EVEN_K": False}, {"BLOCK_SCALES": True}
    bare = {"x": f"*{element}", "w": f"*{element}", "out": "*fp32"}
    scaled = bare if kind == "bf16" else bare | {"x_scales": "*fp32", "w_scales": "*fp32"}
    parts = bare | {"out": "*i32"} if kind == "w8a8" else scaled
    added = scaled | DIRECT | {"residual": "*bf16"}
    options = (launch.warps, launch.stages)

    def form(pointers: Mapping[str, str], changed: Constants, *uses: str) -> Specialisation:
        kernel = narrow_gemm_kernel if isinstance(launch, Few) else wide_gemm_kernel
        return _form(kernel, pointers, {**constants, **changed}, options, capability, *core, *uses)

    if isinstance(launch, Few):
        yield form(parts, {}, "LDGSTS")
        yield form(scaled | DIRECT, uneven, "LDGSTS")
        if kind == "fp8" and capability >= 90:
            yield form(parts, by_block, "LDGSTS")
        return
    constants |= {"GROUP_M": launch.group_m, "DESCRIPTORS": False}
    if launch.descriptors:
        by_copy = {"DESCRIPTORS": True}
        blocks = {
            "x": f"tensordesc<{element}[{launch.block_m},{launch.block_k}]>",
            "w": f"tensordesc<{element}[{launch.block_n},{launch.block_k}]>",
        }
        yield form(added | blocks, by_copy, "UTMALDG")
        if kind == "fp8":
            yield form(added | blocks, by_copy | by_block, "UTMALDG")
        if kind == "bf16":
            yield form(bare | blocks, by_copy, "UTMALDG")
    else:
        yield form(added, {}, "LDGSTS")
    if kind == "bf16" and not launch.descriptors:
        yield form(bare, uneven, "LDGSTS")
