"""The vocabulary of the hand-written kernels: one vector is 16 lanes of 32 bits, addresses are plain int64.

With AVX-512 such a vector is one zmm register; on narrower machines LLVM splits it into two or four, and the kernels
only choose smaller tiles. All functions take the builder first and emit one or two instructions.
"""

from __future__ import annotations

from llvmlite import ir

LANES = 16
VECTOR_BYTES = 64

i8, i16, i32, i64 = (ir.IntType(width) for width in (8, 16, 32, 64))
f32, void = ir.FloatType(), ir.VoidType()


def vector(element: ir.Type, lanes: int) -> ir.Type:
    return ir.VectorType(element, lanes)


VI, VF = vector(i32, LANES), vector(f32, LANES)


class _BFloat16(ir.types.Type):  # type: ignore[misc]  # llvmlite is untyped, and has no bfloat: its name is enough
    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat16)

    def __hash__(self) -> int:
        return hash("bfloat")


bfloat16 = _BFloat16()


def int64(value: int) -> ir.Value:
    return ir.Constant(i64, value)


def float32(value: float) -> ir.Value:
    return ir.Constant(f32, value)


def constant(element: ir.Type, value: float, lanes: int = LANES) -> ir.Value:
    """A vector with the same constant in every lane."""
    return ir.Constant(vector(element, lanes), [value] * lanes)


def lane_numbers(start: int) -> ir.Value:
    return ir.Constant(VI, [start + lane for lane in range(LANES)])


def splat(b: ir.IRBuilder, scalar: ir.Value, lanes: int = LANES) -> ir.Value:
    """The scalar in every lane. The splat of a load becomes the broadcast memory operand of its AVX-512 consumer."""
    undefined = ir.Constant(vector(scalar.type, lanes), ir.Undefined)
    first = b.insert_element(undefined, scalar, ir.Constant(i32, 0))
    return b.shuffle_vector(first, undefined, ir.Constant(vector(i32, lanes), [0] * lanes))


def at(b: ir.IRBuilder, base: ir.Value, offset: int) -> ir.Value:
    """base + offset bytes."""
    return base if offset == 0 else b.add(base, int64(offset))


def scaled(b: ir.IRBuilder, base: ir.Value, index: ir.Value, stride: int) -> ir.Value:
    """base + index * stride bytes."""
    return b.add(base, b.mul(index, int64(stride)))


def load(b: ir.IRBuilder, address: ir.Value, kind: ir.Type, align: int = 4) -> ir.Value:
    value = b.load(b.inttoptr(address, ir.PointerType(kind)))
    value.align = align
    return value


def vector_at(b: ir.IRBuilder, start: ir.Value, index: ir.Value) -> ir.Value:
    """16 float32 values: the vector of this index in a row that begins at `start`."""
    return load(b, scaled(b, start, index, VECTOR_BYTES), VF)


def store(b: ir.IRBuilder, value: ir.Value, address: ir.Value, align: int = 4) -> None:
    b.store(value, b.inttoptr(address, ir.PointerType(value.type))).align = align


def declare(module: ir.Module, name: str, result: ir.Type, arguments: list[ir.Type]) -> ir.Function:
    """An LLVM intrinsic or a C function, declared once per module."""
    if name in module.globals:
        return module.globals[name]
    return ir.Function(module, ir.FunctionType(result, arguments), name)


def prefetch(b: ir.IRBuilder, address: ir.Value) -> None:
    """Prefetch a cache line into L2. Any address is allowed: the CPU ignores invalid ones.

    Not into L1: the next panel or KV block is as large as L1 and would evict the present one (measured with an L1 of
    32 KB: a step of 16 sequences after 512 tokens took 20 % longer).
    """
    pointer = ir.PointerType(i8)
    function = declare(b.module, "llvm.prefetch.p0", void, [pointer, i32, i32, i32])
    read, keep, data = ir.Constant(i32, 0), ir.Constant(i32, 2), ir.Constant(i32, 1)
    b.call(function, [b.inttoptr(address, pointer), read, keep, data])
