"""Bugs to plant in the server, one of each kind. The simulation must find every one of them within few lives."""

import random
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from triolet.actors.gateway.credit import CreditLine
from triolet.actors.gateway.outbox import Outbox
from triolet.actors.supervisor.worker_status import WorkerStatus
from triolet.protocol.events import Failed, Finished, StreamEvent
from triolet.protocol.reports import Health
from triolet.web.exchange import Content, Exchange, GenerationRoutes, Handler, Written
from triolet.web.transport.connection import Connection
from triolet.web.transport.sending import Sending

from ...actors.simulation.plants import GATEWAY_PLANTS, PLANTS, Plant


def _generation_outlives_its_client(right: Callable[[GenerationRoutes, Exchange], None], rng: random.Random) -> object:
    def end(routes: GenerationRoutes, exchange: Exchange) -> None:
        if rng.random() < 0.3:
            exchange.generation = None
        right(routes, exchange)

    return end


def _swallowed_cancellation(
    right: Callable[[GenerationRoutes, Exchange, Handler], Awaitable[Content]], rng: random.Random
) -> object:
    async def answer(routes: GenerationRoutes, exchange: Exchange, handler: Handler) -> Content:
        try:
            return await right(routes, exchange, handler)
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                await trio.sleep(1000)
            raise

    return answer


def _lost_last_event(right: Callable[[Outbox, StreamEvent], None], rng: random.Random) -> object:
    def put(outbox: Outbox, event: StreamEvent) -> None:
        if not isinstance(event, Finished | Failed) or rng.random() > 0.2:
            right(outbox, event)

    return put


def _unbounded_buffer(right: Callable[[CreditLine], None], rng: random.Random) -> object:
    def settle(line: CreditLine) -> None:
        right(line)
        line._pass_on(1000)

    return settle


def _health_that_lies(right: object, rng: random.Random) -> object:
    def health(status: WorkerStatus, now: float) -> Health:
        return Health(ready=True, status="ready", reason="")

    return health


def _health_that_cries_wolf(right: Callable[[WorkerStatus, float], Health], rng: random.Random) -> object:
    def health(status: WorkerStatus, now: float) -> Health:
        if status.step_age(now) > 1:  # a long prefill
            return Health(ready=False, status="stuck", reason="too long")
        return right(status, now)

    return health


def _short_write_taken_for_a_whole_one(right: Callable[[Sending, bytes], Written], rng: random.Random) -> object:
    def write_now(sending: Sending, framed: bytes) -> Written:
        written = right(sending, framed)
        sending._rest = b""
        return "all" if written == "part" else written

    return write_now


def _idle_connection_kept(right: Callable[[Connection, bool], None], rng: random.Random) -> object:
    def update(connection: Connection, idle: bool) -> None:
        if not idle or rng.random() < 0.5:
            right(connection, idle)

    return update


WEB_PLANTS: Final[dict[str, Plant]] = {
    "leaked block": PLANTS["leaked block"],
    "double usage record": GATEWAY_PLANTS["ended twice"],
    "generation outlives its client": (GenerationRoutes, "end", _generation_outlives_its_client),
    "swallowed cancellation": (GenerationRoutes, "answer", _swallowed_cancellation),
    "lost last event": (Outbox, "put", _lost_last_event),
    "unbounded buffer": (CreditLine, "_settle", _unbounded_buffer),
    "health that lies": (WorkerStatus, "health", _health_that_lies),
    "health that cries wolf": (WorkerStatus, "health", _health_that_cries_wolf),
    "short write taken for a whole one": (Sending, "write_now", _short_write_taken_for_a_whole_one),
    "idle connection kept": (Connection, "_update", _idle_connection_kept),
}
