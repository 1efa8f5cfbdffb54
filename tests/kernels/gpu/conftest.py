"""What the compiler makes of every launch: once for all tests and all processes of a test run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from filelock import FileLock

# In processes of its own, because those of the tests interpret.
COMMAND = [sys.executable, "-m", "triolet.loadtest.device.compile_kernels", "--processes", "2", "--quick"]
Compiled = dict[str, Any]  # Any: a JSON object, with the form's registers, shared memory and faults


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[Compiled]:
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # where the folders of all processes of this run lie
    file = folder / "compiled.json"
    with FileLock(folder / "compiled.lock"):
        if not file.exists():
            environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
            command = [*COMMAND, "--json", str(file)]
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            assert file.exists(), done.stderr
    found: list[Compiled] = json.loads(file.read_text())
    return found


@pytest.fixture(autouse=True)
def _drawn_alike() -> None:
    """As before every case of the GPU suite, whose checks are used here."""
    torch.manual_seed(0)
