"""Every kernel waits for the one in front of it before it reads or writes, and launches say that it may overlap."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from triton.backends.nvidia.compiler import CUDAOptions
from triton.runtime.jit import JITFunction

from triolet.kernels.gpu.language import overlap_launches

KERNELS = Path(__file__).parents[3] / "kernels"
MEMORY = re.compile(r"tl\.load|tl\.store|\.load\(|atomic")


def kernels() -> dict[str, str]:
    """The source of every launched kernel, without its head."""
    found = dict[str, str]()
    for file in sorted(KERNELS.glob("*/gpu*.py")):
        source = file.read_text()
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and node.name.endswith("_kernel") and "jit" in ast.dump(node):
                lines = source.splitlines()[node.body[0].lineno - 1 : node.end_lineno]
                found[f"{file.parent.name}.{node.name}"] = "\n".join(lines)
    return found


def waits_first(body: str) -> bool:
    wait, memory = body.find("await_inputs()"), MEMORY.search(body)
    return wait >= 0 and (memory is None or wait < memory.start())


@pytest.mark.parametrize("name", sorted(kernels()))
def test_a_kernel_waits_first(name: str) -> None:
    assert waits_first(kernels()[name])


def test_kernels_are_found_and_a_late_wait_is_seen() -> None:
    assert len(kernels()) > 30
    assert not waits_first("x = tl.load(place)\nawait_inputs()")
    assert not waits_first("x = 1")


def test_launches_overlap_where_they_are_told_to() -> None:
    assert "launch_pdl" in CUDAOptions.__dataclass_fields__
    launcher: Any = JITFunction  # Any: Triton has few types
    plain = launcher.run
    overlap_launches(True)
    try:
        assert vars(launcher)["run"].keywords == {"launch_pdl": True}
    finally:
        overlap_launches(False)
    assert launcher.run is plain
