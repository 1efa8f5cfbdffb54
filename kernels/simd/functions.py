"""Builds LLVM functions by hand and calls them from numba-compiled code.

Each kernel is ONE private `noinline` function, so that registers are allocated for it alone. Accumulators are the SSA
values of a `loop`, so they stay in registers and need no memory slot.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .formats import FORMAT_OF_TAG, LATENT_OF_TAG, WeightFormat
from .lanes import f32, i64, int64, void

Values = list[ir.Value]
_KINDS = {"i": (types.int64, i64), "f": (types.float32, f32)}


def new_function(
    module: ir.Module, name: str, arguments: str, result: ir.Type = void
) -> tuple[ir.Function, ir.IRBuilder]:
    """A private function with one letter per argument (i: int64, f: float32), and a builder in its entry block."""
    function = ir.Function(module, ir.FunctionType(result, [_KINDS[letter][1] for letter in arguments]), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    return function, ir.IRBuilder(function.append_basic_block("entry"))


def loop(b: ir.IRBuilder, count: ir.Value, initial: Values, body: Callable[[ir.Value, Values], Values]) -> Values:
    """`for index in range(count)`, for any count: body(index, values) gives the next values. Returns the last ones."""
    before = b.block
    head, end = b.append_basic_block("loop"), b.append_basic_block("end")
    b.cbranch(b.icmp_signed("<", int64(0), count), head, end)
    b.position_at_end(head)
    index = b.phi(i64)
    index.add_incoming(int64(0), before)
    carried = []
    for value in initial:
        phi = b.phi(value.type)
        phi.add_incoming(value, before)
        carried.append(phi)
    results = body(index, carried)
    following, tail = b.add(index, int64(1)), b.block
    index.add_incoming(following, tail)
    for phi, value in zip(carried, results, strict=True):
        phi.add_incoming(value, tail)
    b.cbranch(b.icmp_signed("<", following, count), head, end)
    b.position_at_end(end)
    finals = []
    for value, result in zip(initial, results, strict=True):
        phi = b.phi(value.type)
        phi.add_incoming(value, before)
        phi.add_incoming(result, tail)
        finals.append(phi)
    return finals


def either(b: ir.IRBuilder, one: ir.Value, from_block: ir.Block, other: ir.Value, other_block: ir.Block) -> ir.Value:
    """The value from the block that control came from."""
    phi = b.phi(one.type)
    phi.add_incoming(one, from_block)
    phi.add_incoming(other, other_block)
    return phi


def switch_on_rows(
    module: ir.Module,
    name: str,
    arguments: str,
    largest: Iterable[int],
    emit: Callable[[ir.Module, range], ir.Function],
) -> ir.Function:
    """f(rows, *arguments): jumps to the function emitted for a range of row counts; does nothing for counts beyond.

    The ranges end with the numbers in `largest`. An emitted function may take the number of rows too.
    """
    variants, below = dict[range, ir.Function](), 0
    for most in largest:
        counts, below = range(below + 1, most + 1), most
        variants[counts] = emit(module, counts)
    function, b = new_function(module, name, "i" + arguments)
    end = function.append_basic_block("end")
    switch = b.switch(function.args[0], end)
    for counts, variant in variants.items():
        block = function.append_basic_block(f"rows{counts[-1]}")
        for count in counts:
            switch.add_case(int64(count), block)
        b.position_at_end(block)
        b.call(variant, function.args[-len(variant.args) :])
        b.branch(end)
    b.position_at_end(end)
    b.ret_void()
    return function


def kernel(arguments: str, emit: Callable[[ir.Module, str], ir.Function]) -> Callable[..., None]:
    """A nopython callable f(tag, *arguments) around the function that emit(module, weight format) builds.

    The tag is a scalar whose TYPE names the weight format (see formats.py). So numba's specialisation by argument types
    makes the compile-time variants.
    """

    def typer(context: Any, *given: Any) -> Any:  # Any: numba's typing objects, untyped
        signature = types.void(given[0], *[_KINDS[letter][0] for letter in arguments])
        tag = str(given[0])
        weight_format = FORMAT_OF_TAG.get(tag) or LATENT_OF_TAG[tag]

        def generate(target: Any, b: ir.IRBuilder, signature: Any, values: Values) -> Any:
            b.call(emit(b.module, weight_format), values[1:])
            return target.get_dummy_value()

        return signature, generate

    return _as_intrinsic(typer, 1 + len(arguments))


def written_kernel(name: str, arguments: str, write: Callable[..., None]) -> Callable[..., None]:
    """As `kernel`, for one function: write(builder, weight format, *arguments) fills it, once in a module."""

    def emit(module: ir.Module, weight_format: str) -> ir.Function:
        full_name = f"triolet_{name}_{weight_format}"
        if full_name in module.globals:
            return module.globals[full_name]
        function, b = new_function(module, full_name, arguments)
        write(b, weight_format, *function.args)
        b.ret_void()
        return function

    return kernel(arguments, emit)


def by_format(value: Callable[[WeightFormat], int]) -> Callable[..., int]:
    """A nopython callable f(tag): value(weight format) as a compile-time constant."""

    def typer(context: Any, *given: Any) -> Any:  # Any: numba's typing objects, untyped
        constant = int64(value(FORMAT_OF_TAG[str(given[0])]))
        return types.int64(given[0]), lambda target, b, signature, values: constant

    return _as_intrinsic(typer, 1)


def inline(arguments: int, emit: Callable[..., ir.Value | None], *, result: bool) -> Callable[..., int]:
    """A nopython callable of int64 arguments, with the instructions of emit(builder, *values) inlined."""

    def typer(context: Any, *given: Any) -> Any:  # Any: numba's typing objects, untyped
        signature = (types.int64 if result else types.void)(*[types.int64] * arguments)

        def generate(target: Any, b: ir.IRBuilder, signature: Any, values: Values) -> Any:
            value = emit(b, *values)
            return value if result else target.get_dummy_value()

        return signature, generate

    return _as_intrinsic(typer, arguments)


def _as_intrinsic(typer: Callable[..., Any], arguments: int) -> Callable[..., Any]:
    names = ["context", *(f"argument{index}" for index in range(arguments))]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    # numba reads the arity from the signature, so a variadic function needs an explicit one.
    typer.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]  # a documented protocol of inspect
    made: Callable[..., Any] = intrinsic(typer)
    return made
