"""A quiet worker is pinged at the interval, whatever rounding makes of its sum."""

from typing import Final

import pytest
import trio
import trio.testing

from triolet.actors.supervisor.supervisor import Supervisor
from triolet.actors.supervisor.worker_status import PING_INTERVAL, WorkerStatus
from triolet.protocol.messages import ToScheduler
from triolet.protocol.settings import EngineSettings
from triolet.protocol.steps import Ping, WorkerOrder

TURNS: Final = 20
SPOKE: Final = (0.2, 1.0)  # 0.2 + 0.5 - 0.2 is less than 0.5


class CountingLink:
    def __init__(self) -> None:
        self.sent: list[Ping] = []

    async def send(self, message: Ping) -> None:
        self.sent.append(message)


@pytest.mark.parametrize("spoke", SPOKE)
async def test_a_ping_is_sent_once_it_is_due(spoke: float, mock_clock: trio.testing.MockClock) -> None:
    steps = trio.open_memory_channel[WorkerOrder](1)[1]
    scheduler = trio.open_memory_channel[ToScheduler](1)[0]
    supervisor = Supervisor(
        EngineSettings(model=""),
        steps=steps,
        scheduler=scheduler,
        status=WorkerStatus(),
        on_progress=lambda progress: None,
        excused_losses=lambda: 0,
        first=None,
    )
    link = CountingLink()
    mock_clock.jump(spoke)
    supervisor._spoke = spoke
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor._ping, link)  # type: ignore[arg-type]  # what it uses of a link
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(PING_INTERVAL)
        for _ in range(TURNS):  # not until all are blocked: one that sleeps for less than a clock can tell never is
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert len(link.sent) == 1
