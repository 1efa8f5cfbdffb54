"""The machine that was measured, the versions on it, and how busy other processes keep it (Linux)."""

import os
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Final

from msgspec import Struct

PROC: Final = Path("/proc")
TELLING: Final = (
    "avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm",
)  # fmt: skip  # the instructions that decide how fast a GEMM can be
QUIET: Final = 0.1  # share of the cores that others may use before figures count as disturbed


class Machine(Struct, frozen=True, kw_only=True):
    cpu: str
    instructions: tuple[str, ...]
    cores: int  # logical cores that this process may use
    memory_gib: float
    system: str


def machine(proc: Path = PROC) -> Machine:
    first = (proc / "cpuinfo").read_text().split("\n\n")[0]
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
    flags = set(fields.get("flags", fields.get("Features", "")).split())  # of x86-64, of AArch64
    model, family = fields.get("model name", platform.machine()), fields.get("cpu family")
    return Machine(
        # Some clouds hide the model; family and model number still say which generation it is.
        cpu=f"{model} (family {family}, model {fields.get('model')})" if family else model,
        instructions=tuple(flag for flag in TELLING if flag in flags),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        system=f"{platform.system()} {platform.release()}",
    )


def versions(*packages: str) -> dict[str, str]:
    """The versions of Triolet, Python and these packages."""
    return {**{name: version(name) for name in ("triolet", *packages)}, "python": platform.python_version()}


def busy_share(seconds: float = 0.5, proc: Path = PROC) -> float:
    """Share of all cores' time that others used while this process slept. A load average would count our own runs."""
    busy, total = _times(proc)
    time.sleep(seconds)
    busy_after, total_after = _times(proc)
    return (busy_after - busy) / max(1, total_after - total)


def _times(proc: Path) -> tuple[int, int]:
    """Clock ticks of all cores since boot: (busy, total)."""
    ticks = [int(each) for each in (proc / "stat").read_text().splitlines()[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)
