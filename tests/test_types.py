"""What type checkers may pass over: files that are compiled, and lines that say why."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("protocol", "kernels", "models", "actors", "web", "cli", "loadtest", "tests")


ELSEWHERE = "tests/clients/programs/*.py"  # they run where clients of other projects are installed


def test_only_compiled_files_escape_the_type_checker() -> None:
    checker = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["basedpyright"]
    assert set(checker["include"]) == set(FOLDERS)
    compiled = re.compile(r"^\s*@(jit|emulates|compiled|inner)\b|^from llvmlite import", re.MULTILINE)
    for pattern in checker["exclude"]:
        files = [*ROOT.glob(pattern)]
        assert files, f"{pattern} excludes nothing"
        for file in files:
            assert pattern == ELSEWHERE or compiled.search(file.read_text()), f"{file} has nothing that is compiled"


def unexplained(text: str) -> list[str]:
    """Lines on which a type checker is told to look away, without a reason behind it."""
    bare = re.compile(r"# (type|pyright): ignore(\[[\w, -]*\])?\s*(#\s*noqa(:[\w, ]*)?\s*)?($|#\s*$)")
    return [line for line in text.splitlines() if bare.search(line)]


def test_an_ignored_line_says_why() -> None:
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    found = {str(file): lines for file in files if (lines := unexplained(file.read_text()))}
    assert not found, found


def test_an_unexplained_line_is_found() -> None:
    assert unexplained("x = y()  # type: " + "ignore[misc]")
    assert unexplained("x = y()  # pyright: " + "ignore")
    assert unexplained("x = y()  # type: " + "ignore[misc]  # noqa")
    assert unexplained("x = y()  # type: " + "ignore[misc]  # noqa: E501")
    assert not unexplained("x = y()  # type: " + "ignore[misc]  # untyped in theirs")
    assert not unexplained("x = y()  # type: " + "ignore[misc]  # noqa: E501 - untyped in theirs")
