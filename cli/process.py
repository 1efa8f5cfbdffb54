"""A command's process: its log, its signals, its exit codes. Knows neither engine nor web.

The first SIGTERM or SIGINT drains: no new requests, and running answers get the drain timeout. The second ends them
with their terminal event, at once. Either way the process exits within a known time, whatever hangs. The third kills
it.
"""

import ctypes
import errno
import gc
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeVar, cast

import click
import trio

from ..actors.database import data_folder
from ..actors.errors import EngineLoadError, FrontsLost
from ..actors.observe.flight_file import FOLDER
from ..actors.observe.stack_file import stacks_on_signal
from ..protocol.settings import ServeSettings
from .refusals import Refusal

# Cancelling, closing sockets and ending the worker take well under a second; after this time something hangs.
EXIT_MARGIN: Final = 10.0

# After the second signal: for the answers' last events to be written and read, and for the connections to close.
GOODBYE_SECONDS: Final = 3.0

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


def exit_after(seconds: float) -> None:
    """End the process after this time, from a thread that no stuck task, lock or shielded scope can block."""
    timer = threading.Timer(seconds, os._exit, args=[1])
    timer.daemon = True
    timer.start()


def heeded_signals(settings: ServeSettings) -> tuple[signal.Signals, ...]:
    """SIGHUP reads a certificate again. Without one it ends the process if a terminal may have sent it, as usual.

    Where there is no terminal it is a service manager's word for reading settings again, and must not end the service.
    """
    reload = (signal.SIGHUP,) if settings.ssl_certfile is not None or not _has_terminal() else ()
    return (signal.SIGTERM, signal.SIGINT, *reload)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


class Life(NamedTuple):
    """A server's life, whatever it consists of. `reload` is what SIGHUP does.

    `run(stop, at_once=…)` is started with its URLs. The first event drains, the second ends what then still runs.
    """

    run: Callable[..., Awaitable[None]]
    reload: Callable[[], object]


async def run_until_signalled(
    settings: ServeSettings, life: Life, *, on_serving: Callable[[list[str]], None], on_drain: Callable[[], None]
) -> None:
    """A server under the process's signals."""
    stop, at_once = trio.Event(), trio.Event()
    serving = False
    flight = data_folder(settings.data) / FOLDER
    with stacks_on_signal(flight), trio.open_signal_receiver(*heeded_signals(settings)) as signals:
        async with trio.open_nursery() as nursery:

            async def watch_signals() -> None:
                async for number in signals:
                    if number == signal.SIGHUP:
                        life.reload()
                    elif serving and not stop.is_set():
                        stop.set()
                        exit_after(settings.drain_timeout + EXIT_MARGIN)
                        on_drain()
                    elif serving and not at_once.is_set():
                        at_once.set()
                        exit_after(EXIT_MARGIN)
                        nursery.cancel_scope.deadline = trio.current_time() + GOODBYE_SECONDS
                    elif serving:
                        os._exit(1)  # worker and web processes end with their links
                    else:
                        exit_after(EXIT_MARGIN)
                        nursery.cancel_scope.cancel()

            nursery.start_soon(watch_signals)
            async with trio.open_nursery() as server:
                urls: list[str] = await server.start(partial(life.run, stop, at_once=at_once))
                serving = True
                on_serving(urls)
            nursery.cancel_scope.cancel()


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
