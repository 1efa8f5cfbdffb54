"""Other libraries' kernels, where their wheels are installed: gemlite for 4-bit weights, liger-kernel for rows.

Whatever goes wrong in them is no fault of ours: the case is skipped and says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import torch

from triolet.loadtest.device.gpu_case import Skip
from triolet.loadtest.device.gpu_check import drawn
from triolet.loadtest.device.gpu_timing import reason

Tensor = torch.Tensor
Work = Callable[[], object]
LIKE = 0.05  # of the largest value: a rival that computes something else is not timed


@contextmanager
def rival(name: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise Skip(f"{error.name or name} is not installed") from error
    except Exception as error:
        if isinstance(error, Skip) or "CUDA error" in str(error):
            raise
        raise Skip(f"{name} does not run here: {reason(error)}") from error


def gemlite_linear(integers: Tensor, scales: Tensor, zeros: Tensor) -> Callable[[Tensor], Tensor]:
    """x W^T for W = (integers - zeros) * scales, by gemlite's kernels.

    It carries launches that were tuned on an H100, which it takes by the device's name: an H200 gets them here, as the
    same processor, where else gemlite would tune for minutes.
    """
    with rival("gemlite"):
        gemlite = import_module("gemlite")
        tuned = Path(str(gemlite.__file__)).parent / "configs" / "h100.json"
        if torch.cuda.get_device_capability() == (9, 0) and tuned.exists():
            gemlite.load_config(str(tuned))
        kind = import_module("gemlite.helper").A16W4_HQQ_INT
        layer: Callable[[Tensor], Tensor] = kind(device="cuda:0", dtype=torch.bfloat16).from_weights(
            integers, scales, zeros
        )
        n, k = integers.shape
        grouped = integers.view(n, scales.shape[1], -1).float()
        weight = ((grouped - zeros[..., None].float()) * scales[..., None].float()).view(n, k)
        x = drawn(9, 2, k).bfloat16()
        exact = x.float() @ weight.T
        if float((layer(x).float() - exact).abs().max()) > LIKE * float(exact.abs().max()):
            raise Skip("gemlite computes something else from these weights")
        return layer


def liger_rms_norm(rows: int, size: int) -> Work:
    """Norm of x + residual, both given back."""
    with rival("liger-kernel"):
        forward = import_module("liger_kernel.ops.fused_add_rms_norm").fused_add_rms_norm_forward
        x, residual = drawn(1, 2, rows, size).bfloat16()
        weight = drawn(2, size).bfloat16()
        return lambda: forward(x, residual, weight, 1e-5, 0.0, "llama")


def liger_silu_mul(rows: int, size: int) -> Work:
    with rival("liger-kernel"):
        forward = import_module("liger_kernel.ops.swiglu").swiglu_fused_gate_up_forward
        x = drawn(1, rows, 2 * size).bfloat16()
        return lambda: forward(x)
