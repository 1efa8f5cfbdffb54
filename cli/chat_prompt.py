"""The line editor of `triolet chat` on a terminal: history, completion, several lines, a status line.

Enter sends; Esc Enter begins a new line, and pasted lines stay lines. Ctrl-C clears the input; twice, or Ctrl-D on an
empty input, leaves.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import trio
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output

from .chat_commands import COMMANDS
from .chat_conversation import SETTINGS

PROMPT: Final = FormattedText([("bold ansicyan", "you › ")])
NEXT_LINE: Final = FormattedText([("ansicyan", "    … ")])
WRAPPED: Final = FormattedText()


class EditedLines:
    """Reads questions on a terminal.

    prompt_toolkit runs on asyncio, so it gets a thread. trio's own must go on: without --url the server runs in it.
    """

    def __init__(
        self, history: History, status: Callable[[], str], source: Input | None = None, screen: Output | None = None
    ) -> None:
        self._status = status
        self._leaving = False  # Ctrl-C was the last key
        self._cancelled = False
        self._session = PromptSession[str](
            PROMPT,
            multiline=True,
            prompt_continuation=lambda width, line, wrapped: WRAPPED if wrapped else NEXT_LINE,
            history=history,
            completer=CommandCompleter(),
            key_bindings=self._keys(),
            bottom_toolbar=self._toolbar,
            enable_open_in_editor=True,
            tempfile_suffix=".md",
            reserve_space_for_menu=4,
            input=source,
            output=screen,
        )
        self._session.default_buffer.on_text_changed += self._stay

    async def read(self, default: str = "") -> str | None:
        """What the user sends, or None when they leave. `default` is there to be edited."""
        self._cancelled = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_with_scope)
            line = await trio.to_thread.run_sync(partial(self._prompt, default))
            nursery.cancel_scope.cancel()
        return line

    def _prompt(self, default: str) -> str | None:
        try:
            return self._session.prompt(default=default, pre_run=self._end_if_cancelled)
        except EOFError:
            return None

    async def _end_with_scope(self) -> None:
        """End the prompt when the chat is cancelled, so that the terminal is left as it was found."""
        try:
            await trio.sleep_forever()
        finally:
            self._cancelled = True
            if loop := self._session.app.loop:
                with suppress(RuntimeError):  # the loop has closed: the prompt has ended
                    loop.call_soon_threadsafe(self._end_if_cancelled)

    def _end_if_cancelled(self) -> None:
        app = self._session.app
        if self._cancelled and app.is_running and not app.is_done:
            app.exit(exception=EOFError)

    def _stay(self, _: object) -> None:
        self._leaving = False

    def _toolbar(self) -> str:
        return " Ctrl-C again leaves" if self._leaving else f" {self._status()}"

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.validate_and_handle()

        @keys.add("escape", "enter")
        @keys.add("escape", "c-j")  # typed before the prompt was there, when the terminal made a line feed of Enter
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c")
        def _(event: KeyPressEvent) -> None:
            if self._leaving:
                event.app.exit(exception=EOFError)
            event.current_buffer.reset()
            self._leaving = True

        return keys


class CommandCompleter(Completer):
    """Completes commands, the names of settings after /set, and paths after /save and /load."""

    def __init__(self) -> None:
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        command, blank, rest = document.text.partition(" ")
        if not command.startswith("/") or not document.is_cursor_at_the_end:
            return
        if not blank:
            yield from (
                Completion(name, -len(command), display_meta=entry.help)
                for name, entry in COMMANDS.items()
                if name.startswith(command)
            )
        elif command == "/set" and " " not in rest:
            yield from (Completion(name, -len(rest)) for name in SETTINGS if name.startswith(rest))
        elif command in ("/save", "/load"):
            yield from self._paths.get_completions(Document(rest), complete_event)


def open_history(note: Callable[[str], object]) -> History:
    """The history that all chats of this user share: nobody else may read it. In memory where it cannot be kept."""
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    path = Path(home).expanduser() / "triolet" / "history"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.chmod(0o600)
        with path.open("ab"):
            pass
    except OSError as error:
        note(f"The history is not kept: {error}")
        return InMemoryHistory()
    return FileHistory(path)
