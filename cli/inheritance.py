"""What a server process gets from the one before it: listening sockets, a link to it, and the pipe of heirs.

It is in a variable that the process takes out of its environment, so that nothing it starts sees it. Errors up to the
moment in which it serves go over the link too: `triolet upgrade` prints them.
"""

import os
import socket
from contextlib import suppress
from functools import cache
from typing import Final

import click
import msgspec
from msgspec import Struct

from ..protocol.settings import ServeSettings

VARIABLE: Final = "_TRIOLET_INHERITANCE"  # not with the prefix of settings
READY: Final = b"ready\n"
MOST_WORDS: Final = 4000  # bytes of an error, far below what a socket takes without waiting


class Inheritance(Struct, frozen=True, kw_only=True):
    """Descriptors, and the address that the sockets have. A web process listens on one set of sockets or more."""

    address: str
    sockets: tuple[tuple[int, ...], ...]
    link: int  # a socket
    heirs: int  # the pipe: whoever hands over writes who follows


@cache
def inheritance() -> Inheritance | None:
    """What this process inherits; None if nobody served before it."""
    given = os.environ.pop(VARIABLE, None)
    if given is None:
        return None
    found = msgspec.json.decode(given, type=Inheritance)
    for descriptor in (found.link, found.heirs, *(number for each in found.sockets for number in each)):
        os.set_inheritable(descriptor, False)
    return found


def address_of(settings: ServeSettings) -> str:
    """What must stay the same for the sockets to be of use."""
    return f"--uds {settings.uds}" if settings.uds is not None else f"--host {settings.host} --port {settings.port}"


def tell_failure(error: BaseException) -> None:
    """Let the process before this one know why it has to go on."""
    inherited = inheritance()
    if inherited is None:
        return
    if isinstance(error, click.ClickException):
        words = error.format_message()
    elif isinstance(error, SystemExit):
        words = "" if isinstance(error.code, int) else str(error.code or "")
    else:
        words = f"{type(error).__name__}: {error}"
    link = socket.socket(fileno=os.dup(inherited.link))
    with link, suppress(OSError):  # it is gone, or this process serves by now and nobody listens
        link.sendall(words.encode()[:MOST_WORDS])
