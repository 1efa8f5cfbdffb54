"""A server under its process's signals.

The first SIGTERM or SIGINT drains: no new requests, and running answers get the drain timeout. The second ends them
with their terminal event, at once. Either way the process exits within a known time, whatever hangs. The third kills
it. SIGHUP lets another server take over (succession.py). From then on the two get the same signals, and this one
drains as soon as the other serves.
"""

import logging
import os
import signal
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, Literal, NamedTuple

import trio

from ..actors.database import data_folder
from ..actors.observe.flight_file import FOLDER
from ..actors.observe.stack_file import stacks_on_signal
from ..protocol.settings import ServeSettings
from . import waiter
from .process import EXIT_MARGIN, exit_after
from .succession import LINGER_SECONDS, NotFollowed, Succession
from .upgrade_note import DONE, FAILED, UpgradeNotes

# After the second signal: for the answers' last events to be written and read, and for the connections to close.
GOODBYE_SECONDS: Final = 3.0
_LOG: Final = logging.getLogger("triolet.upgrade")


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


class Life(NamedTuple):
    """A server's life, whatever it consists of. `reload` is what SIGHUP does before anything else.

    `run(stop, at_once=…)` is started with its URLs. The first event drains, the second ends what then still runs.
    """

    run: Callable[..., Awaitable[None]]
    reload: Callable[[], object]


class OwnTerminal:
    """A terminal that closes sends SIGHUP too. That ends the process as usual, unless who started it wanted otherwise
    (nohup), or it has a certificate to read again.
    """

    def __init__(self, settings: ServeSettings) -> None:
        self._was_there = _has_terminal()
        self._ends = signal.getsignal(signal.SIGHUP) is signal.SIG_DFL and settings.ssl_certfile is None

    def meant(self) -> Literal["upgrade", "end", "nothing"]:
        """What a SIGHUP means that has just come."""
        if not self._was_there or _has_terminal():
            return "upgrade"
        return "end" if self._ends else "nothing"


@contextmanager
def _late_ones_kept(numbers: Sequence[signal.Signals], line: Succession) -> Generator[None]:
    """When trio heeds signals no longer, and another server has taken over, they must not end this process's number."""
    before = {number: signal.signal(number, line.keep_signal) for number in numbers}
    try:
        yield
    finally:
        if line.heir is None:
            for number, handler in before.items():
                signal.signal(number, handler)


async def run_until_signalled(
    settings: ServeSettings,
    life: Life,
    line: Succession,
    *,
    on_serving: Callable[[list[str]], None],
    on_drain: Callable[[], None],
) -> None:
    """A server under the process's signals."""
    stop, at_once = trio.Event(), trio.Event()
    serving = False
    flight = data_folder(settings.data) / FOLDER
    terminal = OwnTerminal(settings)
    heeded = (*waiter.ENDINGS, signal.SIGHUP, *((waiter.TOLD_TO_END,) if line.follows else ()))
    with (
        stacks_on_signal(flight) as stacks,
        _late_ones_kept(heeded, line),
        trio.open_signal_receiver(*heeded) as signals,
    ):
        notes = UpgradeNotes(stacks)
        async with trio.open_nursery() as nursery:

            async def upgrade() -> None:
                """Let another server take over, and end with the last answer."""
                tell = notes.attempt()
                try:
                    if not serving or (stop.is_set() and not line.over.is_set()):
                        raise NotFollowed("the server does not serve yet, or no more")
                    await line.follow(stop.is_set, tell)
                except NotFollowed as error:
                    tell(FAILED, str(error))
                    return
                tell(DONE, f"process {line.heir} serves; process {os.getpid()} ends with its last answer")
                exit_after(LINGER_SECONDS + settings.upgrade_timeout + EXIT_MARGIN, line.leave)
                stop.set()
                await line.wait_heir_gone()
                _LOG.error("the server that took over has ended; so does this one")
                end_soon()

            def end_soon() -> None:
                """What another server has let this one finish gets the drain timeout only."""
                exit_after(settings.drain_timeout + EXIT_MARGIN, line.leave)
                nursery.start_soon(end_answers_later)

            async def end_answers_later() -> None:
                await trio.sleep(settings.drain_timeout)
                at_once.set()

            def end(level: int) -> None:
                line.tell_heir_to_end()
                if not serving:
                    exit_after(EXIT_MARGIN)
                    nursery.cancel_scope.cancel()
                elif level == 1 and line.over.is_set():
                    end_soon()
                elif level == 1:
                    stop.set()
                    exit_after(settings.drain_timeout + EXIT_MARGIN, line.leave)
                    on_drain()
                elif level == 2:
                    at_once.set()
                    exit_after(EXIT_MARGIN, line.leave)
                    nursery.cancel_scope.deadline = trio.current_time() + GOODBYE_SECONDS
                else:
                    os._exit(1)  # worker and web processes end with their links

            async def watch_signals() -> None:
                # A service manager may signal all processes, so what a waiter passes on is not a second signal.
                own = told = level = 0
                async for number in signals:
                    if number == signal.SIGHUP:
                        life.reload()
                        match "upgrade" if notes.awaited else terminal.meant():
                            case "upgrade":
                                nursery.start_soon(upgrade)
                            case "end":
                                own += 1
                            case "nothing":
                                pass
                    elif number == waiter.TOLD_TO_END:
                        told += 1
                    else:
                        own += 1
                    if max(own, told) > level:
                        level += 1
                        end(level)

            nursery.start_soon(watch_signals)
            async with trio.open_nursery() as server:
                urls: list[str] = await server.start(partial(life.run, stop, at_once=at_once))
                serving = True
                on_serving(urls)
            nursery.cancel_scope.cancel()
