"""Products in every form of their launch tables, by the operation's own launcher, on tensors with shapes alone.

These vary: how weights are scaled, whether K is split or the result written directly, whether K is a multiple of the
tile, bias and residual. Each value of each is launched with every row of the tables or with the one for decoding; not
every combination, which would be several hundred forms.
"""

from __future__ import annotations

import torch

from triolet.kernels.gemm.gpu_launch import gemm
from triolet.kernels.gemm.gpu_table import PLAIN, STRICT, TABLES, Few, Launch, Library, LinearFormat
from triolet.kernels.gpu.table import E4M3_CAPABILITY, Table
from triolet.kernels.quantise.gpu import GROUP
from triolet.loadtest.device.gpu_gemm import weight_of

Tensor = torch.Tensor
BF16, INT8, FP8, FLOAT, INT = torch.bfloat16, torch.int8, torch.float8_e4m3fn, torch.float32, torch.int32
ACTIVATIONS = {"w8a8": INT8, "fp8": FP8, "fp32": FLOAT}
EVEN, UNEVEN = 4096, 4128  # inputs of a product: a multiple of every tile, and of 32 alone
ONE_TILE, SOME_TILES, MANY_TILES = 128, 100 * 128, 65_536  # outputs: K is split in many parts, in two, in one


def launch_products(capability: int) -> None:
    """As a device of this capability would be given them."""
    for weights in TABLES:
        if weights != "fp8" or capability >= E4M3_CAPABILITY:
            _multiply(weights, capability)


def shaped(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    """A tensor without memory."""
    return torch.empty(*shape, dtype=dtype, device="meta")


def scales_of(rows: int, kind: torch.dtype, groups: int) -> Tensor | None:
    """Of rows of this type, in so many groups each."""
    if kind in (BF16, FLOAT):
        return None
    return shaped(rows, dtype=FLOAT) if groups == 1 else shaped(rows, groups, dtype=FLOAT)


def _rows_of(table: Table[Launch], capability: int) -> dict[int, Launch]:
    """A number of rows for every launch of a device."""
    known = max(measured for measured in table if measured <= capability)
    below, found = 0, dict[int, Launch]()
    for row in table[known]:
        found[row.up_to or 2 * below + 1024] = row.launch
        below = row.up_to or below
    return found


def _multiply(kind: LinearFormat, capability: int) -> None:
    for strict, table in ((False, TABLES[kind]), (True, STRICT[kind])):
        for rows, launch in _rows_of(table, capability).items():
            few, decoding = isinstance(launch, Few), isinstance(launch, Few) and launch.block_m == 16

            def product(
                n: int, k: int, *, group: int = 0, zeros: bool = True, added: tuple[str, ...] = (),
                out: torch.dtype = BF16, rows: int = rows, strict: bool = strict,
            ) -> None:  # fmt: skip
                """A launch with operands of this kind; what is `added` is "bias", "residual" or both."""
                weight = weight_of(kind, shaped(n, k), group, zeros=zeros, blocks=group > 0)
                x = shaped(rows, k, dtype=ACTIVATIONS.get(kind, BF16))
                scales = scales_of(rows, x.dtype, k // GROUP if group else 1)
                more = {"bias": shaped(n), "residual": shaped(rows, n)}
                gemm(
                    x, weight, scales, capability=capability, out=shaped(rows, n, dtype=out), strict=strict,
                    **{name: more[name] for name in added},
                )  # fmt: skip

            if isinstance(launch, Library) and kind in PLAIN:
                continue  # the vendor's
            if kind == "w4a16":
                product(ONE_TILE, EVEN, group=128)
                product(MANY_TILES, UNEVEN, group=32)
                for n, group, zeros in ((MANY_TILES, 128, True), (ONE_TILE, 32, True), (ONE_TILE, 128, False),
                                        (ONE_TILE, 64, False)) if decoding else ():  # fmt: skip
                    product(n, EVEN, group=group, zeros=zeros)
                if decoding:
                    product(MANY_TILES, EVEN, group=128, zeros=False, added=("bias", "residual"))
                    product(ONE_TILE, EVEN, group=128, added=("residual",))  # of parts: added where they are
                    product(SOME_TILES, EVEN, group=128, out=FLOAT)
                if not few:
                    product(ONE_TILE, EVEN, group=128, zeros=False)
            elif kind == "bf16":
                product(ONE_TILE, EVEN, added=("residual",))
                product(ONE_TILE, EVEN, out=FLOAT)
                product(ONE_TILE, UNEVEN, out=FLOAT)
            elif kind == "fp32":
                product(ONE_TILE, EVEN, out=FLOAT)
                product(ONE_TILE, UNEVEN, out=FLOAT)
            elif kind == "w8a16" or few:
                product(ONE_TILE, EVEN)
                product(MANY_TILES, UNEVEN)
                if kind == "w8a8" and decoding:
                    product(ONE_TILE, EVEN, added=("bias", "residual"))
                if kind == "fp8" and capability >= 90:
                    product(ONE_TILE, EVEN, group=128)
            else:
                product(ONE_TILE, EVEN, added=("residual",))
                if kind == "fp8" and capability >= 90:
                    product(ONE_TILE, EVEN, group=128, added=("residual",))
