"""Evaluates the PTX of our inline assembly, to check its emulation in numpy: the interpreter runs only that.

By the PTX ISA (docs.nvidia.com/cuda/parallel-thread-execution): straight code over 32-bit and 16-bit registers, each of
them an array with one element for every thread.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch

Words = np.ndarray[Any, Any]  # of uint32


def halves(words: Words) -> tuple[Words, Words]:
    return words & 0xFFFF, words >> 16


def word(low: Words, high: Words) -> Words:
    joined: Words = low | high << 16
    return joined


def evaluate(assembly: str, outputs: int, *inputs: Words) -> list[Words]:
    """The outputs $0, $1, … of a snippet whose next operands are the inputs."""
    registers: dict[str, Words] = {f"${outputs + index}": value for index, value in enumerate(inputs)}

    def read(operand: str) -> Words:
        if operand in registers:
            return registers[operand]
        return np.broadcast_to(np.uint32(int(operand, 0)), inputs[0].shape)

    for statement in assembly.strip().strip("{}").split(";"):
        if not statement.strip() or ".reg" in statement:
            continue
        name, _, rest = statement.strip().partition(" ")
        pair = re.match(r"\{(\S+), (\S+)\}, (\S+)$", rest.strip())
        if pair:
            assert name == "mov.b32", name
            registers[pair[1]], registers[pair[2]] = halves(read(pair[3]))
            continue
        target, *sources = (operand.strip() for operand in rest.split(","))
        registers[target] = _compute(name, [read(source) for source in sources])
    return [registers[f"${index}"] for index in range(outputs)]


def _compute(name: str, operands: list[Words]) -> Words:
    match name, operands:
        case "mov.b32", [value]:
            return value
        case "and.b32", [left, right]:
            return left & right
        case "or.b32", [left, right]:
            return left | right
        case "xor.b32", [left, right]:
            return left ^ right
        case "shr.b32", [value, count]:
            return value >> count
        case "shl.b32", [value, count]:
            return value << count
        case "lop3.b32", [a, b, c, table]:
            bits = np.zeros_like(a)
            for row in range(8):  # of the truth table: bit 2 is a's, bit 1 b's, bit 0 c's
                if int(table.flat[0]) >> row & 1:
                    bits |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
            return bits
        case "prmt.b32", [low, high, selector]:
            return _permuted(low, high, int(selector.flat[0]))
        case "cvt.rn.f16x2.e4m3x2", [value]:
            codes = (value & 0xFF, value >> 8 & 0xFF)
            return word(*(_of_e4m3(code) for code in codes))
        case _:
            operation, kind = name.split(".", 1)
            assert kind in ("rn.bf16x2", "rn.f16x2"), f"{name}: teach the evaluator this instruction"
            return word(*(_in_halves(operation, kind, parts) for parts in zip(*map(halves, operands), strict=True)))


def _permuted(low: Words, high: Words, selector: int) -> Words:
    both = [(source >> 8 * byte) & 0xFF for source in (low, high) for byte in range(4)]
    picked = [both[selector >> 4 * place & 7] for place in range(4)]
    assert not selector & 0x8888, "a sign is not copied here"
    return picked[0] | picked[1] << 8 | picked[2] << 16 | picked[3] << 24


def _of_e4m3(codes: Words) -> Words:
    return torch.from_numpy(codes.astype(np.uint8)).view(torch.float8_e4m3fn).half().view(torch.int16).numpy().view(
        np.uint16
    ).astype(np.uint32)  # fmt: skip


def _in_halves(operation: str, kind: str, operands: tuple[Words, ...]) -> Words:
    """Arithmetic on 16-bit floats: in float64, where it is exact, and rounded once."""
    dtype = torch.bfloat16 if "bf16" in kind else torch.float16
    bits = (torch.from_numpy(operand.astype(np.uint16).view(np.int16)) for operand in operands)
    first, second, *third = (pattern.view(dtype).double() for pattern in bits)
    if operation == "fma":
        result = first * second + third[0]
    else:
        result = {"add": first + second, "sub": first - second, "mul": first * second}[operation]
    return result.to(dtype).view(torch.int16).numpy().view(np.uint16).astype(np.uint32)
