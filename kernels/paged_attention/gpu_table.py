"""Launch table of paged attention on the GPU, by head size and bytes of a cache element. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..gpu.table import Row, Table, choose

PAGE_TOKENS = 64
E4M3_CAPABILITY = 89  # below it Triton refuses e4m3, and the kernels take its bits apart
LARGEST = 1 << 62  # a size beyond every bucket
STRICT_SPLITS = 16  # parts of a sequence, at most, where its cuts depend on nothing else


@dataclass(frozen=True, slots=True)
class DecodeLaunch:
    programs: int  # over all kv heads, resident together: multiprocessors times programs on each
    least_share: int  # pages a program takes at least: below, a second part costs more than it saves
    warps: int
    stages: int
    descriptors: bool = False  # read pages by TMA


@dataclass(frozen=True, slots=True)
class PrefillLaunch:
    rows: int  # of a tile: query tokens times heads of a group
    warps: int
    stages: int
    descriptors: bool = False
    max_spills: int = 0  # instructions, as the row's evidence says


@dataclass(frozen=True, slots=True)
class AttentionLaunch:
    """What plan, workspace and kernels must agree on: choose it once for a step's bucket of sequences."""

    decode: DecodeLaunch
    prefill: PrefillLaunch
    strict: bool
    e4m3_bits: bool

    def programs(self, kv_heads: int) -> int:
        """Programs for each kv head."""
        return max(1, self.decode.programs // kv_heads)


def padded_head(head_dim: int) -> int:
    return max(16, 1 << (head_dim - 1).bit_length())


def query_rows(heads: int, kv_heads: int) -> int:
    """Rows of a decode tile: the heads of a group, and at least the 16 that a matrix instruction takes."""
    return max(16, 1 << (heads // kv_heads - 1).bit_length())


# Keys: largest head size of the row, bytes of a cache element. Programs: two on each multiprocessor (A100 108, H100 and
# H200 132), three where registers and shared memory allow and conversion takes issue slots. Evidence is of compiling
# the forms in gpu_specialisations.py by Triton 3.9 and 3.6: most registers of any; nothing here was measured yet.
DECODE: Mapping[tuple[int, int], Table[DecodeLaunch]] = {
    (64, 2): {
        80: (Row(None, DecodeLaunch(216, 2, 4, 4), "compiled: 128 registers, no spills, 53 KB shared"),),
        90: (Row(None, DecodeLaunch(264, 2, 4, 4, True), "compiled: 127 registers, no spills, 61 KB shared"),),
    },
    (64, 1): {
        80: (Row(None, DecodeLaunch(216, 2, 4, 4), "compiled: 128 registers, no spills, 30 KB shared"),),
        90: (Row(None, DecodeLaunch(396, 2, 4, 4, True), "compiled: 126 registers, no spills, 38 KB shared"),),
    },
    (96, 2): {
        80: (Row(None, DecodeLaunch(216, 2, 4, 3), "compiled: 168 registers, no spills, 72 KB shared"),),
        90: (Row(None, DecodeLaunch(264, 2, 4, 3), "compiled: 168 registers, no spills, 72 KB; by TMA 3.6 spills"),),
    },
    (96, 1): {
        80: (Row(None, DecodeLaunch(216, 2, 4, 3), "compiled: 241 registers, no spills, 40 KB shared"),),
        90: (Row(None, DecodeLaunch(264, 2, 4, 4), "compiled: 194 registers, no spills, 57 KB shared"),),
    },
    (128, 2): {
        80: (Row(None, DecodeLaunch(216, 2, 4, 3), "compiled: 168 registers, no spills, 72 KB shared"),),
        90: (Row(None, DecodeLaunch(264, 2, 4, 3, True), "compiled: 137 registers, no spills, 88 KB shared"),),
    },
    (128, 1): {
        80: (Row(None, DecodeLaunch(216, 2, 4, 3), "compiled: 244 registers for e4m3, 168 for int8, no spills"),),
        90: (Row(None, DecodeLaunch(396, 2, 4, 4, True), "compiled: 168 registers, no spills, 73 KB shared"),),
    },
    (256, 2): {
        80: (Row(None, DecodeLaunch(216, 2, 4, 2), "compiled: 168 registers, no spills, 76 KB shared"),),
        90: (Row(None, DecodeLaunch(132, 2, 4, 3, True), "compiled: 185 registers, no spills, 174 KB shared"),),
    },
    (256, 1): {
        80: (Row(None, DecodeLaunch(216, 2, 4, 3), "compiled: 255 registers, no spills, 77 KB shared"),),
        90: (Row(None, DecodeLaunch(264, 2, 4, 3, True), "compiled: 184 registers, no spills, 110 KB shared"),),
    },
}

PREFILL: Mapping[tuple[int, int], Table[PrefillLaunch]] = {
    (64, 2): {
        80: (Row(None, PrefillLaunch(128, 8, 3), "compiled: 170 registers, 33 KB shared"),),
        90: (Row(None, PrefillLaunch(128, 8, 3), "compiled: 115 registers, 49 KB shared"),),
    },
    (64, 1): {
        80: (Row(None, PrefillLaunch(64, 8, 3), "the tile of (128, 1), not compiled"),),
        90: (Row(None, PrefillLaunch(128, 8, 3), "the tile of (64, 2), not compiled"),),
    },
    (96, 2): {
        80: (Row(None, PrefillLaunch(128, 8, 2), "compiled: 233 registers, 66 KB shared"),),
        90: (Row(None, PrefillLaunch(128, 8, 2), "compiled: 173 registers, 98 KB shared"),),
    },
    (96, 1): {
        80: (Row(None, PrefillLaunch(64, 8, 2), "the tile of (128, 1), not compiled"),),
        90: (Row(None, PrefillLaunch(128, 8, 2), "the tile of (128, 1), not compiled"),),
    },
    (128, 2): {
        80: (Row(None, PrefillLaunch(128, 8, 2), "compiled: 255 registers with a window, 212 without, 66 KB shared"),),
        90: (Row(None, PrefillLaunch(128, 8, 2), "compiled: 221 registers with a window, 182 without, 98 KB shared"),),
    },
    (128, 1): {
        80: (
            Row(
                None,
                PrefillLaunch(64, 8, 2),
                "compiled: 202 registers, 41 KB shared; 128 rows spill 211 instructions for e4m3",
            ),
        ),
        90: (Row(None, PrefillLaunch(128, 8, 2), "compiled: 243 registers, 66 KB shared"),),
    },
    (256, 2): {
        80: (
            Row(
                None,
                PrefillLaunch(64, 8, 2),
                "compiled: 255 registers, 106 KB shared; by 4 warps 81 spill instructions",
            ),
        ),
        90: (
            Row(
                None,
                PrefillLaunch(128, 8, 2, max_spills=2),
                "compiled: 255 registers, 197 KB shared; 3.9 spills one register, 3.6 none",
            ),
        ),
    },
    (256, 1): {
        80: (Row(None, PrefillLaunch(64, 8, 2), "the tile of (256, 2), not compiled"),),
        90: (Row(None, PrefillLaunch(128, 8, 2), "the tile of (256, 2), not compiled"),),
    },
}


def choose_launch(
    capability: int, head_dim: int, cache_bytes: int, sequences: int, tokens: int, *, strict: bool = False
) -> AttentionLaunch:
    """The rows of a bucket; strict: the last ones, whatever the bucket, so that a result never depends on it."""
    fitting = [size for size, _ in DECODE if size >= head_dim]
    if not fitting:
        raise ValueError(f"head_dim {head_dim}: no launch is known, {max(DECODE)[0]} is the largest")
    key = min(fitting), min(cache_bytes, 2)  # float32 caches are for the interpreter
    decode, prefill = DECODE[key], PREFILL[key]
    return AttentionLaunch(
        decode=choose(decode, capability, LARGEST if strict else sequences),
        prefill=choose(prefill, capability, LARGEST if strict else tokens),
        strict=strict,
        e4m3_bits=capability < E4M3_CAPABILITY,
    )
