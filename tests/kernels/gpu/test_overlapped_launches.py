"""Every kernel waits for the one in front of it before it reads or writes, and launches say that it may overlap."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from triton.backends.nvidia.compiler import CUDAOptions

from triolet.kernels.gpu import language
from triolet.kernels.logit_cap.gpu import cap_kernel

KERNELS = Path(__file__).parents[3] / "kernels"
# What may be called before: nothing that loads what another kernel writes, or stores.
CALLED = re.compile(r"([\w.]+)\(")
EARLY = re.compile(r"tl\.(program_id|cdiv|arange)|share|ask_for_\w+")


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
    before, wait, _ = body.partition("await_inputs()")
    statements = before.rpartition('"""')[2]
    return bool(wait) and all(EARLY.fullmatch(name) for name in CALLED.findall(statements))


@pytest.mark.parametrize("name", sorted(kernels()))
def test_a_kernel_waits_first(name: str) -> None:
    assert waits_first(kernels()[name])


def test_kernels_are_found_and_a_late_wait_is_seen() -> None:
    assert len(kernels()) > 30
    assert not waits_first("x = tl.load(place)\nawait_inputs()")
    assert not waits_first("x = block_of(plan)\nawait_inputs()")
    assert not waits_first("x = 1")


def test_our_launches_overlap_where_they_are_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "launch_pdl" in CUDAOptions.__dataclass_fields__
    launched = list[tuple[str, dict[str, object]]]()

    def run(kernel: Any, **options: object) -> None:  # Any: stands for a kernel
        launched.append((kernel.fn.__name__, options))

    monkeypatch.setattr(language, "_run", run)
    monkeypatch.setattr(language.JITFunction, "run", run)
    theirs, ours = (SimpleNamespace(fn=function) for function in (test_a_kernel_waits_first, cap_kernel.fn))
    for overlap in (True, False):
        language.overlap_launches(overlap)
        for kernel in (theirs, ours):
            language.JITFunction.run(kernel, warmup=False)
    told = [options.get("launch_pdl", False) for _, options in launched]
    assert told == [False, True, False, False]
