"""How a server tells `triolet upgrade` of what it does: lines in a file that the command has made beside the server's
stack file. Where there is none, nobody asked but by SIGHUP, and the log says it all.
"""

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

SUFFIX: Final = ".upgrade"
BEGUN: Final = "begun"
DONE: Final = "done"
FAILED: Final = "failed"
_LOG: Final = logging.getLogger("triolet.upgrade")


def tell(stacks: Path | None, what: str, text: str) -> None:
    """One line: BEGUN, DONE or FAILED, and why."""
    text = " ".join(text.split())
    _LOG.log(logging.ERROR if what == FAILED else logging.INFO, "upgrade %s: %s", what, text)
    if stacks is None:
        return
    with suppress(OSError):
        note = os.open(stacks.with_suffix(SUFFIX), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        with open(note, "w", encoding="utf-8") as file:
            file.write(f"{what} {text}\n")
