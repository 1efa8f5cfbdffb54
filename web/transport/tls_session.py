"""TLS of one connection as bytes in, bytes out: no socket, no event loop, no waiting.

The connection keeps its socket and its order of writes; outgoing bytes pass through `encrypt`, incoming ones through
`decrypt`. So a token's bytes go straight to the kernel with TLS, too. The results of `encrypt` must be sent, in order,
because their record numbers are used up.
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
        """The negotiated protocol (ALPN); None if the client named none."""
        return self._object.selected_alpn_protocol()

    def shake_hands(self, data: bytes) -> bool:
        """Process received bytes; returns whether the handshake is complete. `take_output` has the reply or alert."""
        self._incoming.write(data)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def decrypt(self, data: bytes) -> tuple[bytes, bool]:
        """The decrypted bytes, and whether the peer said that nothing more comes."""
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
        """The bytes to send for `data`, with everything else that is due."""
        if data:
            self._object.write(data)  # into memory: it always takes all
        return self._outgoing.read()

    def close(self) -> bytes:
        """The bytes that announce the end: without them, an end could be an attacker's cut."""
        with suppress(ssl.SSLError):  # the peer has not said the same yet, or broke the connection
            self._object.unwrap()
        return self._outgoing.read()

    def take_output(self) -> bytes:
        """The protocol's own output: handshake, alerts, new keys."""
        return self._outgoing.read()
