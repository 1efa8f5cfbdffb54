"""An https address: the same client through TLS, with a certificate that its authority has signed, and without."""

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
import trio

from triolet.loadtest.client.client import HttpClient
from triolet.loadtest.client.dial import Dialer, read_url
from triolet.loadtest.client.ending import Fault

OPENSSL = shutil.which("openssl")
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if OPENSSL is None:
        pytest.skip("no openssl on this machine to make a certificate with")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    subprocess.run(
        [OPENSSL, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(path),
         "-out", str(path.with_suffix(".crt"))],
        check=True, capture_output=True,
    )  # fmt: skip
    with path.open("ab") as both:
        both.write(path.with_suffix(".crt").read_bytes())
    return path


async def _serve(stream: trio.SSLStream[trio.SocketStream]) -> None:
    try:
        async for data in stream:
            if data.endswith(b"\r\n\r\n"):
                await stream.send_all(ANSWER)
    except trio.BrokenResourceError:
        pass  # a client that trusts nobody leaves during the handshake


async def test_a_server_behind_tls_is_spoken_to(certificate: Path, nursery: trio.Nursery) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    listeners = await trio.open_ssl_over_tcp_listeners(0, context, host="127.0.0.1", https_compatible=True)
    nursery.start_soon(trio.serve_listeners, _serve, listeners)
    listener = listeners[0].transport_listener
    assert isinstance(listener, trio.SocketListener)
    port = int(listener.socket.getsockname()[1])
    address = read_url(f"https://127.0.0.1:{port}")
    trusting = ssl.create_default_context(cafile=str(certificate))
    client = HttpClient(address, Dialer(address, trusting).connect)
    reuse: list[bool] = []
    with trio.fail_after(30):
        for _ in range(2):
            async with client.request("GET", "/models") as (response, _sent, reused):
                assert await response.read_all() == b"ok"
            reuse.append(reused)
        assert reuse == [False, True]
        await client.close()
        distrusting = HttpClient(address)
        with pytest.raises(Fault, match="certificate verify failed") as raised:
            async with distrusting.request("GET", "/models"):
                pass
    assert raised.value.outcome == "connect"
