"""The numbers of the device sampler, each through a kernel of one block."""

from __future__ import annotations

from triolet.kernels.gpu.language import jit, tl
from triolet.kernels.sampling import gpu_numbers


@jit
def number_kernel(source, out, WHICH: tl.constexpr, SIZE: tl.constexpr):
    place = tl.arange(0, SIZE)
    value = tl.load(source + place)
    if WHICH == 0:
        tl.store(out + place, gpu_numbers.weight(value))
    elif WHICH == 1:
        tl.store(out + place, gpu_numbers.logarithm(value))
    else:
        tl.store(out + place, gpu_numbers.gumbel(value.to(tl.uint32, bitcast=True)))
