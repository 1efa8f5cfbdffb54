"""The scheduler actor: owns the running and waiting sequences and keeps a few steps in flight.

All decisions are in `scheduler_state.py` and below; this loop only carries messages and watches the clock. It waits for
nobody but its own inbox: the executor takes at most the steps in flight, the detokenizer never waits for a client.
"""

from math import inf
from typing import TypeVar

import trio

from ..protocol.messages import ToDetokenizer, ToScheduler
from ..protocol.steps import Step
from .scheduler_state import SchedulerState

_Item = TypeVar("_Item")


async def run_scheduler(
    inbox: trio.MemoryReceiveChannel[ToScheduler],
    steps: trio.MemorySendChannel[Step],
    texts: trio.MemorySendChannel[ToDetokenizer],
    *,
    state: SchedulerState,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run until the inbox is closed.

    The inbox may be unbounded: a live request sends a handful of messages, credit is granted in batches, and there is
    one StepDone per step in flight. `steps` should hold as many as may be in flight; what a lost worker left in it must
    be thrown away before the next worker is announced.
    """
    with inbox, steps, texts:
        task_status.started()
        while True:
            due = state.timers.next()
            message: ToScheduler | None = None
            try:
                if due == inf:  # nearly always; a cancel scope costs as much as the plan of a small step
                    message = await inbox.receive()
                else:
                    with trio.move_on_at(due):
                        message = await inbox.receive()
            except trio.EndOfChannel:
                return
            now = trio.current_time()
            if message is not None:
                state.handle(message, now)
            _handle_waiting(inbox, state, now)
            state.expire(now)
            while step := state.plan():
                await _send(steps, step)
            state.totals.plan_seconds += trio.current_time() - now
            for text in state.take_texts():
                await _send(texts, text)


async def _send(channel: trio.MemorySendChannel[_Item], item: _Item) -> None:
    """Without a turn of the event loop where there is room: the inbox gives it its turns."""
    try:
        channel.send_nowait(item)
    except trio.WouldBlock:
        await channel.send(item)


def _handle_waiting(inbox: trio.MemoryReceiveChannel[ToScheduler], state: SchedulerState, now: float) -> None:
    """Everything that has come meanwhile goes into the next plan."""
    while True:
        try:
            message = inbox.receive_nowait()
        except (trio.WouldBlock, trio.EndOfChannel):
            return
        state.handle(message, now)
