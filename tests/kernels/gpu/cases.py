"""What most tests here share: a machine that interprets, as the suite's checks want one, and small launch tables."""

from __future__ import annotations

from triolet.kernels.gpu.table import Launch, LaunchRow, Table
from triolet.loadtest.device.gpu_case import GpuMachine

MACHINE = GpuMachine("cpu", 90, "Triton's interpreter", {}, multiprocessors=2)


def table_of(launch: Launch) -> Table[Launch]:
    """One launch for every size, so small that small inputs have several tiles or turns."""
    return {80: (LaunchRow(None, launch, "a test's"),)}
