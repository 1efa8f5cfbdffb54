"""Compiled code is kept under the user's cache folder, found again by the next process, and counted."""

from __future__ import annotations

import ast
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from triolet.kernels import cache_folder, compile_cache
from triolet.kernels.cache_folder import open_cache_folder

PROGRAM = """
import numba, sys
from triolet.kernels.compile_cache import compilations, prepare_compile_cache, telling_compilations
from triolet.kernels.threads.waiting import set_resting
import numpy as np
state = np.zeros(40, np.int64)
told = []
with telling_compilations(lambda done, declared: told.append((done, declared))):
    set_resting(state.ctypes.data, 0)
    set_resting(state.ctypes.data, 0)
assert bool(told) == bool(compilations()), told
assert all(0 <= done <= declared for done, declared in told), told
print(prepare_compile_cache(), compilations())
"""


def run(home: Path, **variables: str) -> tuple[Path, int]:
    environment = {**os.environ, "XDG_CACHE_HOME": str(home), **variables}
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


CALLED = """
import sys
from pathlib import Path
from triolet.kernels.compile_cache import compilations, compiled, use_cache_folder
use_cache_folder(Path(sys.argv[1]))

@compiled
def inside(x):
    return 3 * x + 1

@compiled
def outside(x):
    return inside(x) - 2

function = inside if sys.argv[2] == "inside" else outside
library = lambda: inside.overloads[inside.signatures[0]].library
print(function(13), compilations(), sys.argv[2] == "outside" or library()._shared_module is not None)
"""


def test_code_from_the_cache_is_called_and_compiled_into_callers(tmp_path: Path) -> None:
    """Its bitcode is read only for the latter."""
    program = tmp_path / "program.py"
    program.write_text(CALLED)
    results = [
        subprocess.check_output([sys.executable, program, tmp_path / "cache", name], text=True, timeout=120).split()
        for name in ("inside", "inside", "outside", "outside")
    ]
    assert [result[0] for result in results] == ["40", "40", "38", "38"]
    assert [result[1] for result in results] == ["1", "0", "1", "0"]
    assert [result[2] for result in results[:2]] == ["True", "False"]


def test_another_installation_of_the_same_sources_compiles_nothing(tmp_path: Path) -> None:
    """As in a second virtual environment: other paths, other times."""
    kernels = Path(compile_cache.__file__).parent
    folder, count = run(tmp_path)
    assert count == 1
    for place, change in (("a", ""), ("b", "\n# changed\n")):
        copied = tmp_path / place / "triolet/kernels"
        shutil.copytree(kernels, copied, ignore=shutil.ignore_patterns("__pycache__"), copy_function=shutil.copyfile)
        with (copied / "threads/waiting.py").open("a") as source:
            source.write(change)
        found, count = run(tmp_path, PYTHONPATH=str(tmp_path / place))
        assert (found == folder, count) == ((True, 0) if not change else (False, 1))


def test_an_unusable_home_falls_back_to_a_folder_of_its_own(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    folder, count = run(in_the_way, TMPDIR=str(tmp_path))
    assert folder.parent == tmp_path
    assert count == 1
    assert any(folder.rglob("*.nbi"))


def run_with(folder: Path, mode: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> bool:
    """Whether the cache under XDG_CACHE_HOME is used after a folder got this mode."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.parent))
    folder.chmod(mode)
    caplog.clear()
    used = open_cache_folder("kernels-x")
    assert (folder in used.parents) != ("compiles all CPU kernels again" in caplog.text)
    return folder in used.parents


def test_a_cache_that_others_write_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ours = tmp_path / "triolet"
    ours.mkdir()
    assert run_with(ours, 0o755, monkeypatch, caplog)
    assert not run_with(ours, 0o775, monkeypatch, caplog)
    assert "chmod go-w" in caplog.text
    assert not run_with(ours, 0o1777, monkeypatch, caplog)
    ours.chmod(0o700)
    tmp_path.chmod(0o777)
    assert not run_with(ours, 0o700, monkeypatch, caplog)
    tmp_path.chmod(0o1777)  # as /tmp
    assert run_with(ours, 0o700, monkeypatch, caplog)


def test_a_cache_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ours = tmp_path / "triolet"
    ours.mkdir()
    assert run_with(ours, 0o700, monkeypatch, caplog)
    somebody = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: somebody)
    assert not run_with(ours, 0o700, monkeypatch, caplog)
    assert "belongs to another user" in caplog.text


def test_the_cache_is_made_for_its_user_alone(tmp_path: Path) -> None:
    folder, _ = run(tmp_path)
    assert [stat.S_IMODE(place.stat().st_mode) for place in (folder.parent, folder)] == [0o700, 0o700]


HOLDS = """
import sys
from triolet.kernels.cache_folder import open_cache_folder
print(open_cache_folder(sys.argv[1]), flush=True)
sys.stdin.read()
"""


def test_a_new_version_removes_those_that_nobody_has_used_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache_folder, "_held", [])
    unused, recent = (open_cache_folder(f"kernels-{name}") for name in ("unused", "recent"))
    linked = tmp_path / "elsewhere"
    linked.mkdir()
    (unused.parent / "kernels-link").symlink_to(linked)
    for descriptor in cache_folder._held:
        os.close(descriptor)
    cache_folder._held.clear()
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLDS, "kernels-old"], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin
        assert process.stdout
        running = Path(process.stdout.readline().strip())
        long_ago = time.time() - (cache_folder.KEPT_DAYS + 1) * 24 * 3600
        for folder in (running, unused, linked):
            os.utime(folder, (long_ago, long_ago))
        assert open_cache_folder("kernels-recent") == recent
        assert unused.is_dir()  # nothing new was made
        open_cache_folder("kernels-new")
        assert [folder.is_dir() for folder in (running, unused, recent, linked)] == [True, False, True, True]
        process.stdin.close()


def test_temporary_folders_of_earlier_starts_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_folder, "_held", [])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    first = open_cache_folder("kernels-x")
    for descriptor in cache_folder._held:
        os.close(descriptor)
    second = open_cache_folder("kernels-x")
    assert first.is_dir()  # its process may just have begun
    long_ago = time.time() - 2 * 24 * 3600
    for folder in (first, second):
        os.utime(folder, (long_ago, long_ago))
    third = open_cache_folder("kernels-x")
    assert [folder.is_dir() for folder in (first, second, third)] == [False, True, True]


ROOT = Path(__file__).resolve().parents[2]


def is_compiled(function: ast.FunctionDef, *decorators: str) -> bool:
    return any(isinstance(name, ast.Name) and name.id in decorators for name in function.decorator_list)


def calls_from_python(sources: dict[str, str]) -> list[str]:
    """Functions without a wrapper for Python that Python calls. Sources by the names of their modules."""
    trees = {module: ast.parse(source) for module, source in sources.items()}
    inner = {
        (module, function.name)
        for module, tree in trees.items()
        for function in tree.body
        if isinstance(function, ast.FunctionDef) and is_compiled(function, "inner")
    }
    found: list[str] = []
    for module, tree in trees.items():
        known = {name for home, name in inner if home == module}
        for line in ast.walk(tree):
            if isinstance(line, ast.ImportFrom) and line.module:
                place = ".".join(module.split(".")[: -line.level]) + "." if line.level else ""
                home = (place + line.module).removeprefix("triolet.")
                known |= {name.asname or name.name for name in line.names if (home, name.name) in inner}
        for part in tree.body:
            if isinstance(part, ast.FunctionDef) and is_compiled(part, "inner", "compiled", "inlined"):
                continue
            calls = [node.func for node in ast.walk(part) if isinstance(node, ast.Call)]
            found += [f"{module}: {name.id}" for name in calls if isinstance(name, ast.Name) and name.id in known]
    return found


def test_python_calls_no_function_that_lacks_its_wrapper() -> None:
    """Such a call would end the process."""
    files = [file for folder in ("kernels", "models", "loadtest", "tests") for file in (ROOT / folder).rglob("*.py")]
    modules = {".".join(file.relative_to(ROOT).with_suffix("").parts): file.read_text() for file in files}
    near = {name: source for name, source in modules.items() if name.startswith("kernels.") or "kernels." in source}
    assert calls_from_python(near) == []


def test_a_planted_call_is_found() -> None:
    step = "from compile_cache import inner\n@inner\ndef row(): ...\n@compiled\ndef loop(): row()\n"
    assert calls_from_python({"step": step}) == []
    assert calls_from_python({"step": step + "def run(): row()\n"}) == ["step: row"]
    beside = "from .step import row as one\ndef run(): one()\n"
    assert calls_from_python({"kernels.step": step, "kernels.run": beside}) == ["kernels.run: one"]
