"""A connection that is over is freed with its last reference: the collector's oldest generation is seldom looked at."""

import gc

import trio
from h2.connection import H2Connection
from trio.testing import wait_all_tasks_blocked

from triolet.web.transport.connection import Connection
from triolet.web.transport.plain_http1 import PlainHTTP1
from triolet.web.transport.sending import Sending

from ..conftest import ReadToEnd, StartServer

SOON = 10.0  # seconds: far above what anything here takes; a hang fails instead of blocking the run


async def test_no_part_of_an_ended_connection_waits_for_the_collector(
    start_server: StartServer, read_to_end: ReadToEnd
) -> None:
    served = await start_server()
    await wait_all_tasks_blocked(0.01)
    gc.collect()
    gc.disable()
    try:
        answered = await served.connect()
        await answered.send_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await read_to_end(answered)).endswith(b"hello")
        kept = await served.connect()
        await kept.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await kept.receive_some()
        http2 = await served.connect()
        await http2.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        await http2.receive_some()
        assert _living() >= 4  # or the count would show nothing
        await trio.aclose_forcefully(kept)
        await trio.aclose_forcefully(http2)
        with trio.fail_after(SOON):
            while _living():
                await wait_all_tasks_blocked(0.01)
    finally:
        gc.enable()


def _living() -> int:
    return sum(isinstance(each, Connection | Sending | PlainHTTP1 | H2Connection) for each in gc.get_objects())
