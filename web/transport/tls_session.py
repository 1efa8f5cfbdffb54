"""TLS of one connection as bytes in, bytes out: no socket, no event loop, no waiting.

The connection keeps its socket and its order of writes; what it sends passes through `encrypt`, what it receives
through `decrypt`. So a token's bytes go straight to the kernel over TLS too. The rule that follows: whatever `encrypt`
returned must be sent, in order, for its record numbers are spent.
"""

import ssl
from contextlib import suppress

_READ = 1 << 16


class TlsSession:
    """The server's side of one TLS connection. A peer that breaks the protocol raises `ssl.SSLError`."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    @property
    def protocol(self) -> str | None:
        """What both sides agreed to speak (ALPN); None when the client named nothing."""
        return self._object.selected_alpn_protocol()

    def shake_hands(self, data: bytes) -> bool:
        """Take in what came; whether the handshake is complete. `take_output` has the answer, an alert included."""
        self._incoming.write(data)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def decrypt(self, data: bytes) -> tuple[bytes, bool]:
        """The plain bytes in what came, and whether the peer said that nothing more comes."""
        self._incoming.write(data)
        plain = bytearray()
        try:
            while some := self._object.read(_READ):
                plain += some
        except ssl.SSLWantReadError:
            return bytes(plain), False
        except ssl.SSLZeroReturnError:
            pass
        return bytes(plain), True

    def encrypt(self, data: bytes) -> bytes:
        """What to send for `data`, with everything else that is due."""
        if data:
            self._object.write(data)  # into memory: it always takes all
        return self._outgoing.read()

    def close(self) -> bytes:
        """What to send to say that nothing more comes: without it an end could be an attacker's cut."""
        with suppress(ssl.SSLError):  # the peer has not said the same yet, or broke the connection
            self._object.unwrap()
        return self._outgoing.read()

    def take_output(self) -> bytes:
        """What the protocol itself has to say: handshake, alerts, new keys."""
        return self._outgoing.read()
