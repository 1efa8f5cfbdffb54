"""The wheel holds `triolet/…` and nothing else: every module, the page, the bundled model and the type markers."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from triolet.loadtest.install_size import distributions, size_of

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("actors", "cli", "kernels", "loadtest", "models", "protocol", "web")
DEVELOPERS_ONLY = ("models/demo/training",)  # run from a checkout; not in the wheel

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
