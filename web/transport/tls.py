"""TLS: the server's certificate, and one connection as bytes in, bytes out.

The certificate is read from its files at the start, and again when the operator says so. A handshake uses the context
of its moment, so a renewed certificate is served from the next connection on and no open one notices. Files that do not
fit are an error at the start; later they are a line in the log, and the old ones serve.

A session has no socket and never waits: the connection keeps its socket and its order of writes. What it sends passes
through `encrypt`, what it receives through `decrypt`, so a token's bytes go straight to the kernel over TLS too. The
rule that follows: whatever `encrypt` returned must be sent, in order, for its record numbers are spent.
"""

import logging
import ssl
from contextlib import suppress

log = logging.getLogger("triolet.http")

ALPN = ("h2", "http/1.1")
# For TLS 1.2, whose older suites HTTP/2 forbids (RFC 9113, appendix A); those of TLS 1.3 are all sound.
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
_READ = 1 << 16


class CertificateError(Exception):
    """The files are not a certificate and its key; a plain sentence that names the file."""


class Certificates:
    """The context that the next handshake uses."""

    def __init__(self, certfile: str, keyfile: str | None) -> None:
        self._certfile = certfile
        self._keyfile = keyfile
        self.context = load_context(certfile, keyfile)

    def reload(self) -> bool:
        """Read the files again; returns whether they are used from now on."""
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
    """Without this, OpenSSL would ask at the terminal and the whole server would wait for the answer."""
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
