"""Makes Triton's interpreter (3.9) compute bfloat16 and float8 as a GPU does.

The interpreter keeps such values as bit patterns in uint16 and uint8 arrays and hands the patterns to numpy: sums,
maxima, products and comparisons of bfloat16 are silently wrong, and casts truncate. Upstream does not support bfloat16
there (triton-lang/triton #11584). Here every operation on such values uses float32. The operands are widened,
which is exact. The result is rounded to nearest even, for e4m3 and e5m2 with saturation (as cvt.rn.satfinite does).

Inline assembly is emulated by numpy functions that a kernel's file registers beside the assembly (`emulates`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter as triton_interpreter

interpreter: Any = triton_interpreter  # Any: it is untyped
Handle = interpreter.TensorHandle
Builder = interpreter.InterpreterBuilder
TORCH = {tl.bfloat16: torch.bfloat16, tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}
LARGEST = {tl.float8e4nv: 448.0, tl.float8e5: 57344.0}
SIGNED = {1: torch.int8, 2: torch.int16}
UNSIGNED = {1: np.uint8, 2: np.uint16}
BITWISE = frozenset({np.bitwise_and, np.bitwise_or, np.bitwise_xor})
Emulation = Callable[..., np.ndarray | Sequence[np.ndarray]]
emulations: dict[str, Emulation] = {}


def emulates(assembly: str) -> Callable[[Emulation], Emulation]:
    """Register what a snippet of inline assembly computes: a function of its input arrays."""

    def register(function: Emulation) -> Emulation:
        emulations[assembly] = function
        return function

    return register


def widened(handle: Any) -> Any:
    """The values of a handle as a numpy array; bit patterns become float32."""
    if not _is_pattern(handle):
        return handle.data
    array = np.ascontiguousarray(handle.data)
    bits = torch.from_numpy(array.view(f"i{array.itemsize}"))
    return bits.view(TORCH[handle.dtype.scalar]).float().numpy().reshape(array.shape)


def narrowed(values: np.ndarray, scalar: Any) -> np.ndarray:
    """The bit patterns of float32 values in a low precision."""
    wide = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
    largest = LARGEST.get(scalar)
    if largest is not None:
        wide = torch.where(wide.isnan(), wide, wide.clamp(-largest, largest))
    narrow = wide.to(TORCH[scalar])
    size = narrow.element_size()
    return narrow.view(SIGNED[size]).numpy().view(UNSIGNED[size]).reshape(np.shape(values))


def _is_pattern(handle: Any) -> bool:
    return handle.dtype.scalar in TORCH and handle.data.dtype.kind == "u"


def _result(values: np.ndarray, scalar: Any) -> Any:
    if values.dtype == np.bool_:
        return Handle(values, tl.int1)
    return Handle(narrowed(values, scalar), scalar)


def correct_low_precision() -> None:
    """Replace the interpreter's operations where they are wrong. Once per process, before any kernel runs."""
    binary, unary, ternary, cast = Builder.binary_op, Builder.unary_op, Builder.ternary_op, Builder.cast_impl

    def binary_op(self: Any, left: Any, right: Any, operation: Any) -> Any:
        if operation in BITWISE or not (_is_pattern(left) or _is_pattern(right)):
            return binary(self, left, right, operation)
        return _result(operation(widened(left), widened(right)), left.dtype.scalar)

    def unary_op(self: Any, value: Any, operation: Any) -> Any:
        if not _is_pattern(value):
            with np.errstate(over="ignore"):  # exp of much is infinity on a GPU, without a word
                return unary(self, value, operation)
        return _result(operation(widened(value)), value.dtype.scalar)

    def ternary_op(self: Any, first: Any, second: Any, third: Any, operation: Any) -> Any:
        if operation is np.where or not _is_pattern(third):
            return ternary(self, first, second, third, operation)
        return _result(operation(widened(first), widened(second), widened(third)), third.dtype.scalar)

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        scalar = target.scalar
        if source.dtype.scalar not in TORCH and scalar not in TORCH:
            return cast(self, source, target)
        values = widened(source)
        if scalar in TORCH:
            return Handle(narrowed(values, scalar), scalar)
        return Handle(values.astype(interpreter._get_np_dtype(scalar)), scalar)

    def create_fp_to_fp(self: Any, source: Any, target: Any, _rounding: Any) -> Any:
        return cast_impl(self, source, target)

    def create_dot(self: Any, left: Any, right: Any, sum_: Any, _precision: Any, _imprecise: Any) -> Any:
        # Row by row: OpenBLAS's kernels for AVX2 and AVX-512 round a row by its place in the tile, which no GPU does.
        rows, columns = widened(left)[..., :, None, :], widened(right)[..., None, :, :]
        product = np.matmul(rows, columns, dtype=sum_.data.dtype)[..., 0, :]
        return Handle((product + sum_.data).astype(sum_.data.dtype), sum_.dtype.scalar)

    def create_inline_asm(
        self: Any, assembly: str, _constraints: Any, values: Any, types: Any, _pure: Any, _pack: Any
    ) -> Any:
        outputs = emulations[assembly](*(value.data for value in values))
        several = outputs if isinstance(outputs, tuple) else (outputs,)
        return _Results(Handle(output, type_.scalar) for output, type_ in zip(several, types, strict=True))

    replaced = (binary_op, unary_op, ternary_op, cast_impl, create_fp_to_fp, create_dot, create_inline_asm)
    for function in replaced:
        setattr(Builder, function.__name__, function)
    for name in ("si_to_fp", "ui_to_fp", "fp_to_si", "fp_to_ui", "fp_ext", "fp_trunc"):
        setattr(Builder, f"create_{name}", cast_impl)
    for operations in (interpreter.ReduceOps, interpreter.ScanOps):
        _widen_inputs(operations)


class _Results(list[Any]):
    """The form in which the builder expects inline assembly with several outputs."""

    def get_result(self, index: int) -> Any:
        return self[index]


def _widen_inputs(operations: Any) -> None:
    """Reductions and scans read raw arrays: give them float32, and round their results."""
    apply = operations.apply_impl

    def apply_impl(self: Any, inputs: Any) -> Any:
        narrow = [_is_pattern(tensor.handle) for tensor in inputs]
        if not any(narrow):
            return apply(self, inputs)
        wide = [
            self.to_tensor(widened(tensor.handle), tl.float32) if is_narrow else tensor
            for tensor, is_narrow in zip(inputs, narrow, strict=True)
        ]
        returned: Any = apply(self, tuple(wide))
        results: list[Any] = [*returned] if isinstance(returned, list | tuple) else [returned]
        for index, (tensor, is_narrow) in enumerate(zip(inputs, narrow, strict=True)):
            if is_narrow and index < len(results) and results[index].dtype.scalar == tl.float32:
                results[index] = _rounded(results[index], tensor.dtype)
        return results

    operations.apply_impl = apply_impl


def _rounded(tensor: Any, dtype: Any) -> Any:
    handle = Handle(narrowed(tensor.handle.data, dtype.scalar), dtype.scalar)
    shape = tl.block_type(dtype.scalar, tensor.shape) if tensor.type.is_block() else dtype.scalar
    return tl.core.tensor(handle, shape)
