"""What the compiler makes of every launch: once for all tests, in processes of its own, because this one interprets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

COMMAND = [sys.executable, "-m", "triolet.loadtest.device.compile_kernels", "--processes", "2"]
Compiled = dict[str, Any]  # Any: a JSON object, with the form's registers, shared memory and faults


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[Compiled]:
    file = tmp_path_factory.mktemp("compiled") / "rows.json"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([*COMMAND, "--json", str(file)], capture_output=True, text=True, env=environment, check=False)
    assert file.exists(), done.stderr
    found: list[Compiled] = json.loads(file.read_text())
    return found
