"""Makes Triton's interpreter (3.9) spend less time around its computations, which stay the same.

For each operation the interpreter wraps every size of every value into objects, checks it, unwraps it again, and passes
through wrappers that the compiler needs. At each launch and each call it looks through all of the language's names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import triton.language as tl
from triton.language import core as triton_core
from triton.runtime import interpreter as triton_interpreter

core: Any = triton_core  # Any: these are untyped
interpreter: Any = triton_interpreter
Function = Callable[..., Any]


class SharedShape(NamedTuple):
    """What types and values of one shape share. None of it is ever changed."""

    of_type: Any  # a tuple of numbers, in Triton's own class
    of_value: Any  # of constants
    product: int
    constant: Any


def prepare_once() -> None:
    """Once per process, before any kernel runs."""
    _unwrap_what_is_wrapped()  # first: the language imports this function by name
    _share_shapes()
    _patch_for_good()
    numpy_type = interpreter._get_np_dtype
    of_scalar = cache(numpy_type)

    def known_numpy_type(kind: Any) -> Any:
        return numpy_type(kind) if kind.scalar.is_ptr() else of_scalar(kind.scalar)

    interpreter._get_np_dtype = known_numpy_type
    builder = interpreter.interpreter_builder
    assert not builder.options.debug, "the interpreter asserts"
    builder.options = replace(builder.options, sanitize_overflow=False)  # it drops the answers: it does not assert


def _patch_for_good() -> None:
    """The language's functions become interpreted ones, which call what the compiler would, with nothing between."""
    undo: Any = interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    semantic = interpreter.interpreter_semantic

    def direct(function: Function) -> Function:
        def call(*arguments: Any, _semantic: Any = None, **named: Any) -> Any:
            return function(*arguments, **named, _semantic=semantic)

        return call

    for owner, name, _ in undo._changes:
        defaults: Any = getattr(getattr(owner, name), "__kwdefaults__", None)
        around: Any = defaults.get("member") if defaults else None
        if around is not None:
            setattr(owner, name, direct(getattr(around, "__wrapped__", around)))

    def already_patched(_function: object) -> Any:
        return type(undo)()

    interpreter._patch_lang = already_patched


def _unwrap_what_is_wrapped() -> None:
    unwrap, constant = core._unwrap_if_constexpr, core.constexpr
    plain = {int, float, bool, str, type(None), core.tensor, core.dtype, core.block_type, core.pointer_type}

    def unwrap_if_constant(value: Any) -> Any:
        kind = value.__class__
        if kind is constant:
            return value.value
        return value if kind in plain else unwrap(value)

    language: Any = tl
    for place in (core, language):
        place._unwrap_if_constexpr = unwrap_if_constant


def _share_shapes() -> None:
    """Types and values of one shape share its objects, and a shape is checked once."""
    number = core.constexpr

    @cache
    def sizes(shape: tuple[int, ...]) -> SharedShape:
        if not shape:
            raise TypeError("a block has sizes")
        count = core.validate_block_shape(shape)
        return SharedShape(core.tuple(shape), core.tuple([number(size) for size in shape]), count, number(count))

    def make_type(self: Any, element_ty: Any, shape: Any) -> None:
        self.element_ty = element_ty
        self.sizes = sizes(tuple([size.value if type(size) is number else size for size in shape]))
        self.shape, self.numel = self.sizes.of_type, self.sizes.product

    def name(self: Any) -> str:
        return f"<{self.shape}, {self.element_ty}>"

    def same(self: Any, _builder: object) -> Any:
        return self

    one = SharedShape(core.tuple([]), core.tuple([]), 1, number(1))

    def make_value(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        shared = type.sizes if type.is_block() else one
        self.shape, self.numel = shared.of_value, shared.constant

    semantic = interpreter.interpreter_semantic.__class__
    broadcast = semantic.broadcast_impl_value

    def broadcast_if_other(self: Any, left: Any, right: Any) -> Any:
        if left.type.is_block() and right.type.is_block() and left.type.sizes is right.type.sizes:
            return left, right
        return broadcast(self, left, right)

    semantic.broadcast_impl_value = broadcast_if_other
    core.block_type.__init__, core.block_type.name, core.block_type.to_ir = make_type, property(name), same
    core.tensor.__init__ = make_value
