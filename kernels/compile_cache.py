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
import gc
import hashlib
import importlib.metadata
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from .cache_folder import open_cache_folder
from .simd.target import complete_target

P = ParamSpec("P")
R = TypeVar("R")

# Of allocations, until the collector runs while something compiles. With Python's own numbers a decoder step takes 12 %
# longer to compile; if it never ran, the process would grow by 80 MB instead of by 16.
_RARELY = (100_000, 1_000, 1_000)

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
    from numba.core import codegen, config, event

    from .cached_library import CachedLibrary

    # numba reads the setting when it decorates a function, so this also works if numba was imported earlier.
    settings = {
        "CACHE_DIR": str(folder),
        "CACHE_LOCATOR_CLASSES": "triolet.kernels.cache_locator.KernelLocator,UserProvidedCacheLocator",
    }
    for name, value in settings.items():  # numba declares its settings at run time only
        setattr(config, name, value)
    codegen.JITCPUCodegen._library_class = CachedLibrary  # pyright: ignore[reportPrivateUsage]  # no other way in
    complete_target()
    event.register("numba:compile", _compilations())
    _folder = folder
    return folder


@functools.cache
def _compilations() -> Any:  # Any: a listener of numba, which is untyped
    from numba.core.event import Listener

    class Compilations(Listener):
        """Counts them, and has Python's collector rest: it would look again and again at a compiler's many objects."""

        started, running = 0, 0

        def on_start(self, event: object) -> None:
            self.started += 1
            if self.running == 0:
                self._usual = gc.get_threshold()
                gc.set_threshold(*_RARELY)
            self.running += 1  # numba holds a lock, so these are one inside the other

        def on_end(self, event: object) -> None:  # also of a compilation that fails
            self.running -= 1
            if self.running == 0:
                gc.set_threshold(*self._usual)

    return Compilations()


def compilations() -> int:
    """How many functions this process has compiled so far, not counting those loaded from disk."""
    return int(_compilations().started)


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


def _declared(function: Callable[P, R], **own: Any) -> Callable[P, R]:  # Any: options of numba that its stubs lack
    prepare_compile_cache()
    import numba

    options: dict[str, Any] = {"no_cfunc_wrapper": True} | own
    decorated: Callable[P, R] = numba.njit(nogil=True, cache=True, error_model="numpy", **options)(function)
    return decorated


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """numba.njit without the GIL, cached on disk, keeping the function's type; integer division has no zero check."""
    decorated = _declared(function)
    _functions.append(decorated)
    return decorated


def inner(function: Callable[P, R]) -> Callable[P, R]:
    """Like `compiled`, for callers that are compiled themselves. A call from Python ends the process.

    It lacks the code that takes Python's arguments apart: a step's tuples have a hundred members, and a tenth of the
    time to compile a step went into that.
    """
    decorated = _declared(function, no_cpython_wrapper=True)
    _functions.append(decorated)
    return decorated


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Like `compiled`, but its source is inlined into compiled callers.

    Every `compiled` level of a call chain optimises and generates all code below it again. So everything between the
    kernels and a worker's loop is inlined: a decoder step took 6 s to compile instead of 10 s. Inlining the kernels'
    drivers too costs more than it saves, since numba then copies their source many times.
    """
    return _declared(function, inline="always")
