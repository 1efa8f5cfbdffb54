"""`triolet chat` on a real pseudo-terminal, with a real server: what is typed, and what is then in the saved file."""

import json
import os
import re
import select
import subprocess
import sys
import termios
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from ..conftest import Server

TRIOLET = str(Path(sys.executable).with_name("triolet"))
# Makes the terminal the process's own, so that Ctrl-C becomes a signal.
OWN_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
HANGS_SECONDS = 60.0
LEFT, ALT_ENTER, CTRL_C, CTRL_D = "\x1b[D", "\x1b\r", "\x03", "\x04"
PROMPT, ANSWERED = "you ›", r"\d+ tokens, first after"


class Terminal:
    """The user's side of the terminal."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self._descriptor = descriptor
        self.process = process
        self._shown = ""

    def type(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def wait_for(self, pattern: str) -> None:
        """Read the screen until the pattern comes, after what was waited for before."""
        while not (found := re.search(pattern, self._shown)):
            readable, _, _ = select.select([self._descriptor], [], [], HANGS_SECONDS)
            assert readable, f"{pattern!r} did not come, but {self._shown!r}"
            data = os.read(self._descriptor, 65536).decode(errors="replace")
            shown = self._shown + data
            self.type("\x1b[1;1R" * shown.count("\x1b[6n"))  # where the cursor is, as terminals answer when asked
            self._shown = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", shown)
        self._shown = self._shown[found.end() :]


@contextmanager
def _chat(state: Path, *options: str) -> Generator[Terminal]:
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    environment = {**os.environ, "TERM": "xterm", "XDG_STATE_HOME": str(state)}
    command = [sys.executable, "-c", OWN_TERMINAL, TRIOLET, "chat", *options]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env=environment
    ) as process:
        os.close(theirs)
        try:
            yield Terminal(ours, process)
        finally:
            process.kill()
            os.close(ours)


def test_a_conversation_as_it_is_typed(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    with _chat(tmp_path, "--url", server.url, "--temperature", "0") as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("What is 123 + 45" + "7" + LEFT + "\x1b[3~" + "6?\r")  # the 7 is deleted
        terminal.wait_for("579")
        terminal.wait_for(ANSWERED)
        terminal.wait_for(PROMPT)
        terminal.type("/retry\r")
        terminal.wait_for(ANSWERED)
        terminal.wait_for(PROMPT)

        terminal.type("/set ignore_eos true\r")  # an answer that runs until the context is full
        terminal.wait_for("temperature 0.0\r\nignore_eos true")
        terminal.wait_for(PROMPT)
        terminal.type("One" + ALT_ENTER + "Two\r")
        terminal.wait_for("… Two")
        terminal.wait_for(r"\w\r\n")  # of the answer: the prompt ends its lines otherwise
        terminal.type(CTRL_C)
        terminal.wait_for("ended by cancelled")
        terminal.wait_for(PROMPT)

        terminal.type("/set temperature 3\r")
        terminal.wait_for("temperature: Expected `float` <= 2.0")
        terminal.wait_for(PROMPT)
        terminal.type(f"/save {file}\r")
        terminal.wait_for("saved 4 messages")
        terminal.wait_for(PROMPT)
        terminal.type("wrong" + CTRL_C)
        terminal.wait_for(r"Ctrl-C\s*again\s*leaves")  # only what differs from the line before is drawn
        terminal.type(CTRL_D)
        assert terminal.process.wait(HANGS_SECONDS) == 0

    messages = json.loads(file.read_text())["messages"]
    assert [message["content"] for message in messages if message["role"] == "user"] == [
        "What is 123 + 456?",
        "One\nTwo",
    ]
    assert messages[1]["content"].endswith("579.")
    assert messages[3]["content"]  # the stopped answer's text stays
