"""The server's life in one process: the engine around the web, signals around both."""

import socket
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial

import trio

from ..actors.engine import run_engine
from ..actors.observe.observe import Server
from ..actors.supervisor.child_process import ChildProcess
from ..protocol.errors import ApiError
from ..protocol.settings import ServeSettings
from ..protocol.steps import Ready, ReportProgress
from ..web.app import create_app
from ..web.transport.listening import unix_socket
from ..web.transport.tls import Certificates
from ..web.transport.transport import LAST_WORDS_SECONDS
from ..web.transport.transport import serve as serve_web
from .process import Life


def certificates_of(settings: ServeSettings) -> Certificates | None:
    """The certificates named in the settings; None for a server without TLS."""
    return Certificates(settings.ssl_certfile, settings.ssl_keyfile) if settings.ssl_certfile is not None else None


@contextmanager
def own_sockets(settings: ServeSettings) -> Generator[Sequence[socket.socket] | None]:
    """The Unix socket, if the settings have one; without sockets the web listens on host and port."""
    if settings.uds is None:
        yield None
    else:
        with unix_socket(settings.uds) as sock:
            yield [sock]


async def run_server(
    settings: ServeSettings,
    stop: trio.Event,
    *,
    worker: ChildProcess | None = None,
    certificates: Certificates | None = None,
    on_progress: ReportProgress,
    on_ready: Callable[[Ready], None] = lambda ready: None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Load, serve until `stop` is set, drain, return; started with the URLs.

    If the engine fails, it sets `stop` and raises.
    """
    with own_sockets(settings) as sockets:
        await serve_engine(
            settings,
            partial(run_engine, settings, worker=worker, on_progress=on_progress),
            stop,
            sockets=sockets,
            certificates=certificates,
            on_ready=on_ready,
            task_status=task_status,
        )


async def serve_engine(
    settings: ServeSettings,
    start: Callable[..., Awaitable[None]],
    stop: trio.Event,
    *,
    sockets: Sequence[socket.socket] | None,
    certificates: Certificates | None,
    on_ready: Callable[[Ready], None] = lambda ready: None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """`run_server` for any engine that `start` runs."""
    serving, ended = trio.Event(), trio.Event()

    async def run_engine_then_drain(*, task_status: trio.TaskStatus[Server]) -> None:
        try:
            await start(task_status=task_status)
        except Exception:
            # The engine has ended every outbox; without this wait the exception would cancel the tasks that read them.
            if serving.is_set():
                stop.set()
                with trio.move_on_after(LAST_WORDS_SECONDS):
                    await ended.wait()
            raise

    async with trio.open_nursery() as engine_nursery:
        engine: Server = await engine_nursery.start(run_engine_then_drain)
        if engine.ready is not None:  # its worker may have died again
            on_ready(engine.ready)

        async def stop_admitting() -> None:
            await stop.wait()
            engine.begin_drain()

        def end_requests() -> None:
            message = f"the server is shutting down, and the answer took longer than {settings.drain_timeout:g} s"
            engine.gateway.fail_all(ApiError("shutting_down", f"{message} (--drain-timeout)"))

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
            task_status.started(urls)
        ended.set()
        engine_nursery.cancel_scope.cancel()


def life_of(
    settings: ServeSettings,
    worker: ChildProcess | None,
    *,
    on_progress: ReportProgress,
    on_ready: Callable[[Ready], None],
) -> Life:
    """`run_server`, and its certificates."""
    certificates = certificates_of(settings)
    run = partial(
        run_server, settings, worker=worker, certificates=certificates, on_progress=on_progress, on_ready=on_ready
    )
    return Life(run, certificates.reload if certificates is not None else lambda: None)
