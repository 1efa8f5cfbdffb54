"""Spreads memory over the NUMA nodes that the process may compute on.

Linux takes a page from the node of the core that first touches it. A load may run on one node, whose memory would then
serve the threads of all. With pages in turn from every node each thread has the same part of its reads at home, and all
memory channels work, whichever thread takes which share. On Linux this is a policy of a thread for all that it touches,
memory and files alike, and of the threads that it starts. (A policy of a mapping, `mbind`, does not reach files.)
"""

import ctypes
import logging
import os
from pathlib import Path
from typing import Final

from ...kernels.simd.target import on_arm

NODES: Final = Path("/sys/devices/system/node")
_GET, _SET = (236, 237) if on_arm() else (239, 238)  # get_mempolicy, set_mempolicy
_DEFAULT, _INTERLEAVE = 0, 3
_WORD_BITS: Final = 64
_LOG: Final = logging.getLogger("triolet.memory")


def interleave_memory(nodes: Path = NODES) -> None:
    """In the thread that loads, before it starts others. Does nothing on one node, or where a policy was set before."""
    own = nodes_of(os.sched_getaffinity(0), nodes)
    if len(own) < 2:
        return
    try:
        if memory_policy()[0] != _DEFAULT:  # by `numactl`, for example
            return
        _set_interleaved(own)
        spread = memory_policy()[1]
    except OSError as error:
        names = ",".join(map(str, own))
        _LOG.warning(
            "memory is not spread over the NUMA nodes %s, and most reads may go to one: %s. Docker allows it with "
            "--cap-add SYS_NICE; elsewhere start the server with `numactl --interleave=%s`, or one for each node",
            names,
            error,
            names,
        )
    else:
        _LOG.info("weights and KV cache are spread over the NUMA nodes %s", ",".join(map(str, sorted(spread))))


def nodes_of(cpus: set[int], nodes: Path = NODES) -> list[int]:
    """The nodes of these CPUs; none where the system does not tell."""
    found: list[int] = []
    for folder in nodes.glob("node[0-9]*"):
        try:
            if cpus & _numbers((folder / "cpulist").read_text()):
                found.append(int(folder.name.removeprefix("node")))
        except (OSError, ValueError):
            continue
    return sorted(found)


def memory_policy() -> tuple[int, set[int]]:
    """Of this thread: its number and nodes. Raises OSError."""
    mode, mask = ctypes.c_int(), (ctypes.c_uint64 * 64)()
    _call(_GET, ctypes.byref(mode), mask, len(mask) * _WORD_BITS, None, 0)
    return mode.value, {bit for bit in range(len(mask) * _WORD_BITS) if mask[bit // _WORD_BITS] >> bit % _WORD_BITS & 1}


def _set_interleaved(nodes: list[int]) -> None:
    """Raises OSError. Nodes without memory, or without memory for this process, are left out by the system."""
    mask = (ctypes.c_uint64 * (nodes[-1] // _WORD_BITS + 1))()
    for node in nodes:
        mask[node // _WORD_BITS] |= 1 << node % _WORD_BITS
    _call(_SET, _INTERLEAVE, mask, len(mask) * _WORD_BITS + 1)  # the system takes one bit less than it is told


def _call(*arguments: object) -> None:
    words = (ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments)
    if ctypes.CDLL(None, use_errno=True).syscall(*words):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _numbers(text: str) -> set[int]:
    """Of a list as Linux writes it: 0-3,8,10-11."""
    spans = (part.partition("-") for part in text.strip().split(",") if part)
    return {number for first, _, last in spans for number in range(int(first), int(last or first) + 1)}
