"""Weights in the register order of a tensor core, and their conversion from bytes to bfloat16.

A weight matrix is cut into blocks of 64 rows (out channels) and 4096 bytes. In a block, thread t of the 128 that share
the product holds bytes [step][t][0..15] of two steps: one 128-bit load each, contiguous over the warp, and after
unpacking every value is already where the left operand of mma and wgmma must be, so nothing is shuffled.

For thread t = 32 w + 4 g + c and byte 8 b + 4 a + 2 r + p of step s (b, a, r, p are bits):

    row     16 w + 8 r + g
    column  32 s + 16 b + 8 a + 2 c + p

A byte of 4-bit weights holds two values, so a block is 64 rows x 128 columns: the low nibble belongs to the column
above, the high nibble to the one 64 further on. A block of 8-bit weights is 64 rows x 64 columns.
"""

from __future__ import annotations

from typing import Any

from ..gpu.language import INTERPRETED, jit, tl

# bfloat16 has 7 bits behind the point: 0x4300 + v is 128 + v for v < 128. So a byte permutation makes the number and an
# exact multiply-add takes the offset away (fma.rn.bf16x2 runs from sm_80, sub.bf16x2 only from sm_90).
_NIBBLES = """{
    .reg .b32 low, high, one, offset;
    mov.b32 one, 0x3f803f80;
    mov.b32 offset, 0xc308c308;
    and.b32 low, $4, 0x0f0f0f0f;
    shr.b32 high, $4, 4;
    and.b32 high, high, 0x0f0f0f0f;
    prmt.b32 $0, low, 0x43434343, 0x4140;
    prmt.b32 $1, low, 0x43434343, 0x4342;
    prmt.b32 $2, high, 0x43434343, 0x4140;
    prmt.b32 $3, high, 0x43434343, 0x4342;
    fma.rn.bf16x2 $0, $0, one, OFFSET0;
    fma.rn.bf16x2 $1, $1, one, OFFSET1;
    fma.rn.bf16x2 $2, $2, one, OFFSET2;
    fma.rn.bf16x2 $3, $3, one, OFFSET3;
}"""


def _with_offsets(*offsets: str) -> str:
    assembly = _NIBBLES
    for index, offset in enumerate(offsets):
        assembly = assembly.replace(f"OFFSET{index}", offset)
    return assembly


SYMMETRIC = tl.constexpr(_with_offsets(*4 * ["offset"]))  # -136 = -(128 + 8)
ZERO_POINTS = tl.constexpr(_with_offsets("$5", "$6", "$7", "$8"))  # -(128 + zero): of low nibbles, of high ones
# A signed byte is its low seven bits less 128 for the sign: (128 + low) - (128 or 256), and 0x4380 is 256.
SIGNED_BYTES = tl.constexpr("""{
    .reg .b32 low, sign, first, second, minus;
    mov.b32 minus, 0xbf80bf80;
    and.b32 low, $2, 0x7f7f7f7f;
    and.b32 sign, $2, 0x80808080;
    prmt.b32 $0, low, 0x43434343, 0x4140;
    prmt.b32 $1, low, 0x43434343, 0x4342;
    prmt.b32 first, sign, 0x43434343, 0x4140;
    prmt.b32 second, sign, 0x43434343, 0x4342;
    fma.rn.bf16x2 $0, first, minus, $0;
    fma.rn.bf16x2 $1, second, minus, $1;
}""")

SAME = tl.constexpr("mov.b32 $0, $1;")


@jit
def byte_places(blocks_apart, BLOCKS: tl.constexpr):
    """Offsets of a tile's bytes, [2 x BLOCKS x 128, 16] (step, block, thread; byte), for blocks so many bytes apart."""
    line = tl.arange(0, 2 * BLOCKS * 128)
    step, block, thread = line // (BLOCKS * 128), line // 128 % BLOCKS, line % 128
    return (block * blocks_apart + step * 2048 + thread * 16)[:, None] + tl.arange(0, 16)[None, :]


@jit
def as_tile(values, BLOCKS: tl.constexpr):
    """[2 x BLOCKS x 128, 16] in the threads' order to [64 BLOCKS, 64] in the matrix's: names only, no data moves."""
    bits = tl.reshape(values, (2, BLOCKS, 4, 8, 4, 2, 2, 2, 2))  # s, block, w, g, c, b, a, r, p
    return tl.reshape(tl.permute(bits, (1, 2, 7, 3, 0, 5, 6, 4, 8)), (64 * BLOCKS, 64))


@jit
def as_halves(values, BLOCKS: tl.constexpr):
    """The same as two tiles [64 BLOCKS, 32], one of each step."""
    bits = tl.reshape(values, (2, BLOCKS, 4, 8, 4, 2, 2, 2, 2))
    return tl.split(tl.reshape(tl.permute(bits, (1, 2, 7, 3, 5, 6, 4, 8, 0)), (64 * BLOCKS, 32, 2)))


@jit
def as_quarters(values, BLOCKS: tl.constexpr):
    """The same as four tiles [64 BLOCKS, 16] of 16 neighbouring columns each."""
    bits = tl.reshape(values, (2, BLOCKS, 4, 8, 4, 2, 2, 2, 2))
    parts = tl.reshape(tl.permute(bits, (1, 2, 7, 3, 6, 4, 8, 0, 5)), (64 * BLOCKS, 16, 2, 2))
    low, high = tl.split(parts)  # by b: columns 0 and 32, 16 and 48
    first, third = tl.split(low)
    second, fourth = tl.split(high)
    return first, second, third, fourth


@jit
def held(weights):
    """The same bfloat16 values. The compiler looks no further back than this for the order of a left operand.

    It would see bytes, or the `join` of spread(), and give mma (sm_80) an order of columns that suits those: every
    value would then change registers or threads, which can double a loop.
    """
    return tl.inline_asm_elementwise(SAME, "=r,r", [weights], dtype=tl.bfloat16, is_pure=False, pack=2)


@jit
def spread(offsets, STEPS: tl.constexpr, BLOCKS: tl.constexpr):
    """Offsets of rows g and g + 8 of each thread, [BLOCKS x 128, STEPS, 2], to the form of the packed bytes.

    The join puts neighbouring columns side by side in registers, as the bytes have them. Without it the compiler
    would give the bytes the order of the offsets, rows first, and repack every product of theirs.
    """
    pairs = tl.join(offsets, offsets)
    wide = tl.reshape(tl.permute(pairs, (1, 0, 2, 3)), (STEPS, BLOCKS * 128, 1, 2, 2))
    return tl.reshape(tl.broadcast_to(wide, (2, BLOCKS * 128, 4, 2, 2)), (2 * BLOCKS * 128, 16))


@jit
def unpack_nibbles(packed):
    """Bytes to bfloat16 (low nibble - 8) and (high nibble - 8), exactly."""
    return tl.inline_asm_elementwise(
        SYMMETRIC, "=&r,=&r,=&r,=&r,r", [packed], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4
    )


@jit
def unpack_nibbles_zeros(packed, low, high):
    """Bytes to (low nibble - zero) and (high nibble - zero); offsets are -(128 + zero) in bfloat16."""
    return tl.inline_asm_elementwise(
        ZERO_POINTS,
        "=&r,=&r,=&r,=&r,r,r,r,r,r",
        [packed, low, high],
        dtype=(tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=4,
    )


@jit
def unpack_bytes(packed):
    """Signed bytes to bfloat16, exactly."""
    return tl.inline_asm_elementwise(SIGNED_BYTES, "=&r,=&r,r", [packed], dtype=tl.bfloat16, is_pure=True, pack=4)


if INTERPRETED:
    import numpy as np

    from ..gpu.interpreter import emulates

    Pattern = np.ndarray[Any, Any]  # Any: shape and type as the kernel has them

    def _pattern(values: Pattern) -> Pattern:
        """bfloat16 bits of numbers that have at most 8 significant bits."""
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)

    def _number(pattern: Pattern) -> Pattern:
        return (pattern.astype(np.uint32) << 16).view(np.float32)

    @emulates(SAME.value)
    def _same(pattern: Pattern) -> Pattern:
        return pattern

    @emulates(SYMMETRIC.value)
    def _symmetric(packed: Pattern) -> tuple[Pattern, Pattern]:
        return _pattern((packed & 15).astype(np.int32) - 8), _pattern((packed >> 4).astype(np.int32) - 8)

    @emulates(ZERO_POINTS.value)
    def _zero_points(packed: Pattern, low: Pattern, high: Pattern) -> tuple[Pattern, Pattern]:
        return _pattern(128 + (packed & 15) + _number(low)), _pattern(128 + (packed >> 4) + _number(high))

    @emulates(SIGNED_BYTES.value)
    def _signed_bytes(packed: Pattern) -> Pattern:
        return _pattern(packed.astype(np.int8))
