"""Launch sizes of the kernels around a step. They move a few kilobytes: one size for every device.

Compiled for sm_80 and sm_90 with Triton 3.6 and 3.9: 18 to 42 registers, no spills. Not measured yet.
"""

SCATTER_BLOCK = 256  # entries of a program
COPY_BLOCK = 4096  # words of a program: 16 KiB
