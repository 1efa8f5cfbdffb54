"""The server's life in one process: the engine around the web, signals around both."""

import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Protocol

import trio

from ..actors.engine import run_engine
from ..actors.observe.server import Models, Server
from ..actors.several.several import run_several
from ..actors.supervisor.child_process import ChildProcess
from ..protocol.errors import ApiError
from ..protocol.settings import ServeSettings
from ..protocol.steps import Ready, ReportProgress
from ..web.app import create_app
from ..web.transport.capacity import raise_file_limit
from ..web.transport.listening import BACKLOG, made_unix_socket, removed_afterwards
from ..web.transport.sending import LAST_WORDS_SECONDS
from ..web.transport.tls import Certificates
from ..web.transport.transport import Departure
from ..web.transport.transport import serve as serve_web
from .batches import SeveralBatches, run_beside
from .memory_needs import parts_of
from .signals import Life
from .succession import LINGER_SECONDS, Succession


def certificates_of(settings: ServeSettings) -> Certificates | None:
    """The certificates named in the settings; None for a server without TLS."""
    return Certificates(settings.ssl_certfile, settings.ssl_keyfile) if settings.ssl_certfile is not None else None


@asynccontextmanager
async def own_sockets(settings: ServeSettings, line: Succession) -> AsyncGenerator[Sequence[socket.socket]]:
    """Sockets that listen: those of the server before this one, if there was one. A Unix socket's file goes with the
    last server of the line.
    """
    with ExitStack() as stack:
        if not line.sockets and settings.uds is not None:
            line.sockets.append([stack.enter_context(made_unix_socket(settings.uds))])
        elif not line.sockets:
            listeners = await trio.open_tcp_listeners(settings.port, host=settings.host, backlog=BACKLOG)
            line.sockets.append([socket.socket(fileno=listener.socket.detach()) for listener in listeners])
        if settings.uds is not None:
            stack.enter_context(removed_afterwards(settings.uds, unless=lambda: not line.has_turn))
        yield [sock for each in line.sockets for sock in each]


async def run_server(
    settings: ServeSettings,
    stop: trio.Event,
    *,
    at_once: trio.Event | None = None,
    line: Succession | None = None,
    worker: ChildProcess | None = None,
    certificates: Certificates | None = None,
    on_progress: ReportProgress,
    on_listening: Callable[[list[str]], None] = lambda urls: None,
    on_ready: Callable[[Ready, ServeSettings], None] = lambda ready, settings: None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Listen, load, serve until `stop` is set, drain, return; started with the URLs when the model is loaded.

    `at_once`, set later, ends the running answers. If the engine fails, it sets `stop` and raises. `line` says who
    serves before and after.
    """
    line = line or Succession(settings)
    beside = partial(run_beside, settings, line)
    run = partial(run_engine, settings, worker=worker, on_progress=on_progress, beside=beside)
    if settings.models:
        batches, parts = SeveralBatches(line), await parts_of(settings)
        several = partial(run_several, settings, parts=parts, on_progress=on_progress)
        run = partial(several, beside=batches.run_lines, beside_all=batches.run)
    async with own_sockets(settings, line) as sockets:
        await serve_engine(
            settings,
            run,
            stop,
            at_once=at_once,
            line=line,
            sockets=sockets,
            certificates=certificates,
            on_listening=on_listening,
            on_ready=on_ready,
            task_status=task_status,
        )


class PlaceInLine(Protocol):
    """A process's place between the server before its own and the one after it (succession.py)."""

    over: trio.Event  # another server accepts the connections

    async def take_over(self, engine: Server) -> None:
        """Return when this process is to accept connections."""
        ...

    async def let_go(self) -> None:
        """It accepts no more."""
        ...


async def serve_engine(
    settings: ServeSettings,
    run: Callable[..., Awaitable[None]],
    stop: trio.Event,
    *,
    at_once: trio.Event | None = None,
    line: PlaceInLine | None = None,
    sockets: Sequence[socket.socket] | None,
    certificates: Certificates | None,
    on_listening: Callable[[list[str]], None] = lambda urls: None,
    on_ready: Callable[[Ready, ServeSettings], None] = lambda ready, settings: None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """`run_server` for any engine: `run` loads and runs it, and calls its `on_open` first of all."""
    serving, ended = trio.Event(), trio.Event()

    async def run_engine_then_drain(*, task_status: trio.TaskStatus[Server]) -> None:
        try:
            await run(on_open=task_status.started)
        except Exception:
            # The engine has ended every outbox; without this wait the exception would cancel the tasks that read them.
            if serving.is_set():
                stop.set()
                with trio.move_on_after(LAST_WORDS_SECONDS):
                    await ended.wait()
            raise

    async with trio.open_nursery() as engine_nursery:
        engine: Server = await engine_nursery.start(run_engine_then_drain)

        async def stop_admitting() -> Departure | None:
            await stop.wait()
            if line is not None and line.over.is_set():
                wait_idle = engine.gateway.wait_idle
                return Departure(LINGER_SECONDS, settings.upgrade_timeout, line.let_go, engine.begin_drain, wait_idle)
            engine.begin_drain()
            return None

        def end_requests(why: str = "") -> None:
            engine.gateway.fail_all(ApiError("shutting_down", f"The server shut down before the end{why}."))

        async def end_requests_at_once(at_once: trio.Event) -> None:
            await at_once.wait()
            end_requests()

        overdue = f": the answer took longer than {settings.drain_timeout:g} s (--drain-timeout)"
        app = create_app(engine)
        if line is not None:
            await line.take_over(engine)
        if at_once is not None:
            engine_nursery.start_soon(end_requests_at_once, at_once)
        async with trio.open_nursery() as web_nursery:
            urls: list[str] = await web_nursery.start(
                partial(
                    serve_web,
                    app,
                    host=settings.host,
                    port=settings.port,
                    sockets=sockets,
                    certificates=certificates,
                    drain_timeout=settings.drain_timeout,
                    send_timeout=settings.send_timeout,
                    keep_alive_timeout=settings.keep_alive_timeout,
                    max_connections=raise_file_limit(),
                    shutdown_trigger=stop_admitting,
                    on_drain_timeout=partial(end_requests, overdue),
                )
            )
            serving.set()
            on_listening(urls)
            await engine.loaded.wait()
            served = engine.served
            for model in served.engines if isinstance(served, Models) else (served,):
                if model.ready is not None:
                    on_ready(model.ready, model.settings)
            task_status.started(urls)
        ended.set()
        engine_nursery.cancel_scope.cancel()


def life_of(
    settings: ServeSettings,
    worker: ChildProcess | None,
    line: Succession,
    *,
    on_progress: ReportProgress,
    on_listening: Callable[[list[str]], None],
    on_ready: Callable[[Ready, ServeSettings], None],
) -> Life:
    """`run_server`, and its certificates."""
    certificates = certificates_of(settings)
    run = partial(
        run_server,
        settings,
        line=line,
        worker=worker,
        certificates=certificates,
        on_progress=on_progress,
        on_listening=on_listening,
        on_ready=on_ready,
    )
    return Life(run, certificates.reload if certificates is not None else lambda: None)
