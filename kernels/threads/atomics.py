"""Atomic integers at raw addresses, the pause hint, sched_yield and futex, callable from compiled code."""

from __future__ import annotations

from llvmlite import ir

from ..simd.functions import inline
from ..simd.lanes import declare, i32, i64, int64, load, void
from ..simd.target import on_arm

FUTEX_NUMBER = 98 if on_arm() else 202  # of the system call: AArch64's, x86-64's
FUTEX_WAIT_PRIVATE, FUTEX_WAKE_PRIVATE = 128, 129


def _pointer(b: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return b.inttoptr(address, ir.PointerType(i64))


def _add(b: ir.IRBuilder, address: ir.Value, amount: ir.Value) -> ir.Value:
    return b.atomic_rmw("add", _pointer(b, address), amount, "seq_cst")


def _get(b: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return b.load_atomic(_pointer(b, address), "seq_cst", 8)


def _set(b: ir.IRBuilder, address: ir.Value, value: ir.Value) -> None:
    b.store_atomic(value, _pointer(b, address), "seq_cst", 8)


def _swap(b: ir.IRBuilder, address: ir.Value, expected: ir.Value, value: ir.Value) -> ir.Value:
    found = b.cmpxchg(_pointer(b, address), expected, value, "seq_cst", "seq_cst")
    return b.zext(b.extract_value(found, 1), i64)


def _poke(b: ir.IRBuilder, address: ir.Value, value: ir.Value) -> None:
    b.store(value, _pointer(b, address)).align = 8


def _peek(b: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return load(b, address, i64, 8)


def _pause(b: ir.IRBuilder) -> None:
    if on_arm():  # `yield` does nothing on most of these CPUs; ISB, of the whole system, takes some tens of cycles
        b.call(declare(b.module, "llvm.aarch64.isb", void, [i32]), [ir.Constant(i32, 15)])
        return
    b.call(declare(b.module, "llvm.x86.sse2.pause", void, []), [])


def _sched_yield(b: ir.IRBuilder) -> None:
    b.call(declare(b.module, "sched_yield", i32, []), [])


def _futex(b: ir.IRBuilder, address: ir.Value, operation: ir.Value, value: ir.Value) -> ir.Value:
    function = declare(b.module, "syscall", i64, [i64] * 7)
    return b.call(function, [int64(FUTEX_NUMBER), address, operation, value, int64(0), int64(0), int64(0)])


atomic_add = inline(2, _add, result=True)  # (address, amount) -> the previous value
atomic_get = inline(1, _get, result=True)
atomic_set = inline(2, _set, result=False)
atomic_swap = inline(3, _swap, result=True)  # (address, expected, value) -> 1 if it held what was expected, else 0
poke = inline(2, _poke, result=False)  # (address, int64 value): an ordinary store
peek = inline(1, _peek, result=True)  # an int64 by an ordinary load
pause = inline(0, _pause, result=False)
sched_yield = inline(0, _sched_yield, result=False)
futex = inline(3, _futex, result=True)  # (address, operation, value): compares the value with the low 32 bits
