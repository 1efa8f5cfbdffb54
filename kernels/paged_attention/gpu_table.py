"""Launch table of paged attention on the GPU, by head size and bytes of a cache element. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..gpu.table import E4M3_CAPABILITY, LaunchRow, Table, choose

LARGEST = 1 << 62  # a size beyond every bucket
STRICT_SPLITS = 16  # parts of a sequence, at most, where its cuts depend on nothing else


@dataclass(frozen=True, slots=True)
class DecodeLaunch:
    resident: int  # programs on each multiprocessor, no more than registers and shared memory let run together
    least_share: int  # pages a program takes at least: below, a second part costs more than it saves
    warps: int
    stages: int
    descriptors: bool = False  # read pages by TMA
    programs: int = 0  # over all kv heads, of the device at hand: choose_launch fills it in


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
        """Programs for each kv head: what is resident on the whole device, shared out."""
        return max(1, self.decode.programs // kv_heads)


def padded_head(head_dim: int) -> int:
    return max(16, 1 << (head_dim - 1).bit_length())


def group_rows(heads: int, kv_heads: int) -> int:
    return 1 << (heads // kv_heads - 1).bit_length()


def query_rows(heads: int, kv_heads: int) -> int:
    """Rows of a decode tile: the heads of a group, and at least the 16 that a matrix instruction takes."""
    return max(16, group_rows(heads, kv_heads))


def reduced_at_once(rows: int, padded: int) -> int:
    """Parts of a row that are added from registers: 32 values for each of 128 threads, where 2 fit so."""
    return max(2, min(16, 4096 // (rows * padded)))


# Keys: largest head size of the row, bytes of a cache element. A row of 8.0 serves 8.6 and 8.9 where they have none;
# their multiprocessors have 100 KB of shared memory against 164, so fewer programs are resident. Evidence is of
# compiling what is launched (make kernels) by Triton 3.9 and 3.6: most registers and shared memory of any, and how
# many programs could be resident by both. Where it does not say "no spills", 3.6 spills 2 to 16 values outside the loop
# over pages. Nothing was measured yet.
DECODE: Mapping[tuple[int, int], Table[DecodeLaunch]] = {
    (64, 2): {
        80: (LaunchRow(None, DecodeLaunch(3, 2, 4, 4), "compiled: 168 registers, no spills, 52 KB: 3 resident"),),
        86: (LaunchRow(None, DecodeLaunch(1, 2, 4, 4), "compiled: 128 registers, no spills, 52 KB: 1 resident"),),
        90: (LaunchRow(None, DecodeLaunch(3, 2, 4, 4, True), "compiled: 168 registers, no spills, 52 KB: 3 resident"),),
    },
    (64, 1): {
        80: (LaunchRow(None, DecodeLaunch(3, 2, 4, 4), "compiled: 168 registers, 30 KB: 3 resident"),),
        90: (LaunchRow(None, DecodeLaunch(3, 2, 4, 4, True), "compiled: 168 registers, no spills, 30 KB: 3 resident"),),
    },
    (96, 2): {
        80: (LaunchRow(None, DecodeLaunch(2, 2, 4, 3), "compiled: 128 registers, no spills, 70 KB: 2 resident"),),
        86: (LaunchRow(None, DecodeLaunch(1, 2, 4, 3), "compiled: 148 registers, no spills, 70 KB: 1 resident"),),
        90: (LaunchRow(None, DecodeLaunch(3, 2, 4, 3), "compiled: 148 registers, no spills, 70 KB: 3 resident"),),
    },
    (96, 1): {
        80: (LaunchRow(None, DecodeLaunch(3, 2, 4, 3), "compiled: 168 registers, no spills, 39 KB: 3 resident"),),
        86: (LaunchRow(None, DecodeLaunch(2, 2, 4, 3), "compiled: 153 registers, no spills, 39 KB: 2 resident"),),
        90: (LaunchRow(None, DecodeLaunch(3, 2, 4, 4), "compiled: 156 registers, no spills, 56 KB: 3 resident"),),
    },
    (128, 2): {
        80: (LaunchRow(None, DecodeLaunch(2, 2, 4, 3), "compiled: 168 registers, no spills, 70 KB: 2 resident"),),
        86: (LaunchRow(None, DecodeLaunch(1, 2, 4, 3), "compiled: 168 registers, no spills, 70 KB: 1 resident"),),
        90: (LaunchRow(None, DecodeLaunch(3, 2, 4, 3, True), "compiled: 168 registers, no spills, 70 KB: 3 resident"),),
    },
    (128, 1): {
        80: (LaunchRow(None, DecodeLaunch(3, 2, 4, 3), "compiled: 168 registers, no spills, 39 KB: 3 resident"),),
        86: (LaunchRow(None, DecodeLaunch(2, 2, 4, 3), "compiled: 162 registers, 39 KB: 2 resident"),),
        90: (LaunchRow(None, DecodeLaunch(3, 2, 4, 4, True), "compiled: 167 registers, no spills, 56 KB: 3 resident"),),
    },
    (256, 2): {
        80: (LaunchRow(None, DecodeLaunch(2, 2, 4, 2), "compiled: 168 registers, 74 KB: 2 resident"),),
        86: (LaunchRow(None, DecodeLaunch(1, 2, 4, 2), "compiled: 184 registers, no spills, 74 KB: 1 resident"),),
        90: (
            LaunchRow(None, DecodeLaunch(1, 2, 4, 3, True), "compiled: 168 registers, no spills, 138 KB: 1 resident"),
        ),
    },
    (256, 1): {
        80: (LaunchRow(None, DecodeLaunch(2, 2, 4, 3), "compiled: 224 registers, no spills, 75 KB: 2 resident"),),
        86: (LaunchRow(None, DecodeLaunch(1, 2, 4, 3), "compiled: 224 registers, 75 KB: 1 resident"),),
        90: (LaunchRow(None, DecodeLaunch(2, 2, 4, 3, True), "compiled: 216 registers, no spills, 75 KB: 2 resident"),),
    },
    **{
        (size, 4): {80: (LaunchRow(None, DecodeLaunch(1, 2, 16, 1), f"compiled: {found}: 1 resident"),)}
        for size, found in (
            (64, "104 registers, 25 KB"),
            (96, "108 registers, 45 KB"),
            (128, "108 registers, 45 KB"),
            (256, "126 registers, no spills, 86 KB"),
        )
    },
}

# Of latent vectors of up to LATENT_DIM values and rotated keys of up to LATENT_ROPE, in bfloat16. A program reads a
# page once for its heads, so 128 heads read it eight times, all but the first from L2. Compiled, tiles of 64 rows (for
# wgmma) have 250 to 350 spill instructions, and of 32 decode rows 15 on sm_90: the output and the queries alone take up
# to 240 registers of a thread.
LATENT_DIM, LATENT_ROPE = 512, 64
LATENT_HEADS = 16  # of a tile
LATENT_DECODE: Table[DecodeLaunch] = {
    80: (LaunchRow(None, DecodeLaunch(1, 2, 8, 2), "compiled: 255 registers, no spills, 92 KB: 1 resident"),),
    90: (LaunchRow(None, DecodeLaunch(1, 2, 8, 3), "compiled: 249 registers, no spills, 164 KB: 1 resident"),),
}
LATENT_PREFILL: Table[PrefillLaunch] = {
    80: (LaunchRow(None, PrefillLaunch(32, 8, 2), "compiled: 255 registers, no spills; 112 KB"),),
    86: (LaunchRow(None, PrefillLaunch(16, 8, 2), "compiled: 137 registers, no spills; 92 KB"),),
    90: (LaunchRow(None, PrefillLaunch(32, 8, 2), "compiled: 196 registers, no spills; 112 KB"),),
}

# Heads up to 128 copy one page more ahead than with a stage less. bf16 heads of 96 and 128 on sm_90 do it by TMA: 363
# instructions for a page that is seen whole instead of 369 by pointers, 446 instead of 472 for one with an edge. In 8
# bits TMA costs 555 instead of 522, of 64 values 316 instead of 305. Spills are instructions. Tiles of half the rows on
# sm_80, of a quarter on sm_90, have none, but read and convert each page that much more often; 47 spills of 8 warps are
# 0.2 µs of L1 at worst, beside 1.1 µs of matrix products. In 8 bits, codes that every warp widened for itself would
# need none on sm_80, but take 1,215 instructions a page instead of 709.
PREFILL: Mapping[tuple[int, int], Table[PrefillLaunch]] = {
    (64, 2): {
        80: (LaunchRow(None, PrefillLaunch(128, 8, 3), "compiled: 182 registers; 48 KB"),),
        90: (LaunchRow(None, PrefillLaunch(128, 8, 3), "compiled: 128 registers; 64 KB"),),
    },
    (64, 1): {
        80: (LaunchRow(None, PrefillLaunch(64, 8, 3), "compiled: 238 registers; 33 KB"),),
        90: (LaunchRow(None, PrefillLaunch(128, 8, 3), "compiled: 174 registers; 41 KB"),),
    },
    (96, 2): {
        80: (LaunchRow(None, PrefillLaunch(128, 8, 3), "compiled: 230 registers; 96 KB"),),
        90: (LaunchRow(None, PrefillLaunch(128, 8, 3, True), "compiled: 178 registers; 129 KB"),),
    },
    (96, 1): {
        80: (
            LaunchRow(
                None,
                PrefillLaunch(64, 8, 3, max_spills=44),
                "compiled: 255 registers and 2 spills, on 8.9 15; by 3.6 26 and 44; 65 KB",
            ),
        ),
        90: (LaunchRow(None, PrefillLaunch(128, 8, 3), "compiled: 229 registers; 81 KB"),),
    },
    (128, 2): {
        80: (
            LaunchRow(
                None,
                PrefillLaunch(128, 8, 3, max_spills=35),
                "compiled: 255 registers, with a window 29 spills, by 3.6 35; 96 KB",
            ),
        ),
        90: (LaunchRow(None, PrefillLaunch(128, 8, 3, True), "compiled: 185 registers; 129 KB"),),
    },
    (128, 1): {
        80: (
            LaunchRow(
                None,
                PrefillLaunch(64, 8, 3, max_spills=24),
                "compiled: 255 registers and 2 spills, on 8.9 4; by 3.6 6 and 18, with a window 24; 65 KB",
            ),
        ),
        90: (LaunchRow(None, PrefillLaunch(128, 8, 3), "compiled: 255 registers; 81 KB"),),
    },
    (256, 2): {
        80: (LaunchRow(None, PrefillLaunch(64, 8, 2), "compiled: 255 registers; 104 KB"),),
        86: (LaunchRow(None, PrefillLaunch(32, 4, 2), "compiled: 195 registers; 84 KB"),),
        90: (
            LaunchRow(
                None,
                PrefillLaunch(128, 8, 2, max_spills=14),
                "compiled: 255 registers and 14 spills; 192 KB",
            ),
        ),
    },
    (256, 1): {
        80: (
            LaunchRow(
                None,
                PrefillLaunch(64, 8, 2, max_spills=18),
                "compiled: 255 registers and 12 spills, by 3.6 3, with a window 18; 104 KB",
            ),
        ),
        86: (LaunchRow(None, PrefillLaunch(32, 8, 2), "compiled: 206 registers; 85 KB"),),
        90: (
            LaunchRow(
                None,
                PrefillLaunch(128, 8, 2, max_spills=119),
                "compiled: 255 registers; by 3.6 78 spills, with a window 119; 129 KB",
            ),
        ),
    },
    # float32 has no tensor core's product: a thread holds its rows and columns of both operands, so tiles are small and
    # programs large.
    **{
        (size, 4): {80: (LaunchRow(None, PrefillLaunch(rows, 16, 1), f"compiled: {found}"),)}
        for size, rows, found in (
            (64, 32, "64 registers; 33 KB"),
            (96, 32, "64 registers; 57 KB"),
            (128, 32, "64 registers; 57 KB"),
            (256, 16, "108 registers; 86 KB"),
        )
    },
}


def choose_launch(
    capability: int, head_dim: int, cache_bytes: int, sequences: int, tokens: int, *, multiprocessors: int,
    strict: bool = False,
) -> AttentionLaunch:  # fmt: skip
    """The rows of a bucket, for a device of so many multiprocessors.

    strict: the last rows, whatever the bucket, so that a result depends on neither it nor the number of programs.
    """
    fitting = [size for size, _ in DECODE if size >= head_dim]
    if not fitting:
        raise ValueError(f"head_dim {head_dim}: no launch is known, {max(DECODE)[0]} is the largest")
    key = min(fitting), cache_bytes
    decode = choose(DECODE[key], capability, LARGEST if strict else sequences)
    prefill = choose(PREFILL[key], capability, LARGEST if strict else tokens)
    by_copy = head_dim * cache_bytes % 16 == 0  # the copy engine needs rows a multiple of 16 bytes apart
    return _of_device(
        replace(decode, descriptors=decode.descriptors and by_copy),
        replace(prefill, descriptors=prefill.descriptors and by_copy),
        capability, multiprocessors, strict=strict,
    )  # fmt: skip


def choose_latent_launch(
    capability: int, kv_rank: int, rope_dim: int, sequences: int, tokens: int, *, multiprocessors: int,
    strict: bool = False,
) -> AttentionLaunch:  # fmt: skip
    """The same for latent attention, whose heads come in `head_tiles`."""
    for name, size, most in (("kv_lora_rank", kv_rank, LATENT_DIM), ("qk_rope_head_dim", rope_dim, LATENT_ROPE)):
        if size > most:
            raise ValueError(f"{name} {size}: no launch is known, {most} is the largest")
    decode = choose(LATENT_DECODE, capability, LARGEST if strict else sequences)
    prefill = choose(LATENT_PREFILL, capability, LARGEST if strict else tokens)
    return _of_device(decode, prefill, capability, multiprocessors, strict=strict)


def head_tiles(heads: int) -> int:
    """In how few equal parts heads with one latent vector can be cut, if a tile takes a part."""
    return next(parts for parts in range(1, heads + 1) if heads % parts == 0 and heads // parts <= LATENT_HEADS)


def _of_device(
    decode: DecodeLaunch, prefill: PrefillLaunch, capability: int, multiprocessors: int, *, strict: bool
) -> AttentionLaunch:
    return AttentionLaunch(
        decode=replace(decode, programs=decode.resident * multiprocessors),
        prefill=prefill,
        strict=strict,
        e4m3_bits=capability < E4M3_CAPABILITY,
    )
