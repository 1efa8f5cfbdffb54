"""TLS: the server's certificate, and one connection as bytes in, bytes out.

The certificate is read from its files at the start, and again when the operator asks. Each handshake uses the current
context. A renewed certificate therefore applies from the next connection on, and open ones do not notice. Files that
do not match are an error at the start; later they are logged, and the old certificate stays in use.

A session has no socket and never waits: the connection keeps the socket and the order of writes. It passes what it
sends through `encrypt` and what it receives through `decrypt`. So a token's bytes go straight to the kernel over TLS
too. But whatever `encrypt` returns must be sent, in order, because its record numbers are used up.
"""

import logging
import ssl
from contextlib import suppress

log = logging.getLogger("triolet.http")

ALPN = ("h2", "http/1.1")
# For TLS 1.2: HTTP/2 forbids its older suites (RFC 9113, appendix A). All suites of TLS 1.3 are sound.
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
_READ = 1 << 16


class CertificateError(Exception):
    """The files are not a certificate and its key. The message names the file."""


class Certificates:
    """The context that the next handshake uses."""

    def __init__(self, certfile: str, keyfile: str | None) -> None:
        self._certfile = certfile
        self._keyfile = keyfile
        self.context = load_context(certfile, keyfile)

    def reload(self) -> bool:
        """Read the files again; returns whether they are now in use."""
        try:
            self.context = load_context(self._certfile, self._keyfile)
        except CertificateError as error:
            log.error("the certificate was not reloaded, the old one serves on: %s", error)
            return False
        log.info("the certificate was reloaded from %s", self._certfile)
        return True


def load_context(certfile: str, keyfile: str | None) -> ssl.SSLContext:
    """A context with the certificate chain and its key (from the same file if there is no key file)."""
    for path in (certfile, keyfile):
        try:
            if path is not None:
                open(path, "rb").close()
        except OSError as error:
            raise CertificateError(f"{path}: {error.strerror}") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_ciphers(CIPHERS)
    context.set_alpn_protocols(list(ALPN))
    try:
        context.load_cert_chain(certfile, keyfile, password=_no_password)
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or str(error)
        named = certfile if keyfile is None else f"{certfile} with the key {keyfile}"
        raise CertificateError(f"{named}: {reason.replace('_', ' ').lower()}") from error
    return context


def _no_password() -> str:
    """Without this, OpenSSL would prompt on the terminal and block the whole server."""
    raise CertificateError("the key is encrypted; give one without a password, readable by this user alone")


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
        """The decrypted bytes, and whether the peer announced its end."""
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
        """The bytes to send for `data`, with any pending protocol output."""
        if data:
            self._object.write(data)  # into memory, so always everything
        return self._outgoing.read()

    def close(self) -> bytes:
        """The bytes that announce the end. Without them, an attacker could have cut the connection."""
        with suppress(ssl.SSLError):  # the peer has not announced its end yet, or broke the connection
            self._object.unwrap()
        return self._outgoing.read()

    def take_output(self) -> bytes:
        """The protocol's own output: handshake, alerts, key updates."""
        return self._outgoing.read()
