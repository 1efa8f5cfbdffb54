"""What this machine has for us: memory that may still be taken, cores that may run threads, a GPU (Linux)."""

import os
from pathlib import Path

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
CPUS = Path("/sys/devices/system/cpu")


def available_memory(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Bytes that can be allocated without swapping: the least of MemAvailable and what every control group leaves."""
    meminfo = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines() if ":" in line)
    least = int(meminfo["MemAvailable"].split()[0]) * 1024
    for line in (proc / "self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            names, root = ("memory.max", "memory.current"), cgroup
        elif "memory" in controllers.split(","):
            names, root = ("memory.limit_in_bytes", "memory.usage_in_bytes"), cgroup / "memory"
        else:
            continue
        group = root / path.lstrip("/")
        # In a container the path may be the host's: the group's own files then lie at the root.
        for folder in (root, *(place for place in (group, *group.parents) if place.is_relative_to(root))):
            least = min(least, _left(folder, *names, least))
    return max(0, least)


def has_nvidia_driver(proc: Path = PROC) -> bool:
    """Whether the kernel module is loaded: the cheapest sign of a GPU, in containers too."""
    return (proc / "driver/nvidia/version").exists()


def _left(folder: Path, limit_name: str, usage_name: str, otherwise: int) -> int:
    """Limit less usage of one control group; page cache that can be dropped does not count as used."""
    try:
        limit = (folder / limit_name).read_text().strip()
        usage = int((folder / usage_name).read_text())
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return otherwise
    if limit == "max":
        return otherwise
    return int(limit) - usage + int(statistics.get("inactive_file", 0))


def usable_cores(cpus: Path = CPUS, proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """How many kernel threads can run at once: the physical cores this process may use, less what a quota forbids.

    Hyper-threads of one core share its arithmetic units. A quota counts in whole CPUs, rounded down: when it is spent
    the threads stand still until its period ends, 100 ms as a rule, in the middle of a step.
    """
    cores: set[str] = set()
    for cpu in os.sched_getaffinity(0):
        try:
            cores.add((cpus / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip())
        except OSError:
            cores.add(str(cpu))
    return max(1, min(len(cores), _cpu_quota(proc, cgroup)))


def _cpu_quota(proc: Path, cgroup: Path) -> int:
    """Whole CPUs that the least generous control group allows; a large number without one."""
    least = 1 << 20
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return least
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root = cgroup
        elif "cpu" in controllers.split(","):
            root = cgroup / "cpu"
        else:
            continue
        group = root / path.lstrip("/")
        for folder in (root, *(place for place in (group, *group.parents) if place.is_relative_to(root))):
            quota = _quota_of(folder)
            if quota is not None:
                least = min(least, quota)
    return least


def _quota_of(folder: Path) -> int | None:
    """Of one control group: `cpu.max` of version 2, or the two files of version 1."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            quota, period = " ".join((folder / name).read_text() for name in names).split()
            if quota != "max" and int(quota) > 0:
                return int(quota) // int(period)
        except (OSError, ValueError):
            continue
    return None
