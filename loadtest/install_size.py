"""The disk space of `pip install triolet` without extras: every package it installs, largest first.

    python -m triolet.loadtest.install_size

Sums the files that pip recorded, including compiled bytecode, in units of 10^6 bytes. Follows the requirements that
apply to this machine. Triolet itself counts fully only if it is not installed in editable mode.
"""

from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def distributions(requirements: Iterable[str]) -> dict[str, Distribution]:
    """All packages these need, by canonical name. Those excluded by a marker, such as extras, are left out."""
    found: dict[str, Distribution] = {}
    waiting = list(requirements)
    while waiting:
        wanted = Requirement(waiting.pop())
        name = canonicalize_name(wanted.name)
        if name in found or not (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            raise SystemExit(f"{name} is required but not installed") from None
        waiting += found[name].requires or ()
    return found


def size_of(found: Distribution) -> int:
    """Bytes of the files that were installed with it."""
    paths = (Path(str(found.locate_file(file))) for file in found.files or ())
    return sum(path.stat().st_size for path in paths if path.is_file())


def main() -> None:
    sizes = {name: size_of(found) for name, found in distributions(["triolet"]).items()}
    for name, size in sorted(sizes.items(), key=lambda item: -item[1]):
        print(f"{name:<22} {size / 1e6:7.1f} MB")
    print(f"{'together':<22} {sum(sizes.values()) / 1e6:7.1f} MB")


if __name__ == "__main__":
    main()
