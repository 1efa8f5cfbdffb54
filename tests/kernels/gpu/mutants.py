"""Kernels with a planted fault: the same source with one expression replaced. A test that passes them is no test."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any


def mutated(kernel: Any, old: str, new: str, folder: Path) -> Any:  # Any: what triton.jit returns
    """The kernel with `old` replaced by `new` in its source, everything else of its module unchanged.

    Only the kernel itself is replaced: functions that it calls are the originals, functions that call it keep calling
    the original.
    """
    source = inspect.getsource(kernel.fn)
    count = source.count(old)
    if count != 1:
        raise ValueError(f"{old!r} occurs {count} times in {kernel.fn.__name__}: name it more closely")
    name = f"mutant_{kernel.fn.__name__}_{abs(hash((old, new)))}"
    origin = kernel.fn.__module__
    file = folder / f"{name}.py"
    # Star-import leaves out names with an underscore: take the module's dictionary.
    header = (
        "import sys\n"
        f"names = vars(sys.modules[{origin!r}])\n"
        "globals().update({name: value for name, value in names.items() if not name.startswith('__')})\n"
    )
    file.write_text(header + source.replace(old, new))
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return getattr(module, kernel.fn.__name__)
