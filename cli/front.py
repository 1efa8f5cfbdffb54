"""One web process of several. `python -m triolet.cli.front LINK SOCKET…`, started only by the scheduler's process.

Its settings come over the link, its sockets as descriptors. It lives as long as the link, over which the scheduler's
process says when to drain: no signal does.
"""

import logging
import socket
import sys
from functools import partial

import trio

from ..actors.database import data_folder
from ..actors.fronts.front import run_front
from ..actors.fronts.front_link import DECODER, FrontLink, SchedulerLost
from ..actors.logs import log_to_stderr
from ..actors.observe.flight_file import FOLDER
from ..actors.observe.server import Server
from ..actors.observe.stack_file import stacks_on_signal
from ..actors.supervisor.link import Link
from ..protocol.fronts import Drain, OpenFront
from ..protocol.settings import EngineSettings
from .process import EXIT_MARGIN, exit_after, keep_what_is_there, return_large_blocks
from .serving import certificates_of, serve_engine
from .succession import LINGER_SECONDS

log = logging.getLogger("triolet.fronts")


class FrontPlace:
    """What a web process knows of the servers before and after its own: what the scheduler's process tells it."""

    def __init__(self, link: FrontLink) -> None:
        self.over = trio.Event()
        self._link = link

    async def take_over(self, engine: Server) -> None:
        if not self._link.may_listen.is_set():
            await engine.loaded.wait()
            self._link.say_ready()
            await self._link.may_listen.wait()

    async def let_go(self) -> None:
        """The scheduler's process has said so for all."""


async def serve_front(stream: trio.SocketStream, sockets: list[socket.socket]) -> None:
    """Serve until told to drain, or until the scheduler's process ends (SchedulerLost)."""
    link = Link(stream, DECODER)
    opening = await link.receive()
    assert isinstance(opening, OpenFront), f"the first message is {type(opening).__name__}, not OpenFront"
    settings, stop, at_once = opening.settings, trio.Event(), trio.Event()
    log_to_stderr(settings.engine)
    certificates = certificates_of(settings)

    def drain(order: Drain) -> None:
        if order.handed_over:
            place.over.set()
            exit_after(LINGER_SECONDS + settings.upgrade_timeout + EXIT_MARGIN)
        else:
            exit_after(EXIT_MARGIN if order.at_once else settings.drain_timeout + EXIT_MARGIN)
        (at_once if order.at_once else stop).set()

    def reload() -> None:
        if certificates is not None:
            certificates.reload()

    front = FrontLink(link, opening, on_drain=drain, on_reload=reload)
    place = FrontPlace(front)
    with stacks_on_signal(data_folder(settings.data) / FOLDER):
        async with trio.open_nursery() as nursery:
            await nursery.start(
                partial(
                    serve_engine,
                    settings,
                    partial(run_front, front, opening),
                    stop,
                    at_once=at_once,
                    line=place,
                    sockets=sockets,
                    certificates=certificates,
                )
            )
            front.say_ready()
            keep_what_is_there()
            return_large_blocks()


async def _run(link: int, listening: list[int]) -> None:
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(socket.socket(fileno=link)))
    await serve_front(stream, [socket.socket(fileno=number) for number in listening])


def main() -> None:
    log_to_stderr(EngineSettings(model=""))  # until its settings come
    link, *listening = map(int, sys.argv[1:])
    try:
        trio.run(_run, link, listening)
    except* (SchedulerLost, trio.EndOfChannel):
        log.error("the scheduler's process has ended; this web process ends with it")
        sys.exit(1)


if __name__ == "__main__":
    main()
