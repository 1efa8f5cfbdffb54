"""Where numba keeps a kernel's machine code: by the kernel's place in this folder, wherever the folder is installed.

numba's own locators ask for the absolute path and the time of the source file. So each virtual environment and each
installation of the same version would compile everything again. Here the cache folder's name already stands for all
sources (compile_cache.py). Only functions of this folder are located so; numba's next locator takes all others.
"""

from pathlib import Path
from typing import Any

from numba.core.caching import UserProvidedCacheLocator

from .compile_cache import prepare_compile_cache

_ROOT = Path(__file__).resolve().parent


class KernelLocator(UserProvidedCacheLocator):
    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Any:  # Any: numba is untyped
        return super().from_function(py_func, py_file) if Path(py_file).resolve().is_relative_to(_ROOT) else None

    def get_cache_path(self) -> str:
        file: str = self._py_file  # pyright: ignore[reportUnknownMemberType]  # numba is untyped
        return str(prepare_compile_cache() / Path(file).resolve().parent.relative_to(_ROOT))

    def get_source_stamp(self) -> bytes:
        return b""
