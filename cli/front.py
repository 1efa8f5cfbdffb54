"""One web process of several. `python -m triolet.cli.front LINK SOCKET…`, started only by the scheduler's process.

Its settings come over the link, its sockets as descriptors. It lives as long as the link. Signals that terminals and
service managers send to the whole group are left to the scheduler's process, which says when to drain.
"""

import logging
import signal
import socket
import sys
from functools import partial

import trio

from ..actors.fronts.front import run_front
from ..actors.fronts.front_link import DECODER, FrontLink, SchedulerLost
from ..actors.supervisor.link import Link
from ..protocol.fronts import OpenFront
from .process import EXIT_MARGIN, exit_after, keep_what_is_there, log_to_stderr
from .serving import certificates_of, serve_engine

log = logging.getLogger("triolet.fronts")


async def serve_front(stream: trio.SocketStream, sockets: list[socket.socket]) -> None:
    """Serve until told to drain, or until the scheduler's process ends (SchedulerLost)."""
    link = Link(stream, DECODER)
    opening = await link.receive()
    assert isinstance(opening, OpenFront), f"the first message is {type(opening).__name__}, not OpenFront"
    settings, stop = opening.settings, trio.Event()
    certificates = certificates_of(settings)

    def drain() -> None:
        exit_after(settings.drain_timeout + EXIT_MARGIN)
        stop.set()

    def reload() -> None:
        if certificates is not None:
            certificates.reload()

    front = FrontLink(link, opening, on_drain=drain, on_reload=reload)
    async with trio.open_nursery() as nursery:
        urls: list[str] = await nursery.start(
            partial(
                serve_engine,
                settings,
                partial(run_front, front, opening),
                stop,
                sockets=sockets,
                certificates=certificates,
            )
        )
        front.say_ready(tuple(urls))
        keep_what_is_there()


async def _run(link: int, listening: list[int]) -> None:
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(socket.socket(fileno=link)))
    await serve_front(stream, [socket.socket(fileno=number) for number in listening])


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    log_to_stderr()
    link, *listening = map(int, sys.argv[1:])
    try:
        trio.run(_run, link, listening)
    except* (SchedulerLost, trio.EndOfChannel):
        log.error("the scheduler's process has ended; this web process ends with it")
        sys.exit(1)


if __name__ == "__main__":
    main()
