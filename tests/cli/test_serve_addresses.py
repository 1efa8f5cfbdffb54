"""`triolet serve` on a Unix socket and in TLS, with the clients that people use."""

import json
import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import httpx
import pytest
from openai import OpenAI

from ..conftest import Certificate, Server, running_server

QUESTION = "What is 3 plus 4?"
SOON = 20.0


def _ask(client: OpenAI) -> str:
    """The streamed answer, put together."""
    (model,) = client.models.list().data
    stream = client.chat.completions.create(
        model=model.id, messages=[{"role": "user", "content": QUESTION}], temperature=0, stream=True
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


@pytest.fixture(scope="module")
def answer(server: Server) -> str:
    """What the ordinary server says."""
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        return _ask(client)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_the_openai_client_over_a_unix_socket_for_its_owner_alone(tmp_path: Path, answer: str, processes: str) -> None:
    path = tmp_path / "server.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    with running_server(tmp_path / "log", "--uds", str(path), "--web-processes", processes) as served:
        assert unquote(served.url) == f"unix:{path}"
        assert "open to this user" in served.log.read_text()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        transport = httpx.HTTPTransport(uds=str(path))
        http = httpx.Client(transport=transport, base_url="http://localhost", timeout=SOON)
        with OpenAI(base_url="http://localhost/v1", api_key="none", max_retries=0, http_client=http) as client:  # type: ignore[arg-type]  # httpx2's, by its types
            assert _ask(client) == answer
    assert not path.exists()


@pytest.fixture(scope="module")
def certificate(make_certificate: Callable[[], Certificate]) -> Certificate:
    return make_certificate()


@pytest.fixture(scope="module")
def secure(serve_process: Callable[..., Server], certificate: Certificate) -> Server:
    served = serve_process("--ssl-certfile", certificate.certfile, "--ssl-keyfile", certificate.keyfile)
    assert served.url.startswith("https://127.0.0.1:")
    return served


@pytest.mark.parametrize(("http2", "version"), [(True, "HTTP/2"), (False, "HTTP/1.1")])
def test_the_openai_client_over_tls(
    secure: Server, certificate: Certificate, answer: str, http2: bool, version: str
) -> None:
    versions: set[str] = set()
    verify = ssl.create_default_context(cafile=certificate.certfile)

    def hear(response: httpx.Response) -> None:
        versions.add(response.http_version)

    http = httpx.Client(verify=verify, http2=http2, event_hooks={"response": [hear]}, timeout=SOON)
    with OpenAI(base_url=f"{secure.url}/v1", api_key="none", max_retries=0, http_client=http) as client:  # type: ignore[arg-type]  # httpx2's, by its types
        assert _ask(client) == answer
    assert versions == {version}


def test_curl_streams_over_http_2(secure: Server, certificate: Certificate) -> None:
    curl = shutil.which("curl")
    if curl is None or "HTTP2" not in subprocess.run([curl, "--version"], capture_output=True, text=True).stdout:
        pytest.skip("no curl with HTTP/2 here")
    body = {"prompt": "One", "max_tokens": 20, "stream": True, "ignore_eos": True}
    command = [curl, "--silent", "--http2", "--cacert", certificate.certfile, "--write-out", "%{http_version}"]
    posted = ["--header", "Content-Type: application/json", "--data", json.dumps(body)]
    done = subprocess.run(
        [*command, *posted, f"{secure.url}/v1/completions"], capture_output=True, text=True, timeout=SOON
    )
    assert done.stdout.endswith("data: [DONE]\n\n2")


def _served_certificate(url: str) -> str:
    host, port = url.removeprefix("https://").split(":")
    return ssl.get_server_certificate((host, int(port)), timeout=SOON)


def test_sighup_reads_the_certificate_again(
    secure: Server, certificate: Certificate, make_certificate: Callable[[], Certificate]
) -> None:
    before, renewed = _served_certificate(secure.url), make_certificate()
    for target, source in zip(certificate, renewed, strict=True):
        shutil.copyfile(source, target)
    assert _served_certificate(secure.url) == before
    # A new server takes over soon, and that one starts programs and compiles.
    (secure.log.with_name(f"{secure.log.name}-audit") / "serving").unlink()
    os.kill(secure.pid, signal.SIGHUP)
    began = time.monotonic()
    while _served_certificate(secure.url) == before:  # the signal gives no answer
        assert time.monotonic() - began < SOON
    assert _served_certificate(secure.url).split() == Path(renewed.certfile).read_text().split()
