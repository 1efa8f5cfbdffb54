"""What the server holds now, counted where it is held: for /internal/ledger and for tests that look for leaks."""

import os
from pathlib import Path

import trio
from msgspec import Struct

from ..scheduler.blocks import BlockCounts


class Ledger(Struct, frozen=True, kw_only=True):
    """free + cached + owned == total, always; the rest returns to its idle value when all requests have ended."""

    kv_blocks: BlockCounts
    requests: int
    tasks: int
    fds: int
    children: int
    rss_bytes: int


def take_ledger(kv_blocks: BlockCounts, requests: int, children: int) -> Ledger:
    """Add what the operating system and trio know."""
    return Ledger(
        kv_blocks=kv_blocks,
        requests=requests,
        tasks=trio.lowlevel.current_statistics().tasks_living,
        fds=open_files(),
        children=children,
        rss_bytes=resident_bytes("self"),
    )


def open_files() -> int:
    try:
        counted = os.stat("/proc/self/fd").st_size  # by Linux 6.2 and newer; a listing of 3,000 takes 1.2 ms
    except OSError:
        counted = 0
    try:
        return counted or len(os.listdir("/dev/fd"))
    except OSError:
        return 0  # no such view on this system


def peak_resident_bytes(pid: int | str) -> int:
    """The most memory a process has had in RAM, mapped files included; 0 where the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return 0


def resident_bytes(pid: int | str) -> int:
    """A process's memory in RAM; 0 where the system does not tell."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
