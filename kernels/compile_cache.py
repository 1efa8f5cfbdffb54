"""Where compiled CPU kernels live on disk, and how many were compiled in this process.

numba's disk cache knows only the file of the cached function. Code that an intrinsic emits, or that lives in another
file, may change without invalidating it, and the old machine code then runs silently. So the folder's name carries a
hash of every kernel source and of the compiler's version; numba itself adds the CPU's name and features to the keys
inside. Triton's files (`gpu*.py` and the folder `gpu`) are no part of it. Every module with compiled functions calls
prepare_compile_cache() before it decorates one (`compiled` does so).
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_folder: Path | None = None
_functions: list[Any] = []  # Any: dispatchers of numba, which is untyped


def _source_hash() -> str:
    digest = hashlib.sha256()
    for package in ("numba", "llvmlite"):
        digest.update(f"{package} {importlib.metadata.version(package)}\n".encode())
    root = Path(__file__).parent
    for file in sorted(root.rglob("*.py")):
        name = file.relative_to(root)
        if name.parts[0] != "gpu" and not file.name.startswith("gpu"):
            digest.update(str(name).encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _writable_folder(name: str) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "triolet" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:  # read-only home: still compile once per process, into a folder of our own
        return Path(tempfile.mkdtemp(prefix="triolet-kernels-"))


def prepare_compile_cache() -> Path:
    """Point numba at this version's cache folder and start counting compilations. Idempotent."""
    return _folder or use_cache_folder(_writable_folder(f"kernels-{_source_hash()}"))


def use_cache_folder(folder: Path) -> Path:
    """The same with a folder that another process has chosen. Before anything is decorated."""
    global _folder  # numba's setting is one for the process, too
    from numba.core import config, event

    # numba reads the setting when a function is decorated, so this also works when somebody else imported numba before.
    setattr(config, "CACHE_DIR", str(folder))  # noqa: B010  # numba declares its settings at run time only
    event.register("numba:compile", _recorder())
    _folder = folder
    return folder


@functools.cache
def _recorder() -> Any:  # Any: a listener of numba, which is untyped
    from numba.core.event import RecordingListener

    return RecordingListener()


def compilations() -> int:
    """Functions compiled (not loaded from disk) in this process so far."""
    return sum(event.is_start for _, event in _recorder().buffer)


@contextmanager
def telling_compilations(tell: Callable[[int, int], None]) -> Generator[None]:
    """Within it, `tell(functions that have code, functions declared)` at the start and end of every compilation."""
    prepare_compile_cache()
    from numba.core import event

    class Teller(event.Listener):
        def on_start(self, event: object) -> None:
            tell(sum(bool(function.signatures) for function in _functions), len(_functions))

        on_end = on_start

    with event.install_listener("numba:compile", Teller()):
        yield


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """numba.njit without the GIL, cached on disk, the function's type kept; no zero check before integer division."""
    prepare_compile_cache()
    import numba

    decorated: Callable[P, R] = numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    _functions.append(decorated)
    return decorated


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """As `compiled`, but its source is put into compiled callers.

    Every `compiled` level of a call chain optimises and generates all the code below it once more, so what lies
    between the kernels and a worker's loop is inlined: 6 s instead of 10 s for a decoder step. Inlining the kernels'
    drivers too costs more than it saves, numba then copies their source again and again.
    """
    prepare_compile_cache()
    import numba

    decorated: Callable[P, R] = numba.njit(nogil=True, cache=True, error_model="numpy", inline="always")(function)
    return decorated
