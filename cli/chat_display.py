"""Where a chat's answers and notes go: rendered on a terminal; elsewhere plain, with notes on standard error."""

import termios
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from time import perf_counter
from typing import Final, Protocol

import click
import trio
from rich.console import Console
from rich.live import Live
from rich.text import Text

from .chat_markdown import Rendered, harmless, split_finished

REDRAW_SECONDS: Final = 0.08  # between two redraws; more often is not seen
REDRAW_SHARE: Final = 0.1  # of the time, for redraws: a block of many thousand lines is drawn less often


class Display(Protocol):
    def note(self, text: str) -> None: ...
    def error(self, text: str) -> None: ...
    def answer(self) -> AbstractAsyncContextManager[Callable[[str], object]]:
        """Inside, call it with each piece of an answer."""
        ...


class PlainDisplay:
    """For programs and files: answers on standard output, all else on standard error."""

    def note(self, text: str) -> None:
        click.echo(text, err=True)

    error = note

    @asynccontextmanager
    async def answer(self) -> AsyncGenerator[Callable[[str], object]]:
        try:
            yield lambda text: click.echo(harmless(text), nl=False)
        finally:
            click.echo()


class TerminalDisplay:
    """For people: Markdown that is drawn while it comes."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)

    def note(self, text: str) -> None:
        self._console.print(Text(harmless(text), style="dim"))

    def error(self, text: str) -> None:
        self._console.print(Text(harmless(text), style="red"))

    @asynccontextmanager
    async def answer(self) -> AsyncGenerator[Callable[[str], object]]:
        drawing = GrowingAnswer(self._console)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(drawing.keep_drawn)
                yield drawing.add
                nursery.cancel_scope.cancel()
        finally:
            drawing.close()


class GrowingAnswer:
    """Draws an answer while it grows: finished blocks once, the last one again and again."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._text = ""  # that is not printed for good
        self._new: list[str] = []
        self._news = trio.Event()
        self._live = Live(
            console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._live.start()

    def add(self, text: str) -> None:
        self._new.append(harmless(text))
        self._news.set()

    async def keep_drawn(self) -> None:
        while True:
            await self._news.wait()
            self._news = trio.Event()
            began = perf_counter()
            self.draw()
            await trio.sleep(max(REDRAW_SECONDS, (perf_counter() - began) / REDRAW_SHARE))

    def draw(self) -> None:
        """Print the blocks that are finished since, and draw the last one."""
        self._take_new()
        finished, self._text = split_finished(self._text)
        if finished.strip():
            self._live.update(Text(), refresh=True)
            self._console.print(Rendered(finished), Text(), sep="")
        self._live.update(Rendered(self._text, fitting=True), refresh=True)

    def close(self) -> None:
        """Print the rest for good. Nothing can be added afterwards."""
        self._take_new()
        self._live.update(Text(), refresh=True)
        self._live.stop()
        if self._text.strip():
            self._console.print(Rendered(self._text), end="")

    def _take_new(self) -> None:
        self._text += "".join(self._new)
        self._new.clear()


@contextmanager
def no_echo(descriptor: int) -> Generator[None]:
    """Keep what is typed while no prompt is there for the next one. An echo would break the lines that are drawn."""
    before = termios.tcgetattr(descriptor)
    without = [*before]
    without[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSANOW, without)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)
