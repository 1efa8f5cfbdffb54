"""Every message in docs/troubleshooting.md is one that the sources have."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("actors", "cli", "kernels", "models", "protocol", "web")
MESSAGES = re.findall(r"^### `(.+)`$", (ROOT / "docs/troubleshooting.md").read_text(), re.M)


def _strings(tree: ast.AST) -> Iterator[str]:
    """Texts of the source, with `…` for what an f-string puts in."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)):
                yield text
            case ast.JoinedStr(values=values):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in values)
            case _:
                pass


@cache
def sources() -> str:
    """All of them, one a line."""
    paths = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return "\n".join(" ".join(text.split()) for path in paths for text in _strings(ast.parse(path.read_text())))


def in_the_sources(message: str) -> bool:
    """Whether every part between `…` stands in the sources, in one text and in this order, or each in one of its own.

    A message may be put together from several: a sentence and its remedy.
    """
    parts = [part.strip() for part in message.split("…") if re.search(r"\w{2}", part)]
    together = re.search("[^\n]*".join(map(re.escape, parts)), sources())
    return bool(together) or all(len(part) > 20 and part in sources() for part in parts)


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_one_of_the_sources(message: str) -> None:
    assert in_the_sources(message)


def test_there_are_messages_and_a_planted_one_is_found() -> None:
    assert len(MESSAGES) > 25
    assert not in_the_sources("no folder …: MODEL is a checkpoint file; models are not fetched by name yet")
