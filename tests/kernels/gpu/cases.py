"""What most tests here share: a machine that interprets, as the suite's checks want one, and small launch tables."""

from __future__ import annotations

from triolet.kernels.gpu.table import Launch, LaunchRow, Table
from triolet.kernels.paged_attention.gpu_table import AttentionLaunch, DecodeLaunch, PrefillLaunch
from triolet.loadtest.device.gpu_case import GpuMachine

MACHINE = GpuMachine("cpu", 90, "Triton's interpreter", {}, multiprocessors=2)


def table_of(launch: Launch) -> Table[Launch]:
    """One launch for every size, so small that small inputs have several tiles or turns."""
    return {80: (LaunchRow(None, launch, "a test's"),)}


def small_launch(
    programs: int, *, share: int = 1, descriptors: bool = False, strict: bool = False, e4m3_bits: bool = False,
    rows: int = 16,
) -> AttentionLaunch:  # fmt: skip
    """Of attention, whose tiles and shares are small enough for a small batch to have several."""
    return AttentionLaunch(
        DecodeLaunch(1, share, 4, 3, descriptors, programs), PrefillLaunch(rows, 4, 2, descriptors), strict, e4m3_bits
    )
