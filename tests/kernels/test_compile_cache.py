"""Compiled code is kept under the user's cache folder, found again by the next process, and counted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import numba, sys
from triolet.kernels.compile_cache import compilations, prepare_compile_cache, telling_compilations
from triolet.kernels.threads.waiting import stop_workers
import numpy as np
state = np.zeros(40, np.int64)
told = []
with telling_compilations(lambda done, declared: told.append((done, declared))):
    stop_workers(state.ctypes.data)
    stop_workers(state.ctypes.data)
assert bool(told) == bool(compilations()), told
assert all(0 <= done <= declared for done, declared in told), told
print(prepare_compile_cache(), compilations())
"""


def run(home: Path) -> tuple[Path, int]:
    environment = {**os.environ, "XDG_CACHE_HOME": str(home)}
    environment.pop("NUMBA_CACHE_DIR", None)
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True, env=environment
    )
    folder, count = result.stdout.split()
    return Path(folder), int(count)


def test_the_second_process_compiles_nothing(tmp_path: Path) -> None:
    folder, count = run(tmp_path)
    assert folder.parent == tmp_path / "triolet"
    assert count == 1  # although called twice
    assert any(folder.rglob("*.nbi"))
    assert run(tmp_path) == (folder, 0)


def test_an_unusable_home_falls_back_to_a_folder_of_its_own(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    folder, count = run(in_the_way)
    assert tmp_path not in folder.parents
    assert count == 1
    assert any(folder.rglob("*.nbi"))
