"""The server's life with several web processes: the scheduler and its worker here, the web in separate processes.

This process has no web. Its loop only plans steps and passes text on, one frame per front and step, and no client can
slow it down. A front is the same program as a server of one process, without the scheduler.
"""

import socket
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
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
from ..web.transport.listening import BACKLOG, bind_tcp, made_unix_socket, removed_afterwards, urls_of
from .batches import run_beside
from .signals import Life
from .succession import ASK_SECONDS, LINGER_SECONDS, Succession

FRONT_MODULE: Final = "triolet.cli.front"
LEAVE_SECONDS: Final = 3.0  # for the fronts after the drain timeout: last messages, then closing


Listening = Callable[[int], AbstractContextManager[Sequence[socket.socket]]]  # the sockets of a web process, by number


@contextmanager
def shared_listeners(settings: ServeSettings, line: Succession) -> Generator[tuple[list[str], Listening]]:
    """The server's URLs, and the sockets of each front.

    With a TCP port each front has its own (SO_REUSEPORT), and the kernel gives a dead one's connections to the others.
    A Unix socket has one queue, from which any free front takes, and so has the port of a server of one process. This
    process keeps copies, for the server that takes over: it deals those that it gets to its fronts.
    """
    secure = settings.ssl_certfile is not None
    with ExitStack() as stack:
        if not line.sockets and settings.uds is not None:
            line.sockets.append([stack.enter_context(made_unix_socket(settings.uds))])
        if settings.uds is not None:
            stack.enter_context(removed_afterwards(settings.uds, unless=lambda: not line.has_turn))
        if line.sockets and not line.sockets[0][0].getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT):
            one = [sock for each in line.sockets for sock in each]
            yield urls_of(one, secure=secure), lambda number: nullcontext(one)
            return
        line.sockets = dealt(line.sockets, settings.web_processes)
        port = line.sockets[0][0].getsockname()[1] if line.sockets else settings.port
        reserved = bind_tcp(settings.host, port, shared=True)  # does not listen: it reserves the port
        for sock in reserved:
            stack.enter_context(sock)
        port = reserved[0].getsockname()[1]
        if not line.follows:  # so clients can connect from the first moment, before there is a web process
            line.sockets = [bind_tcp(settings.host, port, shared=True) for _ in range(settings.web_processes)]
        left = dict(enumerate(line.sockets))
        for sock in (each for sockets in line.sockets for each in sockets):
            stack.enter_context(sock)
            sock.listen(BACKLOG)

        @contextmanager
        def listening(number: int) -> Generator[Sequence[socket.socket]]:
            if (sockets := left.pop(number, None)) is None:
                sockets = bind_tcp(settings.host, port, shared=True)
                line.sockets.append(sockets)
                for sock in sockets:
                    sock.listen(BACKLOG)
            try:
                yield sockets
            finally:
                line.sockets.remove(sockets)
                for sock in sockets:
                    sock.close()

        yield urls_of(reserved, secure=secure), listening


def dealt(sockets: Sequence[list[socket.socket]], count: int) -> list[list[socket.socket]]:
    """The same in at most `count` lists."""
    return [[sock for each in sockets[number::count] for sock in each] for number in range(min(count, len(sockets)))]


async def run_fronts(
    settings: ServeSettings,
    stop: trio.Event,
    *,
    at_once: trio.Event | None = None,
    line: Succession | None = None,
    worker: ChildProcess | None = None,
    on_progress: ReportProgress,
    on_listening: Callable[[list[str]], None] = lambda urls: None,
    on_ready: Callable[[Ready, ServeSettings], None] = lambda ready, settings: None,
    on_fronts: Callable[[Fronts], None] = lambda fronts: None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Listen, load, serve until `stop` is set, drain, return; started with the URLs when the model is loaded.

    `at_once`, set later, ends the running answers. `line` says who serves before and after.
    """
    line = line or Succession(settings)
    count = settings.web_processes
    core = Core(settings, Quotas(keys_of(settings.key_tables, count, count)))
    try:
        with shared_listeners(settings, line) as (urls, listening):
            async with trio.open_nursery() as nursery:
                fronts = Fronts(
                    settings,
                    core,
                    module=FRONT_MODULE,
                    name=process_name(),
                    listening=listening,
                    waits=line.follows,
                )
                on_fronts(fronts)
                ended = trio.Event()

                async def run_until_drained(*, task_status: trio.TaskStatus[None]) -> None:
                    await fronts.run(task_status=task_status)
                    ended.set()

                async def load() -> None:
                    ready = await core.start(nursery, on_progress, worker)
                    nursery.start_soon(run_beside, settings, line, core, ready)
                    on_ready(ready, settings)

                async with trio.open_nursery() as loading:
                    loading.start_soon(load)
                    loading.start_soon(nursery.start, run_until_drained)
                    on_listening(urls)
                if line.follows:
                    while not fronts.observer.health().ready:  # noqa: ASYNC110  # it is a question
                        await trio.sleep(ASK_SECONDS)
                    await line.take_turn()
                    fronts.listen()
                task_status.started(urls)
                await stop.wait()
                seconds = LINGER_SECONDS + settings.upgrade_timeout if line.over.is_set() else settings.drain_timeout
                fronts.begin_drain(handed_over=line.over.is_set())
                line.close_sockets()
                if line.over.is_set():
                    await line.let_go()

                async def end_answers(at_once: trio.Event) -> None:
                    await at_once.wait()
                    fronts.end_answers()

                if at_once is not None:
                    nursery.start_soon(end_answers, at_once)
                with trio.move_on_after(seconds + LEAVE_SECONDS):
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
        line=line,
        worker=worker,
        on_progress=on_progress,
        on_listening=on_listening,
        on_ready=on_ready,
        on_fronts=running.append,
    )
    return Life(run, reload)
