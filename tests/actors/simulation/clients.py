"""Clients with habits. Every draw comes from the simulation's own random numbers, so a seed replays them."""

import random

import trio

from .front import FrontDesk, Stream


async def read(desk: FrontDesk, stream: Stream, habit: str, rng: random.Random, outbox_tokens: int) -> None:
    """Submit the request and behave like a client until its stream ends."""
    await trio.sleep(rng.uniform(0, 4))
    grants = habit == "grants"
    desk.submit(stream, outbox_tokens)
    match habit:
        case "leaves":
            with trio.move_on_after(rng.expovariate(1.5)):
                await _take_all(desk, stream, rng, pause=0.01)
            desk.cancel(stream)
        case "stalls":
            for _ in range(rng.randrange(3)):
                await _take_some(desk, stream, rng, pause=0.05)
            await _wait_for_end(stream)
        case "slow":
            await _take_all(desk, stream, rng, pause=0.5)
        case _:
            await _take_all(desk, stream, rng, pause=0.005, grants=grants)


async def _take_all(desk: FrontDesk, stream: Stream, rng: random.Random, *, pause: float, grants: bool = False) -> None:
    while stream.terminal is None:
        await _take_some(desk, stream, rng, pause=pause, grants=grants)


async def _take_some(
    desk: FrontDesk, stream: Stream, rng: random.Random, *, pause: float, grants: bool = False
) -> None:
    if grants and stream.ahead <= 0:  # forced tokens come beyond the credit
        desk.give(stream, rng.randrange(1, 20) - stream.ahead)
    if not stream.unread and stream.terminal is None:
        await stream.arrived.park()
    taken, stream.unread = stream.unread, 0
    if not grants:
        desk.give(stream, taken)
    await trio.sleep(rng.uniform(0, 2 * pause))


async def _wait_for_end(stream: Stream) -> None:
    while stream.terminal is None:
        await stream.arrived.park()
