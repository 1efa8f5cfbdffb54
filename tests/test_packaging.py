"""The wheel holds `triolet/…` and nothing else: every module, the page, the bundled model and the type markers."""

import ast
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from triolet.loadtest.install_size import distributions, size_of

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("actors", "cli", "kernels", "loadtest", "models", "protocol", "web")
DEVELOPERS_ONLY = ("loadtest/device", "models/demo/training")  # run from a checkout; not in the wheel

# Millions of bytes that serving on a CPU pulls in: 354 with the pinned versions (LLVM 180, numpy 71), Triolet apart.
MOST_MEGABYTES = 370


def test_serving_on_a_cpu_pulls_in_no_more_than_it_says() -> None:
    found = distributions(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])
    assert found.keys() & {"torch", "triton", "transformers", "safetensors", "pytest"} == set()
    assert {"numba", "numpy", "tokenizers", "trio"} <= found.keys()  # or the walk is broken
    sizes = {name: size_of(each) / 1e6 for name, each in found.items()}
    assert sum(sizes.values()) <= MOST_MEGABYTES, sizes


def _shipped() -> set[Path]:
    """Every module that the wheel must hold, relative to the root."""
    paths = (path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return {path for path in paths if not str(path).startswith(DEVELOPERS_ONLY)}


def test_every_folder_with_modules_is_listed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert listed == sorted(listed)
    assert set(listed) == {".".join(("triolet", *path.parent.parts)) for path in _shipped()}


def names_developers_only(path: Path, text: str) -> list[str]:
    """Modules outside the wheel that a module imports or starts with `python -m`. A docstring may name them."""
    tree = ast.parse(text)
    folders = [f"triolet.{folder.replace('/', '.')}" for folder in DEVELOPERS_ONLY]
    package = ["triolet", *path.parent.parts]
    found: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found += [alias.name for alias in names]
            case ast.ImportFrom(module=module, level=level, names=names):
                base = ".".join([*package[: len(package) + 1 - level], *([module] if module else [])])
                found += [f"{base if level else module}.{alias.name}" for alias in names]
            case ast.Constant(value=str(value)) if " " not in value:
                found.append(value)
            case _:
                pass
    return [name for name in found if any(f"{name}.".startswith(f"{folder}.") for folder in folders)]


def test_what_ships_uses_nothing_that_does_not() -> None:
    found = {path: names_developers_only(path, (ROOT / path).read_text()) for path in _shipped()}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "line",
    [
        "import triolet.loadtest.device.gpu_suite",
        "from triolet.loadtest.device import gpu_suite",
        "from ..device import cpu_step",
        "from ..device.cpu_step import REFERENCE",
        'command = [python, "-m", f"triolet.loadtest.device.{program}"]',
    ],
)
def test_the_rule_sees_an_import_and_a_command(line: str) -> None:
    assert names_developers_only(Path("loadtest/compare/page.py"), line)
    assert not names_developers_only(Path("loadtest/compare/page.py"), line.replace("device", "devices"))


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names in a wheel built from a copy: setuptools leaves `build/` and `*.egg-info` where it runs."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in (*FOLDERS, "pyproject.toml", "README.md", "LICENSE"):
        (source / name).symlink_to(ROOT / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    built = subprocess.run(
        [*command, "--wheel-dir", str(target), str(source)], capture_output=True, text=True, timeout=120
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = target.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_takes_one_name_in_site_packages(wheel_names: set[str]) -> None:
    assert {name.split("/")[0] for name in wheel_names} == {"triolet", "triolet-0.1.0.dist-info"}


def test_the_wheel_holds_every_module(wheel_names: set[str]) -> None:
    assert {f"triolet/{path}" for path in _shipped()} - wheel_names == set()


def test_the_wheel_holds_what_serving_needs_besides(wheel_names: set[str]) -> None:
    page = {f"triolet/web/page/{path.name}" for path in (ROOT / "web/page").iterdir() if path.is_file()}
    checkpoint = {f"triolet/models/demo/checkpoint/{path.name}" for path in (ROOT / "models/demo/checkpoint").iterdir()}
    assert "triolet/web/page/index.html" in page
    assert {Path(name).name for name in checkpoint} >= {"config.json", "model.safetensors", "tokenizer.json"}
    markers = {f"triolet/{folder}/py.typed" for folder in FOLDERS}
    assert (page | checkpoint | markers) - wheel_names == set()


def test_the_wheel_leaves_measurements_and_tests_out(wheel_names: set[str]) -> None:
    unwanted = ("/results/", "/tests/", *DEVELOPERS_ONLY)
    assert not [name for name in wheel_names if any(part in name for part in unwanted)]
