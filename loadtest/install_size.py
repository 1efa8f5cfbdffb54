"""What `pip install triolet`, without extras, takes on disk: every package it pulls, largest first.

    python -m triolet.loadtest.install_size

Sizes of files as pip recorded them, compiled bytecode included, in units of 10^6 bytes. Follows the requirements that
hold on this machine; Triolet itself counts fully only where it is not installed in editable mode.
"""

from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def distributions(requirements: Iterable[str]) -> dict[str, Distribution]:
    """All that these need, by canonical name. What a marker excludes, an extra among them, is left out."""
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
