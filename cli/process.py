"""A command's process: its memory, its end, its exit codes. Knows neither engine nor web."""

import ctypes
import errno
import gc
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar, cast

import click
import trio

from ..actors.errors import EngineLoadError, FrontsLost
from .refusals import Refusal

# Cancelling, closing sockets and ending the worker take well under a second; after this time something hangs.
EXIT_MARGIN: Final = 10.0

GARBAGE: Final = 10_000  # a few megabytes at most

M_MMAP_THRESHOLD: Final = -3  # of malloc.h
LARGE_BLOCK: Final = 128 * 1024  # bytes: what glibc begins with

_Error = TypeVar("_Error", bound=BaseException)


def keep_what_is_there() -> None:
    """Exclude code, tokenizer and web framework from garbage collection, which would delay streams.

    Objects of requests are freed with their last reference, except for a few cycles each. One collection per GARBAGE
    new objects is enough for these.
    """
    gc.freeze()
    gc.set_threshold(GARBAGE)


def return_large_blocks() -> None:
    """Give large blocks back to the system as soon as they are free, as those of large bodies.

    glibc does so at first, but once such a block was freed, it takes later ones from its heap, which seldom shrinks:
    after floods of bodies of 4 MB the process held 200 MB instead of 120, and more after each. Other C libraries do
    without this.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)


def exit_after(seconds: float, leave: Callable[[], None] = lambda: None) -> None:
    """End the process after this time, from a thread that no stuck task, lock or shielded scope can block."""

    def end() -> None:
        leave()
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def run_or_refuse(main: Callable[[], Awaitable[None]]) -> None:
    """Run a command's async half. Errors that the user can fix, or that the log explains, become refusals."""
    refusal: click.ClickException | None = None
    interrupted = False
    try:
        trio.run(main)
    except* click.ClickException as group:
        refusal = _first(group)
    except* (EngineLoadError, FrontsLost) as group:
        refusal = Refusal(str(_first(group)))
    except* OSError as group:
        # Only the server's own address is bound; every other OSError is a bug and keeps its traceback.
        if (error := _first(group)).errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
            raise
        refusal = Refusal(f"cannot listen there: {error.strerror}; take another --host or --port")
    except* KeyboardInterrupt:
        interrupted = True
    if refusal is not None:
        raise refusal
    if interrupted:
        raise click.Abort


def _first(group: BaseExceptionGroup[_Error]) -> _Error:
    error = group.exceptions[0]
    if isinstance(error, BaseExceptionGroup):
        return _first(cast("BaseExceptionGroup[_Error]", error))
    return error
