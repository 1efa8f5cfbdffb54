"""The disk cache of compiled CPU kernels, and how many were compiled in this process.

numba's disk cache checks only the file of the cached function. Code that an intrinsic emits, or that is in another
file, may change without invalidating it; the old machine code would then run silently. So the folder's name contains a
hash of every kernel source and of the compiler's version. All installations of the same sources share it
(cache_locator.py). numba itself adds the CPU's name and features to the keys inside. Triton's files (`gpu*.py` and the
folder `gpu`) are not part of it. Every module with compiled functions calls prepare_compile_cache() before it decorates
one (`compiled` does so).
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from .cache_folder import open_cache_folder

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


def prepare_compile_cache() -> Path:
    """Point numba at this version's cache folder and start counting compilations. Idempotent."""
    return _folder or use_cache_folder(open_cache_folder(f"kernels-{_source_hash()}"))


def use_cache_folder(folder: Path) -> Path:
    """The same with a folder chosen by another process. Call it before anything is decorated."""
    global _folder  # numba's setting is per process, too
    from numba.core import config, event

    # numba reads the setting when it decorates a function, so this also works if numba was imported earlier.
    settings = {
        "CACHE_DIR": str(folder),
        "CACHE_LOCATOR_CLASSES": "triolet.kernels.cache_locator.KernelLocator,UserProvidedCacheLocator",
    }
    for name, value in settings.items():  # numba declares its settings at run time only
        setattr(config, name, value)
    event.register("numba:compile", _recorder())
    _folder = folder
    return folder


@functools.cache
def _recorder() -> Any:  # Any: a listener of numba, which is untyped
    from numba.core.event import RecordingListener

    return RecordingListener()


def compilations() -> int:
    """How many functions this process has compiled so far, not counting those loaded from disk."""
    return sum(event.is_start for _, event in _recorder().buffer)


@contextmanager
def telling_compilations(tell: Callable[[int, int], None]) -> Generator[None]:
    """Inside it, `tell(functions with code, functions declared)` is called at each compilation's start and end."""
    prepare_compile_cache()
    from numba.core import event

    class Teller(event.Listener):
        def on_start(self, event: object) -> None:
            tell(sum(bool(function.signatures) for function in _functions), len(_functions))

        on_end = on_start

    with event.install_listener("numba:compile", Teller()):
        yield


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """numba.njit without the GIL, cached on disk, keeping the function's type; integer division has no zero check."""
    prepare_compile_cache()
    import numba

    decorated: Callable[P, R] = numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    _functions.append(decorated)
    return decorated


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Like `compiled`, but its source is inlined into compiled callers.

    Every `compiled` level of a call chain optimises and generates all code below it again. So everything between the
    kernels and a worker's loop is inlined: a decoder step compiles in 6 s instead of 10 s. Inlining the kernels'
    drivers too costs more than it saves, since numba then copies their source many times.
    """
    prepare_compile_cache()
    import numba

    decorated: Callable[P, R] = numba.njit(nogil=True, cache=True, error_model="numpy", inline="always")(function)
    return decorated
