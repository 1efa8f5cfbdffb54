"""What a process does with its memory, seen from inside: in one of its own, as it holds for the whole process."""

import ctypes
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes
from triolet.cli.process import return_large_blocks

class Figures(ctypes.Structure):  # struct mallinfo2, of malloc.h
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd f1 f2 f3 f4 f5".split()]

figures = ctypes.CDLL(None).mallinfo2
figures.restype = Figures
return_large_blocks()
bytes(8 << 20)  # freed at once
before = figures().hblkhd
held = bytes(4 << 20)
print(figures().hblkhd - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="another C library than glibc")
def test_large_blocks_go_back_to_the_system() -> None:
    """By default glibc takes a block of 4 MiB from its heap once one of 8 was freed, and the heap does not shrink."""
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(run.stdout) >= 4 << 20
