"""A cache in 8 bits as matrix operands: exact float16, two numbers of a token at a time.

A page is read as int16, each the codes of two neighbouring numbers (2 j, 2 j + 1) of a token. So a tensor core's
16-bit loads bring every code to the thread that multiplies it, and a byte permutation takes the pairs apart: a page
becomes two operands, of its even and of its odd numbers, and a product over the head is the sum of two.

float16 holds every int8 and every e4m3 number exactly. The probabilities that go with them are scaled by the values'
scales, which float16's range must hold too: they come times 256. So full precision ends where the largest value of
a token is below 1e-4, and infinity begins where it is above 32,000 (int8) or 114,000 (e4m3). Queries are float16 too:
above 65,504 they are infinite. What is infinite reaches the logits, and the request fails.
"""

from __future__ import annotations

from ..gpu.language import INTERPRETED, jit, tl

RAISED = tl.constexpr(256.0)  # what the values' scales are multiplied by while they are in float16

# Of the register {second token, first token}, two codes each, the even codes' and the odd codes' pair. 0x6400 + u is
# 1024 + u in float16 for a byte u; the sign's bit turned over, u is the code + 128.
INT8 = tl.constexpr("""{
    .reg .b32 codes, offset;
    mov.b32 offset, 0x64806480;
    xor.b32 codes, $2, 0x80808080;
    prmt.b32 $0, codes, 0x64646464, 0x4240;
    prmt.b32 $1, codes, 0x64646464, 0x4341;
    sub.rn.f16x2 $0, $0, offset;
    sub.rn.f16x2 $1, $1, offset;
}""")
E4M3 = tl.constexpr("""{
    .reg .b32 codes;
    .reg .b16 even, odd;
    prmt.b32 codes, $2, 0, 0x3120;
    mov.b32 {even, odd}, codes;
    cvt.rn.f16x2.e4m3x2 $0, even;
    cvt.rn.f16x2.e4m3x2 $1, odd;
}""")
# Below sm_89 there is no such conversion: the bits are moved to float16's places, and 2^8 moves the exponent's bias
# from 7 to 15, subnormals too. NaN becomes 480: nothing writes one.
E4M3_BITS = tl.constexpr("""{
    .reg .b32 even, odd, rest, bias;
    mov.b32 bias, 0x5c005c00;
    prmt.b32 even, $2, 0, 0x2404;
    and.b32 odd, $2, 0xff00ff00;
    and.b32 rest, even, 0x7f007f00;
    shr.b32 rest, rest, 1;
    lop3.b32 even, even, 0x80008000, rest, 0xea;
    and.b32 rest, odd, 0x7f007f00;
    shr.b32 rest, rest, 1;
    lop3.b32 odd, odd, 0x80008000, rest, 0xea;
    mul.rn.f16x2 $0, even, bias;
    mul.rn.f16x2 $1, odd, bias;
}""")


@jit
def pairs_of(rows):
    """[N, D] to its even and its odd columns, [N, D / 2] each."""
    return tl.split(tl.reshape(rows, (rows.shape[0], rows.shape[1] // 2, 2)))


@jit
def joined(even, odd):
    """What `pairs_of` took apart."""
    return tl.reshape(tl.join(even, odd), (even.shape[0], 2 * even.shape[1]))


@jit
def widened(codes, CODE: tl.constexpr, SHARED: tl.constexpr):
    """Codes int16 [N, D / 2] as float16, even and odd. CODE: "int8", "e4m3", or "e4m3 bits" below sm_89.

    SHARED: several warps multiply the same codes, as in prefill. Then each code is widened once, and reaches them
    through shared memory: the compiler may not move an impure operation to where its result is used.
    """
    ASSEMBLY: tl.constexpr = INT8 if CODE == "int8" else E4M3 if CODE == "e4m3" else E4M3_BITS
    return tl.inline_asm_elementwise(
        ASSEMBLY, "=&r,=&r,r", [codes], dtype=(tl.float16, tl.float16), is_pure=not SHARED, pack=2
    )


if INTERPRETED:  # the same in numpy
    from collections.abc import Callable

    import numpy as np
    import torch

    from ..gpu.interpreter import emulates

    Codes = np.ndarray[tuple[int, ...], np.dtype[np.generic]]

    def _emulate(assembly: str, number: Callable[[Codes], Codes]) -> None:
        def of_pairs(pairs: Codes) -> tuple[Codes, Codes]:
            codes = np.ascontiguousarray(pairs).view(np.uint8)
            return number(codes[..., ::2]), number(codes[..., 1::2])

        emulates(assembly)(of_pairs)

    def _of_e4m3(codes: Codes) -> Codes:
        return torch.from_numpy(np.ascontiguousarray(codes)).view(torch.float8_e4m3fn).half().numpy()

    def _of_bits(codes: Codes) -> Codes:
        bits = codes.astype(np.uint16)
        return ((bits & 0x80) << 8 | (bits & 0x7F) << 7).view(np.float16) * np.float16(256)

    _emulate(INT8.value, lambda codes: codes.view(np.int8).astype(np.float16))
    _emulate(E4M3.value, _of_e4m3)
    _emulate(E4M3_BITS.value, _of_bits)
