"""What works row by row on the device: norms, activations, quantising, gather, caps. Right in every form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from triolet.kernels.activation import gpu as activation_gpu
from triolet.kernels.activation.gpu import Clamp, activate
from triolet.kernels.activation.reference import activation_reference
from triolet.kernels.embedding.gpu import gather_rows
from triolet.kernels.layer_norm.reference import layer_norm_reference
from triolet.kernels.logit_cap.gpu import cap_logits
from triolet.kernels.logit_cap.reference import logit_cap_reference
from triolet.kernels.quantise.gpu import quantise_rows
from triolet.kernels.rms_norm import gpu as rms_norm_gpu
from triolet.kernels.rms_norm.gpu import norm_rows
from triolet.kernels.rms_norm.reference import rms_norm_reference
from triolet.kernels.silu_mul.reference import silu_mul_reference
from triolet.loadtest.device.gpu_case import Figures, GpuCase, GpuMachine, check, planted
from triolet.loadtest.device.gpu_check import drawn, equal, faulty, within

Tensor = torch.Tensor
EPS = 1e-2  # large, so that leaving it out shows
LIMITS = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
SLACK = 1e-5  # of the largest value: float32 roundings, which move a tie
FORMATS = {  # type, and whether every 128 values have a scale
    "int8": (torch.int8, False), "fp8": (torch.float8_e4m3fn, False), "int8 groups": (torch.int8, True),
    "fp8 groups": (torch.float8_e4m3fn, True),
}  # fmt: skip
SERVED = ("int8", "fp8", "fp8 groups")  # what products read


@dataclass(frozen=True, slots=True)
class Middle:
    """Of an MLP."""

    name: str = "silu"
    gated: bool = True
    biased: bool = False
    clamp: Clamp | None = None


SILU = Middle()
MIDDLES = {
    "gelu_tanh": Middle("gelu_tanh"), "gelu with a bias": Middle("gelu", biased=True),
    "relu2": Middle("relu2", gated=False), "silu_mul clamped": Middle(biased=True, clamp=Clamp(2.5, 1.7, 1.0)),
}  # fmt: skip


NO_EPS = rms_norm_gpu, "norm_rows_kernel", "/ SIZE + eps", "/ SIZE"
NO_OFFSET = (  # the kernel is made anew: a compiled one keeps the functions it was compiled with
    (activation_gpu, "between", "+ OFFSET", ""),
    (activation_gpu, "activation_kernel", "value = between(", "value = between("),
)


def as_numpy(tensor: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return tensor.double().cpu().numpy()


def as_tensor(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Tensor:
    return torch.from_numpy(values).to(torch.get_default_device())


def check_rounded(out: Tensor, exact: Tensor, what: str) -> Figures:
    """A rounding to bfloat16, and float32's own of a row's largest value."""
    allowed = exact.abs() * 2**-8 + 1e-6 * exact.abs().amax(-1, keepdim=True)
    return {"error": within(out, exact, allowed, what), "allowed": float(allowed.max())}


def check_stored(out: Tensor, scales: Tensor, exact: Tensor) -> Figures:
    """int8: half a step. e4m3: 2^-4 of the value, or half of the smallest step. Scales are largest / limit."""
    rows = len(exact)
    groups = scales.numel() // rows
    exact, limit = exact.reshape(rows, groups, -1), LIMITS[out.dtype]
    scale = scales.reshape(rows, groups, 1).double()
    wanted = exact.abs().amax(-1, keepdim=True) / limit
    within(scale, wanted, SLACK * wanted + 1e-20, "a scale")  # of zeros it is as good as 0
    steps = exact / scale
    allowed = torch.full_like(steps, 0.5) if out.dtype == torch.int8 else (steps.abs() * 2**-4).clamp(min=2**-10)
    return {"error": within(out.reshape(steps.shape), steps, allowed + SLACK * limit, "a stored value")}


def output(rows: int, size: int, kind: str, machine: GpuMachine) -> tuple[Tensor, Tensor]:
    dtype, grouped = FORMATS[kind]
    machine.need(kind)
    return torch.empty(rows, size, dtype=dtype), torch.full((rows, size // 128) if grouped else (rows,), -1.0)


def check_norm(rows: int, size: int, kind: str, machine: GpuMachine) -> Figures:
    """RMSNorm in a format, or LayerNorm with every bias; and the sum alone, to the bit. Rows of x lie apart."""
    x, residual = (0.2 * drawn(1, 2, rows, size)).bfloat16()
    x = torch.cat([x, residual], 1)[:, :size]
    weight, bias, x_bias = (1 + 0.1 * drawn(2, 3, size)).bfloat16()
    added, out, scales = residual.clone(), torch.empty(rows, size, dtype=torch.bfloat16), None
    if kind == "layer_norm":
        norm_rows(x, None, EPS, out, residual=added, capability=machine.capability)
        equal(out, x + residual, "the sum alone")
        equal(added, out, "the residual")
        added = residual.clone()
        norm_rows(
            x, weight, EPS, out, residual=added, bias=bias, x_bias=x_bias, centred=True, capability=machine.capability
        )
        equal(added, (x.float() + x_bias.float() + residual.float()).bfloat16(), "the residual")
        wanted = layer_norm_reference(as_numpy(added), as_numpy(weight), as_numpy(bias), EPS)
        return check_rounded(out, as_tensor(wanted), "the norm")
    if kind != "bf16":
        out, scales = output(rows, size, kind, machine)
    norm_rows(x, weight, EPS, out, residual=added, scales=scales, capability=machine.capability)
    equal(added, x + residual, "the residual")
    exact = as_tensor(rms_norm_reference(as_numpy(added), as_numpy(weight), EPS))
    return check_rounded(out, exact, "the norm") if scales is None else check_stored(out, scales, exact)


def check_norm_in_place(rows: int, size: int, machine: GpuMachine) -> Figures:
    """Part of wider rows, as q and k are; what lies beside it stays."""
    wide, (weight, x_bias) = drawn(1, rows, 2 * size).bfloat16(), (1 + 0.1 * drawn(2, 2, size)).bfloat16()
    x, beside = wide[:, :size], wide[:, size:].clone()
    exact = as_tensor(rms_norm_reference(as_numpy(x) + as_numpy(x_bias), as_numpy(weight), EPS))
    norm_rows(x, weight, EPS, x, x_bias=x_bias, capability=machine.capability)
    equal(wide[:, size:], beside, "what lies beside")
    return check_rounded(x, exact, "the norm")


def check_activation(rows: int, size: int, kind: str, machine: GpuMachine, middle: Middle = SILU) -> Figures:
    x = (3 * drawn(1, rows, (1 + middle.gated) * size)).bfloat16()
    bias = drawn(2, x.shape[1]).bfloat16() if middle.biased else None
    summed = as_numpy(x) + (0.0 if bias is None else as_numpy(bias))
    if middle.clamp is not None:
        limits = middle.clamp.limit, middle.clamp.slope, middle.clamp.offset
        exact = as_tensor(silu_mul_reference(summed[:, :size], summed[:, size:], *limits))
    else:
        exact = as_tensor(
            activation_reference(middle.name, summed[:, :size], summed[:, size:] if middle.gated else 1.0)
        )
    out, scales = torch.empty(rows, size, dtype=torch.bfloat16), None
    if kind != "bf16":
        out, scales = output(rows, size, kind, machine)
    activate(
        x, out, activation=middle.name, gated=middle.gated, bias=bias, scales=scales, clamp=middle.clamp,
        capability=machine.capability,
    )  # fmt: skip
    return check_rounded(out, exact, "the product") if scales is None else check_stored(out, scales, exact)


def check_quantise(rows: int, size: int, kind: str, machine: GpuMachine) -> Figures:
    """The first row's largest lies at its end, the second is zeros."""
    x = drawn(1, rows, size).bfloat16()
    x[0, -size // 6 :] *= 9
    x[1] = 0
    out, scales = output(rows, size, kind, machine)
    quantise_rows(x, out, scales, capability=machine.capability)
    return check_stored(out, scales, x.double())


def check_caps(rows: int, size: int, _machine: GpuMachine) -> Figures:
    """A factor with and without a cap: float32's roundings, and a little of the cap where tanh ends."""
    worst = 0.0
    for factor, cap in ((0.3, None), (0.5, 6.0), (1.0, 30.0)):
        logits = 20 * drawn(1, rows, size)
        logits[0, :2] = torch.tensor([1e30, -1e30])
        exact = as_tensor(logit_cap_reference(as_numpy(logits), factor, cap))
        cap_logits(logits, factor, cap)
        worst = max(worst, within(logits, exact, 1e-6 * (exact.abs() + (cap or 0.0)), "a logit"))
    return {"error": worst}


def check_gather(rows: int, count: int, size: int, machine: GpuMachine) -> Figures:
    """As they are, and by a factor."""
    table = drawn(1, count, size).bfloat16()
    ids = (torch.arange(rows) * 7919 % (count + 2) - 1).int()  # some lie outside
    outside = (ids < 0) | (ids >= count)
    wanted = table[ids.long().clamp(0, count - 1)].masked_fill(outside[:, None], 0)
    for factor in (1.0, 7.3):
        out = torch.full((rows, size), torch.nan, dtype=torch.bfloat16)
        gather_rows(ids, table, out, capability=machine.capability, factor=factor)
        equal(out, (wanted.float() * factor).bfloat16(), "a row")
    return {"rows": rows}


def checks(dry: bool) -> list[GpuCase]:
    found: dict[str, partial[Figures]] = {}
    sizes = [(3, 384)] if dry else [(3, 100), (3, 384), (64, 4096), (1000, 14336), (5, 20480)]
    for rows, size in sizes:
        for kind in ("bf16", *SERVED):
            if kind == "bf16" or size % 128 == 0:
                found[f"rms_norm {kind} {rows}x{size}"] = partial(check_norm, rows, size, kind)
                found[f"silu_mul {kind} {rows}x{size}"] = partial(check_activation, rows, size, kind)
            if kind != "bf16" and size % 128 == 0:
                found[f"quantise {kind} {rows}x{size}"] = partial(check_quantise, rows, size, kind)
        found[f"layer_norm {rows}x{size}"] = partial(check_norm, rows, size, "layer_norm")
        found[f"norm in place {rows}x{size}"] = partial(check_norm_in_place, rows, size)
        for name, middle in MIDDLES.items():
            found[f"{name} {rows}x{size}"] = partial(check_activation, rows, size, "bf16", middle=middle)
    found["gather"] = partial(check_gather, 6, 7, 150) if dry else partial(check_gather, 999, 128256, 4096)
    found["caps of logits"] = partial(check_caps, 3, 1500 if dry else 128_256)
    clamped = partial(check_activation, 3, 100, "bf16", middle=MIDDLES["silu_mul clamped"])
    return [
        *(check(name, run) for name, run in found.items()),
        planted("rms_norm without eps", faulty(partial(check_norm, 3, 100, "bf16"), NO_EPS)),
        planted("a clamped activation without its offset", faulty(clamped, *NO_OFFSET)),
    ]
