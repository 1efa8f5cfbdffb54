"""How a server tells `triolet upgrade` of what it does: lines in a file that the command has made beside the server's
stack file. Where there is none, nobody asked but by SIGHUP, and the log says it all.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

SUFFIX: Final = ".upgrade"
BEGUN: Final = "begun"
DONE: Final = "done"
FAILED: Final = "failed"
_LOG: Final = logging.getLogger("triolet.upgrade")


class UpgradeNotes:
    """Tells of one attempt after another. Each line has its number, so that nobody takes another one's end for his."""

    def __init__(self, stacks: Path | None) -> None:
        self._stacks = stacks
        self._attempts = count(1)

    @property
    def awaited(self) -> bool:
        """Whether a command waits for one: then a SIGHUP is no terminal's that closes."""
        return self._stacks is not None and self._stacks.with_suffix(SUFFIX).exists()

    def attempt(self) -> Callable[[str, str], None]:
        """What tells of the next one: BEGUN, DONE or FAILED, and the words."""
        return partial(self._tell, next(self._attempts))

    def _tell(self, number: int, what: str, text: str) -> None:
        text = " ".join(text.split())
        _LOG.log(logging.ERROR if what == FAILED else logging.INFO, "upgrade %s: %s", what, text)
        if self._stacks is None:
            return
        with suppress(OSError):
            note = os.open(self._stacks.with_suffix(SUFFIX), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            with open(note, "w", encoding="utf-8") as file:
                file.write(f"{number} {what} {text}\n")


def told(lines: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    """What is said of the first attempt that is named, and the words."""
    first = None
    for line in lines:
        number, what, text = line.decode(errors="replace").split(" ", 2)
        first = first or number
        if number == first:
            yield what, text
