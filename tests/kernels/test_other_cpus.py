"""The same kernel tests on the instructions of older CPUs, which this one executes as well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from triolet.kernels.simd.target import features

TARGETS = {
    "haswell": "+sse4.2,+avx,+avx2,+fma,+f16c,+bmi,+bmi2",
    "skylake-avx512": "+sse4.2,+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+avx512f,+avx512bw,+avx512vl,+avx512dq",
    "nehalem": "+sse4.2",
}
FILES = ["test_gemm.py", "test_gemm_stored.py", "test_rows.py", "test_paged_attention.py", "test_latent_tile.py"]


@pytest.mark.parametrize("name", list(TARGETS))
def test_kernels_on(name: str) -> None:
    wanted = {feature.strip("+") for feature in TARGETS[name].split(",")}
    if not wanted <= features():
        pytest.skip(f"this CPU cannot execute {sorted(wanted - features())}")
    environment = {**os.environ, "NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": TARGETS[name]}
    here = Path(__file__).parent
    command = [sys.executable, "-c", "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))", "-q", "-x"]
    result = subprocess.run(
        [*command, *(str(here / file) for file in FILES)], capture_output=True, text=True, timeout=300, env=environment
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]
