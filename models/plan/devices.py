"""Machines that a model can be planned for: memory, bandwidth and arithmetic as their makers state them.

`memory` is what the driver reports as total (nvidia-smi). Rates of arithmetic are dense, per second, a multiplication
and an addition being two operations; the data sheets' figures "with sparsity" are twice these. A CPU's row says what
its memory holds and moves; how fast it computes depends on the model of CPU, so it is not predicted.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

GIB: Final = 1 << 30
MIB: Final = 1 << 20
_CPU_MEMORY: Final = (8, 16, 32, 64, 128, 256, 512)  # GiB


class DeviceFigures(Struct, frozen=True, kw_only=True):
    """One machine. `operations` by the format that the products run in; a format that is missing does not run."""

    name: str
    memory: int  # bytes
    bandwidth: float  # bytes per second
    operations: Mapping[str, float]
    capability: int | None = None  # of a GPU: 90 for sm_90
    multiprocessors: int = 0
    source: str

    @property
    def is_gpu(self) -> bool:
        return self.capability is not None


def _gpu(
    name: str,
    memory_mib: int,
    terabytes: float,
    tera: tuple[float, float | None, float],
    sm: tuple[int, int],
    source: str,
) -> DeviceFigures:
    """`tera`: 10^12 operations a second in bfloat16, float8 and int8; `sm`: capability and multiprocessors."""
    formats = zip(("bfloat16", "fp8", "int8"), tera, strict=True)
    return DeviceFigures(
        name=name,
        memory=memory_mib * MIB,
        bandwidth=terabytes * 1e12,
        operations={each: rate * 1e12 for each, rate in formats if rate is not None},
        capability=sm[0],
        multiprocessors=sm[1],
        source=source,
    )


def _cpu(gib: int) -> DeviceFigures:
    return DeviceFigures(
        name=f"cpu-{gib}g",
        memory=gib * GIB,
        bandwidth=2 * 8 * 5600e6,
        operations={},
        source="two channels of DDR5-5600, 8 bytes wide each (JESD79-5)",
    )


_ROWS: Final = (
    _gpu("h100", 81559, 3.35, (989.4, 1978.9, 1978.9), (90, 132), "NVIDIA H100 data sheet, SXM"),
    _gpu("h200", 143771, 4.8, (989.4, 1978.9, 1978.9), (90, 132), "NVIDIA H200 data sheet, SXM"),
    _gpu("a100-80g", 81920, 2.039, (312, None, 624), (80, 108), "NVIDIA A100 data sheet, SXM 80 GB"),
    _gpu("a100-40g", 40960, 1.555, (312, None, 624), (80, 108), "NVIDIA A100 data sheet, SXM 40 GB"),
    _gpu("l40s", 46068, 0.864, (362.05, 733, 733), (89, 142), "NVIDIA L40S data sheet"),
    _gpu("l4", 23034, 0.3, (121, 242.5, 242.5), (89, 58), "NVIDIA L4 data sheet"),
    _gpu("rtx4090", 24564, 1.008, (165.2, 330.3, 660.6), (89, 128), "NVIDIA Ada architecture paper, table of the 4090"),
    _gpu("rtx3090", 24576, 0.936, (71, None, 284), (86, 82), "NVIDIA GA102 architecture paper, table of the 3090"),
    *map(_cpu, _CPU_MEMORY),
)
DEVICES: Final[Mapping[str, DeviceFigures]] = {row.name: row for row in _ROWS}
