"""An HTTP/2 connection without a request is idle, however it came to be without one."""

from collections.abc import Awaitable, Callable
from contextlib import suppress

import h2.errors
import h2.events
import h2.settings
import hyperframe.frame
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ..conftest import ReadToEnd, Served, StartServer
from .test_hostile import HTTP2Client

TRIES = 20  # trio runs two tasks of one tick in either order
SOON = 10.0  # seconds: far above what anything here takes; a hang fails instead of blocking the run


async def only_the_preface(served: Served, client: HTTP2Client) -> None:
    await client.flush()


async def a_reset_request(served: Served, client: HTTP2Client) -> None:
    stream_id = client.request(b"/quiet")
    await client.flush()
    await served.begun.wait()
    client.h2.reset_stream(stream_id, h2.errors.ErrorCodes.CANCEL)
    await client.flush()
    await served.ended.wait()


async def an_answered_request(served: Served, client: HTTP2Client) -> None:
    client.request()
    await client.flush()


IDLE = pytest.mark.parametrize("begin", [only_the_preface, a_reset_request, an_answered_request])
Begin = Callable[[Served, HTTP2Client], Awaitable[None]]


@IDLE
async def test_it_is_closed_after_the_keep_alive_time(
    start_server: StartServer, read_to_end: ReadToEnd, begin: Begin
) -> None:
    served = await start_server(keep_alive_timeout=0.3)
    stream = await served.connect()
    with trio.fail_after(SOON):
        await begin(served, HTTP2Client(stream))
        await read_to_end(stream)


async def test_it_is_closed_after_its_last_stream_was_reset_at_the_deadline(
    start_server: StartServer, read_to_end: ReadToEnd
) -> None:
    """Its client takes nothing and never says another word, which would have shown that it is idle."""
    served = await start_server(keep_alive_timeout=0.3, send_timeout=0.3)
    stream = await served.connect()
    client = HTTP2Client(stream)
    client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    client.request(b"/flood")
    with trio.fail_after(SOON):
        await client.flush()
        await read_to_end(stream)


@IDLE
async def test_it_does_not_delay_the_shutdown(start_server: StartServer, begin: Begin) -> None:
    served = await start_server(drain_timeout=3600.0)
    client = HTTP2Client(await served.connect())
    with trio.fail_after(SOON):
        await begin(served, client)
        await wait_all_tasks_blocked(0.05)
        served.stop.set()
        await served.stopped.wait()


async def test_frames_without_a_request_do_not_keep_it(start_server: StartServer, read_to_end: ReadToEnd) -> None:
    served = await start_server(keep_alive_timeout=0.5)
    stream = await served.connect()
    client = HTTP2Client(stream)

    async def knock() -> None:
        with suppress(trio.BrokenResourceError):
            while True:
                await client.flush(hyperframe.frame.PingFrame(0, b"8 bytes.").serialize())
                await trio.sleep(0.1)

    with trio.fail_after(SOON):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(knock)
            await read_to_end(stream)
            nursery.cancel_scope.cancel()


async def test_a_client_that_opens_its_windows_after_each_frame_reads_large_answers(start_server: StartServer) -> None:
    """Nine answers of 2 MB in one piece each: some 2,300 small frames of the client, in much less than a second."""
    client = HTTP2Client(await (await start_server()).connect())
    with trio.fail_after(SOON):
        for _ in range(9):
            stream_id = client.request(b"/large")
            await client.flush()
            ended = False
            while not ended:
                events = await client.events()
                ended = any(isinstance(event, h2.events.StreamEnded) for event in events)
                for event in events:
                    if isinstance(event, h2.events.DataReceived) and event.flow_controlled_length:
                        for opened in (None,) if ended else (None, stream_id):
                            client.h2.increment_flow_control_window(event.flow_controlled_length, opened)
                await client.flush()


async def test_an_answer_that_ends_while_the_server_stops_has_its_end(start_server: StartServer) -> None:
    """END_STREAM leaves before the connection does: a client takes what lacks it for half an answer.

    The connection leaves with it, whether or not its client closes.
    """
    for _ in range(TRIES):
        served = await start_server(drain_timeout=3600.0)
        client = HTTP2Client(await served.connect())
        with trio.fail_after(SOON):
            client.request(b"/canary")
            await client.flush()
            await client.wait_for(h2.events.DataReceived)
            served.stop.set()
            await wait_all_tasks_blocked()
            served.gate.set()
            await client.wait_for(h2.events.StreamEnded)
            await served.stopped.wait()


async def test_a_request_to_a_server_that_stops_is_one_that_may_be_repeated_elsewhere(
    start_server: StartServer,
) -> None:
    served = await start_server(drain_timeout=3600.0)
    client = HTTP2Client(await served.connect())
    with trio.fail_after(SOON):
        running = client.request(b"/canary")
        await client.flush()
        await client.wait_for(h2.events.DataReceived, running)
        served.stop.set()
        await wait_all_tasks_blocked(0.05)
        late = client.request()
        await client.flush()
        assert (await client.wait_for(h2.events.StreamReset, late)).error_code == h2.errors.ErrorCodes.REFUSED_STREAM
        served.gate.set()
        await client.wait_for(h2.events.StreamEnded, running)
