"""The line editor, with keys from a pipe in place of a keyboard."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from triolet.cli.chat_prompt import CommandCompleter, EditedLines, open_history

LEFT, UP, ALT_ENTER = "\x1b[D", "\x1b[A", "\x1b\r"
CTRL_C, CTRL_D = "\x03", "\x04"


@contextmanager
def _editor() -> Generator[tuple[EditedLines, PipeInput]]:
    with create_pipe_input() as keys:
        yield EditedLines(InMemoryHistory(), lambda: "status", keys, DummyOutput()), keys


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("Helo" + LEFT + "l\r", "Hello"),
        ("one" + ALT_ENTER + "two\r", "one\ntwo"),
        ("one\x1b\ntwo\n", "one\ntwo"),  # the same, typed before the prompt was there
        ("\x1b[200~one\ntwo\n\x1b[201~\r", "one\ntwo\n"),  # pasted
        ("wrong" + CTRL_C + "right\r", "right"),
        ("wrong" + CTRL_C + "x" + CTRL_C + "right\r", "right"),
        (CTRL_C + CTRL_C, None),
        ("line" + CTRL_C + CTRL_C, None),
        (CTRL_D, None),
    ],
)
async def test_keys(typed: str, expected: str | None) -> None:
    with _editor() as (lines, keys):
        keys.send_text(typed)
        assert await lines.read() == expected


async def test_earlier_lines_and_a_line_to_edit() -> None:
    with _editor() as (lines, keys):
        keys.send_text("one\r")
        assert await lines.read() == "one"
        keys.send_text("more\r")
        assert await lines.read("and ") == "and more"
        keys.send_text(UP + UP + "!\r")
        assert await lines.read() == "one!"


async def test_a_prompt_ends_with_the_task_that_waits_for_it() -> None:
    with _editor() as (lines, keys):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lines.read)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        keys.send_text("again\r")
        assert await lines.read() == "again"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/s", ["/system", "/set", "/save", "/stats"]),
        ("/set top", ["top_p", "top_k"]),
        ("hello", []),
        ("", []),
        ("/set top_p 0", []),
    ],
)
def test_completion(text: str, expected: list[str]) -> None:
    found = CommandCompleter().get_completions(Document(text), CompleteEvent())
    assert [completion.text for completion in found] == expected


def test_a_file_to_load_is_completed(tmp_path: Path) -> None:
    (tmp_path / "monday.json").touch()
    found = CommandCompleter().get_completions(Document(f"/load {tmp_path}/mon"), CompleteEvent())
    assert [completion.text for completion in found] == ["day.json"]


def test_nobody_else_can_read_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "state" / "triolet" / "history"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    notes: list[str] = []
    history = open_history(notes.append)
    assert isinstance(history, FileHistory)
    history.append_string("a question")
    assert "a question" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    assert notes == []


def test_a_history_that_cannot_be_kept_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    notes: list[str] = []
    assert isinstance(open_history(notes.append), InMemoryHistory)
    assert notes[0].startswith("The history is not kept: ")
