"""The server's life: the engine around the web, signals around both.

The first SIGTERM or SIGINT drains: no new request, running answers get the drain timeout. The second ends them at once.
Either way the process has left a known time later, whatever hangs.
"""

import errno
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple, TypeVar, cast

import click
import trio

from ..actors.engine import Engine, EngineLoadError, run_engine
from ..actors.worker_process import WorkerProcess
from ..protocol.errors import ApiError
from ..protocol.settings import ServeSettings
from ..protocol.steps import LoadProgress
from ..web.app import create_app
from ..web.listening import unix_socket
from ..web.server import LAST_WORDS_SECONDS
from ..web.server import serve as serve_web
from ..web.tls_context import Certificates
from .refusals import Refusal

# Cancelling, closing sockets and ending the worker take well under a second; beyond this something hangs for good.
EXIT_MARGIN: Final = 10.0

_Error = TypeVar("_Error", bound=BaseException)


class Serving(NamedTuple):
    """A server that takes requests."""

    engine: Engine
    urls: list[str]


async def use_engine(
    settings: ServeSettings,
    use: Callable[[Engine], Awaitable[None]],
    *,
    on_progress: Callable[[LoadProgress], None],
) -> None:
    """Load an engine, use it in this process without a web server, end it."""
    async with trio.open_nursery() as nursery:
        engine: Engine = await nursery.start(partial(run_engine, settings, on_progress=on_progress))
        await use(engine)
        nursery.cancel_scope.cancel()


def certificates_of(settings: ServeSettings) -> Certificates | None:
    """Those that the settings name; none for a server without TLS."""
    return Certificates(settings.ssl_certfile, settings.ssl_keyfile) if settings.ssl_certfile is not None else None


@contextmanager
def own_sockets(settings: ServeSettings) -> Generator[Sequence[socket.socket] | None]:
    """The Unix socket where the settings want one; without sockets the web listens on host and port."""
    if settings.uds is None:
        yield None
    else:
        with unix_socket(settings.uds) as sock:
            yield [sock]


async def run_server(
    settings: ServeSettings,
    *,
    stop: trio.Event,
    worker: WorkerProcess | None = None,
    certificates: Certificates | None = None,
    on_progress: Callable[[LoadProgress], None],
    on_ready: Callable[[Engine], None] = lambda engine: None,
    task_status: trio.TaskStatus[Serving] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Load, serve until `stop` is set, drain, return. An engine that breaks down sets `stop` and raises."""
    serving, ended = trio.Event(), trio.Event()

    async def run_engine_then_drain(*, task_status: trio.TaskStatus[Engine]) -> None:
        try:
            await run_engine(settings, worker=worker, on_progress=on_progress, task_status=task_status)
        except Exception:
            # The engine has told every outbox; without this wait the exception would cancel the tasks that read them.
            if serving.is_set():
                stop.set()
                with trio.move_on_after(LAST_WORDS_SECONDS):
                    await ended.wait()
            raise

    async with trio.open_nursery() as engine_nursery:
        engine: Engine = await engine_nursery.start(run_engine_then_drain)
        on_ready(engine)

        async def stop_admitting() -> None:
            await stop.wait()
            engine.begin_drain()

        def end_requests() -> None:
            message = f"the server is shutting down, and the answer took longer than {settings.drain_timeout:g} s"
            engine.gateway.fail_all(ApiError("shutting_down", f"{message} (--drain-timeout)"))

        with own_sockets(settings) as sockets:
            async with trio.open_nursery() as web_nursery:
                urls: list[str] = await web_nursery.start(
                    partial(
                        serve_web,
                        create_app(engine),
                        host=settings.host,
                        port=settings.port,
                        sockets=sockets,
                        certificates=certificates,
                        drain_timeout=settings.drain_timeout,
                        send_timeout=settings.send_timeout,
                        shutdown_trigger=stop_admitting,
                        on_drain_timeout=end_requests,
                    )
                )
                serving.set()
                task_status.started(Serving(engine, urls))
        ended.set()
        engine_nursery.cancel_scope.cancel()


def exit_after(seconds: float) -> None:
    """End the process then, from a thread that no stuck task, lock or shielded scope can hold up."""
    timer = threading.Timer(seconds, os._exit, args=[1])
    timer.daemon = True
    timer.start()


def heeded_signals(settings: ServeSettings) -> tuple[signal.Signals, ...]:
    """SIGHUP has a meaning only where there is a certificate to read again; elsewhere it ends the process as ever."""
    reload = (signal.SIGHUP,) if settings.ssl_certfile is not None else ()
    return (signal.SIGTERM, signal.SIGINT, *reload)


async def serve_until_signalled(
    settings: ServeSettings,
    worker: WorkerProcess | None,
    *,
    on_progress: Callable[[LoadProgress], None],
    on_ready: Callable[[Engine], None],
    on_serving: Callable[[Serving], None],
    on_drain: Callable[[], None],
) -> None:
    """`run_server` with the process's signals."""
    stop = trio.Event()
    serving = False
    certificates = certificates_of(settings)
    with trio.open_signal_receiver(*heeded_signals(settings)) as signals:
        async with trio.open_nursery() as nursery:

            async def watch_signals() -> None:
                async for number in signals:
                    if number == signal.SIGHUP:
                        assert certificates is not None
                        certificates.reload()
                    elif serving and not stop.is_set():
                        stop.set()
                        exit_after(settings.drain_timeout + EXIT_MARGIN)
                        on_drain()
                    else:
                        exit_after(EXIT_MARGIN)
                        nursery.cancel_scope.cancel()

            nursery.start_soon(watch_signals)
            async with trio.open_nursery() as server:
                started: Serving = await server.start(
                    partial(
                        run_server,
                        settings,
                        stop=stop,
                        worker=worker,
                        certificates=certificates,
                        on_progress=on_progress,
                        on_ready=on_ready,
                    )
                )
                serving = True
                on_serving(started)
            nursery.cancel_scope.cancel()


def run_or_refuse(main: Callable[[], Awaitable[None]]) -> None:
    """Run a command's async half. What the user can remedy, a model or an address, becomes a refusal."""
    refusal: click.ClickException | None = None
    interrupted = False
    try:
        trio.run(main)
    except* click.ClickException as group:
        refusal = _first(group)
    except* EngineLoadError as group:
        refusal = Refusal(str(_first(group)))
    except* OSError as group:
        # The only address that is bound is the server's own; every other OSError is a bug and keeps its traceback.
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
