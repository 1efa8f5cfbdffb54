"""The logical CPUs to pin threads to, in order: one of every physical core first, then their siblings (Linux)."""

import os
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")


def own_cores(cpus: Path = CPUS) -> list[int]:
    """The CPUs this process may use. Two threads on the siblings of one core would share its arithmetic units."""
    first: list[int] = []
    siblings: list[int] = []
    seen: set[str] = set()
    for cpu in sorted(os.sched_getaffinity(0)):
        try:
            core = (cpus / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
        except OSError:
            core = f"cpu{cpu}"  # unknown: assume its own core
        (siblings if core in seen else first).append(cpu)
        seen.add(core)
    return first + siblings
