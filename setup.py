"""Names the machine that a wheel is for; everything else is in pyproject.toml.

Triolet is Python alone, but its kernels are LLVM code for Linux on x86-64 and AArch64, with glibc as numba's own wheels
have it.
"""

import platform

from setuptools import setup

setup(options={"bdist_wheel": {"plat_name": f"manylinux2014_{platform.machine()}"}})
