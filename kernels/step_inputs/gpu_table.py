"""Launch sizes of the kernels around a step. They move a few kilobytes: one size for every device.

Compiled for sm_80 and sm_90 with Triton 3.6 and 3.9: 18 to 32 registers, no spills. Not measured yet.
"""

SCATTER_BLOCK = 256  # entries of a program
COPY_BLOCK = 4096  # words of a program: 16 KiB
PREPARE_TILE = 512  # block-table entries, and tokens, of a program at a time: the table of a 32k context
PREPARE_WARPS = 4
PREPARE_PROGRAMS = 8  # of a chunk, at most: most have nothing to do and return after four words
