"""What a connection reads is its own client's."""

import os
import socket

import trio
from trio.testing import wait_all_tasks_blocked

from triolet.web.transport.receiving import Receiving
from triolet.web.transport.sending import Sending

TRIES = 20  # trio wakes two tasks of one tick in either order


async def test_a_socket_closed_in_the_tick_of_its_data_is_not_mistaken_for_the_next_of_its_number() -> None:
    for _ in range(TRIES):
        assert await read_while_it_is_closed() in (b"own", b"")


async def read_while_it_is_closed() -> bytes:
    ours, client = socket.socketpair()
    bell, ringer = socket.socketpair()
    other, other_client = socket.socketpair()
    file = ours.fileno()
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
    sending = Sending(stream, 30.0, lambda: None, lambda: None)
    receiving = Receiving(stream, sending)
    received: list[bytes] = []

    async def read() -> None:
        received.append(await receiving.receive())

    async def close() -> None:
        await trio.lowlevel.wait_readable(bell)
        sending.forget_file()
        stream.socket.close()
        os.dup2(other.fileno(), file)  # the next connection has this number

    other_client.send(b"secret")
    with trio.fail_after(20.0):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            nursery.start_soon(close)
            await wait_all_tasks_blocked()
            client.send(b"own")
            ringer.send(b"!")
    os.close(file)
    for sock in (client, bell, ringer, other, other_client):
        sock.close()
    return received[0]
