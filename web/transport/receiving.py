"""The incoming bytes of one connection, with or without TLS."""

import logging
import os
import ssl
from typing import Final

import trio

from .sending import Sending
from .tls import TlsSession

log = logging.getLogger("triolet.http")

RECEIVE_BYTES: Final = 2**16
HANDSHAKE_SECONDS: Final = 10.0  # three round trips around the world, including lost packets


class Receiving:
    """`sending` is the connection's other half, because TLS itself sends answers."""

    def __init__(self, stream: trio.SocketStream, sending: Sending) -> None:
        self._stream = stream
        self._sending = sending
        self._early = b""  # bytes from the same packet as the end of the handshake

    async def receive(self) -> bytes:
        """Some bytes from the client; empty at the end. Once our side has ended, the caller discards them."""
        early, self._early = self._early, b""
        while not early:
            data = await self._read()
            if self._sending.tls is None or self._sending.ended or not data:
                return data
            plain, ended = self._sending.tls.decrypt(data)
            if answer := self._sending.tls.take_output():
                await self._sending.send_all(answer)
            if plain or ended:
                return plain
        return early

    async def _read(self) -> bytes:
        """Waits, then reads. `receive_some` tries to read first, which always fails between requests."""
        while (file := self._sending.fileno()) >= 0:
            await trio.lowlevel.wait_readable(file)
            if self._sending.fileno() != file:  # closed in this tick: the number may already be another client's
                return b""
            try:
                return os.read(file, RECEIVE_BYTES)
            except BlockingIOError:  # a spurious wake-up
                continue
            except OSError:  # the connection is lost
                break
        return b""

    async def shake_hands(self, session: TlsSession) -> bool:
        """Whether the handshake succeeded."""
        with trio.move_on_after(HANDSHAKE_SECONDS):
            done = False
            while not done:
                try:
                    data = await self._stream.receive_some(RECEIVE_BYTES)
                    if not data:
                        return False
                    done = session.shake_hands(bytes(data))
                except ssl.SSLError:
                    await self._sending.send_waiting(session.take_output())  # the alert names the reason
                    raise
                except trio.BrokenResourceError:
                    return False
                await self._sending.send_waiting(session.take_output())
            self._sending.tls = session
            self._early, _ = session.decrypt(b"")
            return True
        log.debug("connection closed: the TLS handshake took longer than %g s", HANDSHAKE_SECONDS)
        return False
