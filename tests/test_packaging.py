"""What is distributed. The wheel holds `triolet/…` and nothing else: every module, the page, the bundled model and the
type markers. The source distribution holds what git does, makes the same wheel and passes its own tests.
"""

import ast
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from triolet.loadtest.install_size import distributions, size_of

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("actors", "cli", "kernels", "loadtest", "models", "protocol", "web")
DEVELOPERS_ONLY = (
    "loadtest/device",
    "loadtest/structured",
    "models/demo/training",
)  # run from a checkout; not in the wheel

# Millions of bytes that serving on a CPU pulls in with the pinned versions: 371 (LLVM 180, numpy 71, llguidance 12).
MOST_MEGABYTES = 385


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


def _installed(path: Path) -> Path:
    """Where a module is in the wheel: `cli/entry` is the package `triolet` itself, all others keep their folder."""
    return Path("triolet", path.relative_to("cli/entry") if path.is_relative_to("cli/entry") else path)


def test_every_folder_with_modules_is_listed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert listed == sorted(listed)
    assert set(listed) == {".".join(_installed(path).parent.parts) for path in _shipped()}


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


def _run(*command: str, cwd: Path, **variables: str) -> None:
    environment = {**os.environ, **variables}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked. Built from links, since setuptools leaves `build/` and `*.egg-info` behind."""
    checkout, target = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("sdist")
    for path in ROOT.iterdir():
        if path.name not in (".git", ".venv", "build", "dist") and path.suffix != ".egg-info":
            (checkout / path.name).symlink_to(path)
    build = f"import setuptools.build_meta as backend; backend.build_sdist({str(target)!r})"
    _run(sys.executable, "-c", build, cwd=checkout)
    (packed,) = target.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(target, filter="data")
    return target / "triolet-0.1.0"


def test_the_systemd_unit_is_valid_and_sandboxed(tmp_path: Path) -> None:
    if (systemd := shutil.which("systemd-analyze")) is None:
        pytest.skip("no systemd-analyze command here")
    unit, text = tmp_path / "triolet.service", (ROOT / "packaging/triolet.service").read_text()
    unit.write_text(text.replace("/usr/local/lib/triolet/bin/triolet", "/bin/true"))  # what is installed here
    _run(systemd, "verify", "--man=no", str(unit), cwd=tmp_path)
    _run(systemd, "security", "--offline=true", "--threshold=20", str(unit), cwd=tmp_path)  # tenths of its exposure


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the source distribution makes."""
    target = tmp_path_factory.mktemp("wheel")
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(target))
    _run(sys.executable, "-m", "pip", "wheel", *options, str(sources), cwd=target)
    (wheel,) = target.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel_names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_source_distribution_passes_its_own_tests(sources: Path, wheel: Path, tmp_path: Path) -> None:
    """Some of them: those that need no server. The wheel is what they import."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    tests = ("tests/protocol", "tests/actors/gateway")
    _run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, cwd=sources, PYTHONPATH=str(tmp_path))


def test_the_source_distribution_has_what_git_has(sources: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    names = [name for name in listed.stdout.split("\0") if name and not name.startswith((".typing/", ".gitignore"))]
    assert [name for name in names if not (sources / name).exists()] == []


def test_the_wheel_is_for_linux_on_this_machine_and_describes_itself(wheel: Path) -> None:
    assert wheel.name == f"triolet-0.1.0-py3-none-manylinux2014_{platform.machine()}.whl"
    metadata = message_from_bytes(zipfile.ZipFile(wheel).read("triolet-0.1.0.dist-info/METADATA"))
    assert metadata["Author"] == "Triolet contributors"
    assert metadata["License-Expression"] == "Apache-2.0"
    workflow = (ROOT / ".github/workflows/test.yml").read_text()
    tried = re.findall(r'"(3\.\d+)"', workflow.partition("matrix:")[2].partition("]")[0])
    minors = [kind.rpartition(" ")[2] for kind in metadata.get_all("Classifier", []) if "Python :: 3." in kind]
    assert tried == minors
    links = re.findall(r"\]\(([^)]+)\)", str(metadata.get_payload()))
    assert [link for link in links if "://" not in link] == []  # an index shows this page without our files


def test_the_wheel_takes_one_name_in_site_packages(wheel_names: set[str]) -> None:
    assert {name.split("/")[0] for name in wheel_names} == {"triolet", "triolet-0.1.0.dist-info"}


def test_the_wheel_holds_every_module(wheel_names: set[str]) -> None:
    assert {str(_installed(path)) for path in _shipped()} - wheel_names == set()


def test_the_wheel_holds_what_serving_needs_besides(wheel_names: set[str]) -> None:
    files = [path for path in (ROOT / "web/page").rglob("*") if path.is_file() and path.name != "renew.sh"]
    page = {f"triolet/web/page/{path.relative_to(ROOT / 'web/page').as_posix()}" for path in files}
    checkpoint = {f"triolet/models/demo/checkpoint/{path.name}" for path in (ROOT / "models/demo/checkpoint").iterdir()}
    assert page >= {"triolet/web/page/index.html", "triolet/web/page/vendor/temml/LICENSE"}
    assert {Path(name).name for name in checkpoint} >= {"config.json", "model.safetensors", "tokenizer.json"}
    markers = {f"triolet/{folder}/py.typed" for folder in FOLDERS}
    assert (page | checkpoint | markers) - wheel_names == set()


def test_the_wheel_leaves_measurements_and_tests_out(wheel_names: set[str]) -> None:
    unwanted = ("/results/", "/tests/", *DEVELOPERS_ONLY)
    assert not [name for name in wheel_names if any(part in name for part in unwanted)]
