"""How values are judged on a device: a result errs at most twice as much as torch's plain expression in its precision.

And how the suite checks itself: a kernel with one expression of its source replaced.
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType

import torch

from triolet.loadtest.device.gpu_case import Figures, GpuMachine, Wrong

Tensor = torch.Tensor
Run = Callable[[GpuMachine], Figures]
_numbers = itertools.count()  # a fault may be planted in a kernel that has one


def drawn(seed: int, *shape: int) -> Tensor:
    """Normal values on the current default device."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    return torch.randn(*shape, generator=generator)


def require(holds: bool, what: str) -> None:
    if not holds:
        raise Wrong(what)


def equal(found: Tensor, wanted: Tensor, what: str) -> None:
    """To the bit."""
    require(found.shape == wanted.shape and torch.equal(found, wanted), f"{what} differs")


def within(found: Tensor, wanted: Tensor, allowed: Tensor | float, what: str) -> float:
    """Every error below its bound; NaN is not. Returns the largest error."""
    error = (found.double() - wanted).abs()
    require(bool((error <= allowed).all()), f"{what} is off by {float(error.nan_to_num(torch.inf).max()):.3g}")
    return float(error.max()) if error.numel() else 0.0


def no_worse(found: Tensor, plain: Tensor, exact: Tensor) -> Figures:
    """At most twice the error of the plain expression."""
    allowed = 2 * float((plain.double() - exact).abs().max())
    error = float((found.double() - exact).abs().max())
    require(error <= allowed, f"error {error:.3g}, plain torch's rule allows {allowed:.3g}")
    return {"error": error, "allowed": allowed}


def faulty(run: Run, *faults: tuple[ModuleType, str, str, str]) -> Run:
    """The case with these faults planted."""

    def ran(machine: GpuMachine) -> Figures:
        with ExitStack() as stack:
            for planted in faults:
                stack.enter_context(fault(*planted))
            return run(machine)

    return ran


@contextmanager
def fault(module: ModuleType, name: str, old: str, new: str, *users: ModuleType) -> Generator[None]:
    """While it lasts, `module.name`, and that of `users`, is its kernel with `old` replaced by `new` in the source.

    Functions that it calls are the originals, and so are those that other modules call by its name.
    """
    kernel = getattr(module, name)
    source = inspect.getsource(kernel.fn)
    if source.count(old) != 1:
        raise ValueError(f"{old!r} occurs {source.count(old)} times in {name}: the planted fault needs a new place")
    with tempfile.TemporaryDirectory() as folder:
        title = f"planted_{name}_{next(_numbers)}"
        file = Path(folder) / f"{title}.py"
        # The kernel sees what its own module sees, private names included.
        lead = f"import sys\nglobals().update({{k: v for k, v in vars(sys.modules[{kernel.fn.__module__!r}]).items() "
        file.write_text(lead + "if not k.startswith('__')})\n" + source.replace(old, new))
        spec = importlib.util.spec_from_file_location(title, file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[title] = planted = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(planted)
        try:
            for user in (module, *users):
                setattr(user, name, getattr(planted, name))
            yield
        finally:
            for user in (module, *users):
                setattr(user, name, kernel)
            del sys.modules[title]
