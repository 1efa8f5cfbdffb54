"""What this machine offers: memory that may still be taken, cores that may run threads, a GPU (Linux)."""

import os
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
CPUS = Path("/sys/devices/system/cpu")


def available_memory(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Bytes that can be allocated without swapping: the least of MemAvailable and the room in each control group.

    Linux counts files that processes have mapped as available, since it could read them again: a model whose weights
    are mapped would then crawl. So they are taken off here, but for as much as there is of shared memory.
    """
    lines = (line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines() if ":" in line)
    meminfo = {name: int(value.split()[0]) * 1024 for name, value in lines}
    mapped = max(0, meminfo.get("Mapped", 0) - meminfo.get("Shmem", 0))  # the former counts mapped shared memory too
    least = meminfo["MemAvailable"] - mapped
    left = (_memory_left(folder) for folder in _control_groups("memory", proc, cgroup))
    return max(0, min([least, *(size for size in left if size is not None)]))


def has_nvidia_driver(proc: Path = PROC) -> bool:
    """Whether the kernel module is loaded: the cheapest sign of a GPU; also works in containers."""
    return (proc / "driver/nvidia/version").exists()


def usable_cores(cpus: Path = CPUS, proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """How many kernel threads can run at once: the physical cores that this process may use, within any CPU quota."""
    cores, quota = physical_cores(cpus), cpu_quota(proc, cgroup)
    return cores if quota is None else max(1, min(cores, quota))


def physical_cores(cpus: Path = CPUS) -> int:
    """That this process may use. Hyper-threads of one core share its arithmetic units."""
    cores: set[str] = set()
    for cpu in os.sched_getaffinity(0):
        try:
            cores.add((cpus / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip())
        except OSError:
            cores.add(str(cpu))
    return len(cores)


def cpu_quota(proc: Path = PROC, cgroup: Path = CGROUP) -> int | None:
    """Whole CPUs, rounded down: once a quota is spent, threads stop in the middle of a step until its period ends,
    usually 100 ms. None: there is none."""
    quotas = (_cpu_quota(folder) for folder in _control_groups("cpu", proc, cgroup))
    return min((quota for quota in quotas if quota is not None), default=None)


def _control_groups(controller: str, proc: Path, cgroup: Path) -> Iterator[Path]:
    """The folders of the control groups that limit this process, of version 2 and of version 1."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = cgroup / controller if controllers else cgroup
        group = root / path.lstrip("/")
        # In a container the path may be the host's: then the group's own files are at the root.
        yield from dict.fromkeys((root, *(place for place in (group, *group.parents) if place.is_relative_to(root))))


def _memory_left(folder: Path) -> int | None:
    """Limit minus usage of one control group; page cache that nobody has mapped does not count as used."""
    for names in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        try:
            limit, usage = ((folder / name).read_text().strip() for name in names)
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            mapped = int(statistics.get("file_mapped", statistics.get("mapped_file", 0)))  # version 2, version 1
            droppable = max(0, int(statistics.get("inactive_file", 0)) - mapped)
            return None if limit == "max" else int(limit) - int(usage) + droppable
        except (OSError, ValueError):
            continue
    return None


def _cpu_quota(folder: Path) -> int | None:
    """Whole CPUs that one control group allows: `cpu.max` of version 2, or the two files of version 1."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            quota, period = " ".join((folder / name).read_text() for name in names).split()
            if quota != "max" and int(quota) > 0:
                return int(quota) // int(period)
        except (OSError, ValueError):
            continue
    return None
