"""The scheduler actor: owns the running and waiting sequences and keeps a few steps in flight.

All decisions are in `state.py` and the modules that it imports; this loop only carries messages and watches the clock.
It waits only for its own inbox: the executor takes at most the steps in flight, and the detokenizer never waits for a
client.
"""

from collections.abc import Callable
from math import inf

import trio

from ...protocol.messages import ToDetokenizer, ToScheduler
from ...protocol.steps import WorkerOrder
from ..turns import pass_on, waiting
from .blame import Conviction
from .state import SchedulerState


async def run_scheduler(
    inbox: trio.MemoryReceiveChannel[ToScheduler],
    steps: trio.MemorySendChannel[WorkerOrder],
    texts: trio.MemorySendChannel[ToDetokenizer],
    *,
    batch_texts: trio.MemorySendChannel[ToDetokenizer] | None = None,
    state: SchedulerState,
    on_conviction: Callable[[Conviction], None] = lambda conviction: None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run until the inbox is closed.

    The inbox may be unbounded: a live request sends few messages, credit is granted in batches, and there is one
    StepDone per step in flight and one answer per grammar or adapter. `steps` must take any
    number without waiting: what a lost worker left in it is discarded before the next worker is announced, and an order
    that came after that would be for a worker that is gone. `batch_texts` is needed where background requests come.
    """
    with inbox, steps, texts:
        task_status.started()
        while True:
            due = state.table.timers.next_due()
            message: ToScheduler | None = None
            try:
                if due == inf:  # the usual case; a cancel scope costs as much as the plan of a small step
                    message = await inbox.receive()
                else:
                    with trio.move_on_at(due):
                        message = await inbox.receive()
            except trio.EndOfChannel:
                return
            now = trio.current_time()
            if message is not None:
                state.handle(message, now)
            for message in waiting(inbox):  # messages that arrived meanwhile count for the next plan
                state.handle(message, now)
            state.expire(now)
            for order in state.take_preparations():
                steps.send_nowait(order)
            while step := state.plan():
                steps.send_nowait(step)
            state.totals.plan_seconds += trio.current_time() - now
            for text in state.take_texts():
                await pass_on(texts, text)
            for conviction in state.take_convictions():
                on_conviction(conviction)
            if batch_texts is not None:
                for text in state.take_batch_texts():
                    await pass_on(batch_texts, text)
