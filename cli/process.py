"""A command's process: its log, its signals, its exit codes. Knows neither engine nor web.

The first SIGTERM or SIGINT drains: no new requests, and running answers get the drain timeout. The second ends them at
once. Either way the process exits within a known time, whatever hangs.
"""

import errno
import gc
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple, TypeVar, cast

import click
import trio

from ..actors.errors import EngineLoadError, FrontsLost
from ..protocol.settings import ServeSettings
from .refusals import Refusal

# Cancelling, closing sockets and ending the worker take well under a second; after this time something hangs.
EXIT_MARGIN: Final = 10.0

GARBAGE: Final = 10_000  # a few megabytes at most

_Error = TypeVar("_Error", bound=BaseException)


def log_to_stderr() -> None:
    """Log one line per request; from libraries only warnings."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("triolet").setLevel(logging.INFO)


def keep_what_is_there() -> None:
    """Exclude code, tokenizer and web framework from garbage collection, which would delay streams.

    Objects of requests are freed with their last reference, except for a few cycles each. One collection per GARBAGE
    new objects is enough for these.
    """
    gc.freeze()
    gc.set_threshold(GARBAGE)


def exit_after(seconds: float) -> None:
    """End the process after this time, from a thread that no stuck task, lock or shielded scope can block."""
    timer = threading.Timer(seconds, os._exit, args=[1])
    timer.daemon = True
    timer.start()


def heeded_signals(settings: ServeSettings) -> tuple[signal.Signals, ...]:
    """SIGHUP is handled only if there is a certificate to read again; otherwise it ends the process, as usual."""
    reload = (signal.SIGHUP,) if settings.ssl_certfile is not None else ()
    return (signal.SIGTERM, signal.SIGINT, *reload)


class Life(NamedTuple):
    """A server's life, whatever it consists of: `run(stop)` is started with its URLs; `reload` is what SIGHUP does."""

    run: Callable[..., Awaitable[None]]
    reload: Callable[[], object]


async def run_until_signalled(
    settings: ServeSettings, life: Life, *, on_serving: Callable[[list[str]], None], on_drain: Callable[[], None]
) -> None:
    """A server under the process's signals."""
    stop = trio.Event()
    serving = False
    with trio.open_signal_receiver(*heeded_signals(settings)) as signals:
        async with trio.open_nursery() as nursery:

            async def watch_signals() -> None:
                async for number in signals:
                    if number == signal.SIGHUP:
                        life.reload()
                    elif serving and not stop.is_set():
                        stop.set()
                        exit_after(settings.drain_timeout + EXIT_MARGIN)
                        on_drain()
                    else:
                        exit_after(EXIT_MARGIN)
                        nursery.cancel_scope.cancel()

            nursery.start_soon(watch_signals)
            async with trio.open_nursery() as server:
                urls: list[str] = await server.start(partial(life.run, stop))
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
