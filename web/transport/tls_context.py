"""The server's certificate: read from its files at the start, and again on request.

A handshake uses the current context, so a renewed certificate is used from the next connection on; open ones continue.
Invalid files are an error at the start. Later they are a line in the log, and the old certificate stays in use.
"""

import logging
import ssl

log = logging.getLogger("triolet.http")

ALPN = ("h2", "http/1.1")
# For TLS 1.2, whose older suites HTTP/2 forbids (RFC 9113, appendix A); those of TLS 1.3 are all sound.
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


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
