"""The server's life with several web processes: the scheduler and its worker here, the web in separate processes.

This process has no web. Its loop only plans steps and passes text on, one frame per front and step, and no client can
slow it down. A front is the same program as a server of one process, without the scheduler.
"""

import socket
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import trio

from ..actors.core import Core
from ..actors.fronts.division import keys_of
from ..actors.fronts.fronts import Fronts
from ..actors.gateway.gateway import process_name
from ..actors.gateway.quotas import Quotas
from ..actors.supervisor.child_process import ChildProcess
from ..protocol.settings import ServeSettings
from ..protocol.steps import Ready, ReportProgress
from ..web.transport.listening import BACKLOG, bind_tcp, unix_socket, urls_of
from .batches import run_beside
from .signals import Life
from .succession import Succession

FRONT_MODULE: Final = "triolet.cli.front"
LEAVE_SECONDS: Final = 3.0  # for the fronts after the drain timeout: last messages, then closing


@contextmanager
def shared_listeners(settings: ServeSettings) -> Generator[tuple[list[str], Callable[[], Sequence[socket.socket]]]]:
    """The server's URLs, and a function that makes the sockets of one more front.

    With a TCP port each front has its own socket (SO_REUSEPORT), and the kernel gives a dead one's connections to the
    others. A Unix socket has one queue, from which any free front takes.
    """
    if settings.uds is not None:
        with unix_socket(settings.uds) as sock:
            yield urls_of([sock], secure=False), lambda: [sock.dup()]
        return
    reserved = bind_tcp(settings.host, settings.port, shared=True)  # does not listen: it reserves the port
    try:
        port: int = reserved[0].getsockname()[1]

        def listen() -> list[socket.socket]:
            sockets = bind_tcp(settings.host, port, shared=True)
            for sock in sockets:
                sock.listen(BACKLOG)
            return sockets

        yield urls_of(reserved, secure=settings.ssl_certfile is not None), listen
    finally:
        for sock in reserved:
            sock.close()


async def run_fronts(
    settings: ServeSettings,
    stop: trio.Event,
    *,
    at_once: trio.Event | None = None,
    worker: ChildProcess | None = None,
    on_progress: ReportProgress,
    on_listening: Callable[[list[str]], None] = lambda urls: None,
    on_ready: Callable[[Ready, ServeSettings], None] = lambda ready, settings: None,
    on_fronts: Callable[[Fronts], None] = lambda fronts: None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Listen, load, serve until `stop` is set, drain, return; started with the URLs when the model is loaded.

    `at_once`, set later, ends the running answers.
    """
    count = settings.web_processes
    core = Core(settings, Quotas(keys_of(settings.key_tables, count, count)))
    try:
        with shared_listeners(settings) as (urls, listen):
            async with trio.open_nursery() as nursery:
                listening = False

                def open_sockets() -> Sequence[socket.socket]:
                    nonlocal listening
                    sockets = listen()
                    if not listening:
                        on_listening(urls)
                        listening = True
                    return sockets

                fronts = Fronts(settings, core, module=FRONT_MODULE, name=process_name(), listen=open_sockets)
                on_fronts(fronts)
                ended = trio.Event()

                async def run_until_drained(*, task_status: trio.TaskStatus[None]) -> None:
                    await fronts.run(task_status=task_status)
                    ended.set()

                async def load() -> None:
                    ready = await core.start(nursery, on_progress, worker)
                    nursery.start_soon(run_beside, settings, Succession(settings), core, ready)
                    on_ready(ready, settings)

                async with trio.open_nursery() as loading:
                    loading.start_soon(load)
                    loading.start_soon(nursery.start, run_until_drained)
                task_status.started(urls)
                await stop.wait()
                fronts.begin_drain()

                async def end_answers(at_once: trio.Event) -> None:
                    await at_once.wait()
                    fronts.end_answers()

                if at_once is not None:
                    nursery.start_soon(end_answers, at_once)
                with trio.move_on_after(settings.drain_timeout + LEAVE_SECONDS):
                    await ended.wait()
                nursery.cancel_scope.cancel()
    finally:
        await core.close()


def life_of(
    settings: ServeSettings,
    worker: ChildProcess | None,
    line: Succession,
    *,
    on_progress: ReportProgress,
    on_listening: Callable[[list[str]], None],
    on_ready: Callable[[Ready, ServeSettings], None],
) -> Life:
    """`run_fronts`, and the certificates of all web processes."""
    running: list[Fronts] = []

    def reload() -> None:
        for fronts in running:
            fronts.reload_certificate()

    run = partial(
        run_fronts,
        settings,
        worker=worker,
        on_progress=on_progress,
        on_listening=on_listening,
        on_ready=on_ready,
        on_fronts=running.append,
    )
    return Life(run, reload)
