"""Packages for a machine without a network: wheels that travel with the suite, for its processes alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TREE = ROOT / ".typing"  # `triolet` as a source tree has it, where nobody installed it


def install_wheels(wheels: Path, site: Path) -> str:
    """Into the folder `site`; says what was done. One wheel that does not fit must not cost the others."""
    files = sorted(wheels.glob("*.whl"))
    if not files:
        raise ValueError(f"--wheels {wheels}: there are no wheels in it")
    if not _pip(files, site):
        return f"{len(files)} wheels installed"
    refused = [f"{file.name}: {message}" for file in files if (message := _pip([file], site))]
    return "\n".join([f"{len(files) - len(refused)} of {len(files)} wheels installed", *refused])


def _pip(files: list[Path], site: Path) -> str:
    """Why it failed; empty where it did not."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--upgrade",
         "--disable-pip-version-check", "--target", str(site), *map(str, files)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["pip failed"])[-1]


def path_with(site: Path, processes: int) -> dict[str, str]:
    """The environment of workers and whatever they start: they see the wheels, and `triolet` as this process does."""
    folders = [str(site), *([str(TREE)] if TREE.is_dir() else []), os.environ.get("PYTHONPATH", "")]
    threads = max(1, (os.cpu_count() or 1) // processes)
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, folders)),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        "PYTHONUNBUFFERED": "1",
    }
