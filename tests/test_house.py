"""The rules of the house, read from the syntax tree: who may import whom, how long a file is, what a text may not say.

Nothing of ours is imported here: a rule is checked whether or not a module can run on this machine.
"""

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from .house_rules import (
    DEVICE_LIBRARIES,
    FOLDERS,
    FRONT,
    IMPURE_LIBRARIES,
    IMPURE_NAMES,
    MAY_BE_IMPURE,
    MAY_IMPORT,
    MAY_USE_DEVICE_LIBRARIES,
    NOT_HIDDEN,
    PURE,
)

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 400


class Import(NamedTuple):
    """One imported name, absolute (of ours without `triolet.`), and whether importing the file runs it."""

    name: str
    ours: bool
    at_top: bool
    line: int


def _absolute(module: str, node: ast.ImportFrom) -> str:
    """The full name behind a relative import: `.plan` in `actors.engine` is `triolet.actors.scheduler.plan`."""
    parts = ["triolet", *module.split(".")]
    base = parts[: len(parts) - node.level]
    return ".".join([*base, node.module] if node.module else base)


def imports_of(module: str, tree: ast.Module) -> Iterator[Import]:
    """Every import in a module, those inside functions and `import_module("…")` calls included."""

    def name_of(full: str, at_top: bool, line: int) -> Import:
        ours = full == "triolet" or full.startswith("triolet.")
        return Import(full.removeprefix("triolet.") if ours else full, ours, at_top, line)

    def walk(node: ast.AST, at_top: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.Import(names=names):
                    for alias in names:
                        yield name_of(alias.name, at_top, child.lineno)
                case ast.ImportFrom():
                    source = _absolute(module, child) if child.level else child.module or ""
                    for alias in child.names:
                        yield name_of(f"{source}.{alias.name}", at_top, child.lineno)  # a module, or a name in one
                case ast.Call(func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__")):
                    for argument in child.args[:1]:
                        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                            yield name_of(argument.value, False, child.lineno)
                case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                    yield from walk(child, False)
                    continue
                case _:
                    pass
            inside_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from walk(child, at_top and not inside_function)

    yield from walk(tree, True)


def _within(name: str, prefixes: Iterable[str]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def is_pure(module: str, tree: ast.Module) -> bool:
    return _within(module, PURE) or bool(re.search(r"\bPure\b", ast.get_docstring(tree) or ""))


def impurities(module: str, tree: ast.Module) -> Iterator[str]:
    """What a pure module must not touch and does: imports, and calls such as `os.urandom`."""
    allowed = MAY_BE_IMPURE.get(module, set[str]())
    for imported in imports_of(module, tree):
        root = imported.name.split(".")[0]
        hidden = root in IMPURE_LIBRARIES - allowed and imported.name not in NOT_HIDDEN
        if not imported.ours and (hidden or imported.name in IMPURE_NAMES):
            yield f"{module.replace('.', '/')}.py:{imported.line}: this file is pure and knows no {imported.name}"
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if f"{owner}.{name}" in IMPURE_NAMES:
                yield f"{module.replace('.', '/')}.py:{node.lineno}: this file is pure and knows no {owner}.{name}"
            case _:
                pass


@cache
def parsed(source: str) -> ast.Module:
    """Most rules read the same files."""
    return ast.parse(source)


def violations(module: str, source: str) -> list[str]:
    """What a module (`actors.engine`) with this source does against the rules, one sentence each."""
    rule = max((key for key in MAY_IMPORT if _within(module, [key])), key=len)
    tree = parsed(source)
    found = list(impurities(module, tree)) if is_pure(module, tree) else []
    for imported in imports_of(module, tree):
        where = f"{module.replace('.', '/')}.py:{imported.line}"
        root = imported.name.split(".")[0]
        if imported.ours:
            if not _within(imported.name, MAY_IMPORT[rule]):
                found.append(f"{where}: {rule} may not import triolet.{imported.name}")
        elif root == "asyncio":
            found.append(f"{where}: asyncio is not used here; trio is")
        elif root in DEVICE_LIBRARIES and not _within(module, MAY_USE_DEVICE_LIBRARIES):
            found.append(f"{where}: {root} belongs in {', '.join(MAY_USE_DEVICE_LIBRARIES)}")
        elif root in FOLDERS:
            found.append(f"{where}: import {imported.name} relatively, or as triolet.{imported.name}")
    return found


def modules() -> dict[str, Path]:
    """Every module of the package by its name without `triolet.`."""
    paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}


def texts() -> list[Path]:
    """Every file that people read: sources, tests, pages and documents, but no third-party and no built files."""
    own = [path for folder in (*FOLDERS, "tests", "docs", ".github") for path in (ROOT / folder).rglob("*")]
    kinds = {".py", ".md", ".toml", ".js", ".css", ".html", ".jinja", ".yml"}
    named = [ROOT / name for name in ("README.md", "CHANGELOG.md", "Makefile", "pyproject.toml", ".ci/run")]
    kept = [path for path in own if path.suffix in kinds and not {"vendor", "node_modules"} & {*path.parts}]
    return [path for path in (*kept, *named) if path.is_file()]


def test_imports_point_one_way() -> None:
    found = [line for name, path in modules().items() for line in violations(name, path.read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("protocol.events", "from ..actors import engine"),
        ("protocol.events", "import trio"),
        ("kernels.gemm.cpu", "from ...models.spec import ModelSpec"),
        ("models.decoder", "def load():\n    import trio"),
        ("models.decoder", "from ..protocol.messages import WorkerReady"),
        ("models.steps.steps", "from ..cpu.rows import Batch"),
        ("models.cpu.rows", "def lazily():\n    from ..gpu.packet import Packet"),
        ("actors.executor.executor", "from ...models.cpu.stepper import CpuStepper"),
        ("actors.engine", "from ..models.load import load_model"),
        ("actors.scheduler.plan", "import trio.lowlevel"),
        ("actors.scheduler.plan", "from ..gateway import gateway"),
        ("actors.scheduler.plan", "from ..turns import waiting"),
        ("actors.scheduler.state", "import secrets"),
        ("actors.scheduler.state", "import os\nos.urandom(32)"),
        ("actors.scheduler.state", "from os import urandom"),
        ("actors.scheduler.scheduler", "from time import monotonic"),
        ("actors.gateway.credit", '"""Credit. Pure."""\nimport trio'),
        ("models.steps.rows", "from random import Random, random"),
        ("actors.gateway.gateway", "def lazily():\n    import torch"),
        ("actors.gateway.gateway", "importlib.import_module('numba')"),
        ("web.app", "from ..actors.scheduler.scheduler import run_scheduler"),
        ("web.app", "from ..actors import scheduler"),
        ("web.app", "import asyncio"),
        ("web.generation.generation", "from ..openai.decode import decode"),
        ("web.openai.openai", "from ..asgi import Application"),
        ("web.transport.http1", "from ..openai import openai"),
        ("web.routes.stream", "from ..transport.connection import Connection"),
        ("cli.serve", "from protocol.settings import ServeSettings"),
        ("loadtest.accuracy", "from triolet.actors.engine import Engine"),
    ],
)
def test_a_planted_import_is_found(module: str, source: str) -> None:
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("actors.executor.worker", "def load():\n    from ...models.load import load_model\n    import torch"),
        ("web.app", "from ..actors.observe.server import Server\nfrom ..actors.gateway import gateway"),
        ("loadtest.device.cpu_step", "from triolet.kernels.gemm import cpu\nimport numba"),
        ("models.load", "from .checkpoint.spec import ModelSpec\nfrom ..kernels.rope import reference"),
        ("actors.scheduler.scheduler", "import trio\nfrom ..turns import waiting"),
        ("actors.gateway.places", "import trio"),
        ("loadtest.serve.mix", '"""A mix. Pure."""\nfrom random import Random'),
    ],
)
def test_what_is_allowed_is_not_reported(module: str, source: str) -> None:
    assert violations(module, source) == []


def _at_top() -> dict[str, set[str]]:
    """Of every module, the names that importing it imports; of ours the module behind the name."""
    sources = modules()
    found: dict[str, set[str]] = {}
    for module, path in sources.items():
        names = {imported.name for imported in imports_of(module, parsed(path.read_text())) if imported.at_top}
        found[module] = {parent if (parent := name.rpartition(".")[0]) in sources else name for name in names}
    return found


def _reached(start: str, imports: dict[str, set[str]]) -> dict[str, str]:
    """Names that importing `start` imports too, each with the module that does it."""
    seen: dict[str, str] = {}
    waiting = [start]
    while waiting:
        module = waiting.pop()
        for name in imports[module] - seen.keys():
            seen[name] = module
            if name in imports:
                waiting.append(name)
    return seen


def test_the_front_process_never_imports_a_device_library() -> None:
    """Nor numpy at its start: 11 MB and a tenth of the time."""
    imports, heavy = _at_top(), {"numpy", *DEVICE_LIBRARIES}
    for start in FRONT:
        found = {name: by for name, by in _reached(start, imports).items() if name.split(".")[0] in heavy}
        assert not found, f"{start} imports by way of {found}"


def test_a_device_library_is_found_behind_another_module() -> None:
    imports = {"cli.main": {"web.app"}, "web.app": {"models.load", "trio"}, "models.load": {"torch.cuda"}}
    assert _reached("cli.main", imports)["torch.cuda"] == "models.load"


def test_modules_are_portions_of_one_namespace() -> None:
    """An `__init__.py` in `kernels/` would shadow other people's `kernels` wherever the checkout is on the path."""
    assert [path for folder in FOLDERS for path in (ROOT / folder).rglob("__init__.py")] == []


def test_files_fit_in_the_head() -> None:
    sources = [*modules().values(), *(ROOT / "tests").rglob("*.py")]
    long = {str(path.relative_to(ROOT)): n for path in sources if (n := len(path.read_text().splitlines())) > MAX_LINES}
    assert not long, f"over {MAX_LINES} lines (is each one idea?): {long}"


def test_every_module_states_its_contract() -> None:
    silent = [name for name, path in modules().items() if ast.get_docstring(parsed(path.read_text())) is None]
    assert not silent, f"no module docstring: {silent}"


UNWANTED = {
    "a path of somebody's machine": re.compile(r"(?<![\w.])/(?:work|root|home|Users|opt)/[\w.]+/"),
    "a number of an issue of ours": re.compile(r"\b[Ii]ssue #?\d+\b"),
    "a note to do something later": re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b"),
}


def test_texts_speak_to_any_reader() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {what}: {line.strip()[:80]}"
        for path in texts()
        if path != Path(__file__).resolve()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for what, pattern in UNWANTED.items()
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)


@cache
def classes() -> dict[str, list[str]]:
    """The modules of every class name."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, path in modules().items():
        for node in ast.walk(parsed(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(name)
    return found


def test_classes_are_named_for_what_they_are() -> None:
    vague = re.compile(r"(?:Manager|Helper|Helpers|Utils|Base|Impl)$")
    found = {name: where for name, where in classes().items() if vague.search(name)}
    assert not found, found


def test_a_class_name_means_one_thing() -> None:
    """So that "go to definition" and a search for a name have one answer."""
    shared = {name: where for name, where in classes().items() if len(where) > 1}
    assert not shared, shared


PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


def missing_paths(page: Path, text: str) -> list[str]:
    """What a page names and the repository lacks: paths in backticks from the root, links from the page's folder."""
    named = re.findall(rf"`((?:{'|'.join((*FOLDERS, 'tests', 'docs'))})/[\w./-]*)`", text)
    linked = re.findall(r"\]\((?!https?://|#)([^)#]+)", text)
    paths = {path: ROOT / path for path in named} | {path: page.parent / path for path in linked}
    return sorted(name for name, path in paths.items() if not path.exists())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_files_that_exist(page: Path) -> None:
    missing = missing_paths(page, page.read_text())
    assert not missing, f"{page.name} names {missing}"


def test_a_planted_path_is_found() -> None:
    page = ROOT / "docs/sampling.md"
    text = "`kernels/gemm/`, `kernels/gone.py`, [a page](sampling.md), [another](gone.md#part), [web](https://gone.md)"
    assert missing_paths(page, text) == ["gone.md", "kernels/gone.py"]


def test_the_architecture_page_tells_the_way_of_one_request() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    section = re.search(r"^## One request's way$(.*?)(?=^## )", page, re.M | re.S)
    assert section, "docs/architecture.md has no section on one request's way"
    files = set(re.findall(r"`([\w/]+\.py)`", section.group(1)))
    assert len(files) >= 8, f"one request's way names only {sorted(files)}"
    assert {path.split("/")[0] for path in files} >= {"web", "actors", "models", "kernels"}


def test_exact_versions_lie_within_the_bounds() -> None:
    """`constraints.txt` pins every direct dependency, at a version that pyproject.toml allows."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    pins = {
        canonicalize_name(name): version
        for name, version in re.findall(r"^([^#\n]+)==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = map(Requirement, (*project["dependencies"], *project["optional-dependencies"]["test"]))
    wrong = [
        str(need)
        for need in wanted
        if (pin := pins.get(canonicalize_name(need.name))) is None or not need.specifier.contains(pin)
    ]
    assert not wrong, f"constraints.txt has no version for {wrong}"
