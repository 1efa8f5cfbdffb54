"""The nginx and Caddy configurations of docs/deployment.md, as printed but for names and ports, before a real server.

Pages, event streams and WebSockets pass; a client that leaves is noticed; the Kubernetes manifest's probes work.
"""

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import httpx
import psutil
import pytest
import trio
import yaml
from trio_websocket import open_websocket_url

from ..conftest import Certificate, MakeCertificate, Server
from .blocks import blocks_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "deployment.md"
KEY = "a-key-of-this-test"
BODY: dict[str, object] = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}


class Proxy(NamedTuple):
    url: str
    server: Server
    client: httpx.Client
    trusted: ssl.SSLContext | None


def printed(language: str) -> str:
    return next(block.text for block in blocks_of(PAGE.read_text()) if block.language == language)


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert old in text, f"docs/deployment.md no longer has {old!r}"
        text = text.replace(old, new)
    return text


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return cast("int", probe.getsockname()[1])


@contextmanager
def listening(command: list[str], port: int, log: Path) -> Generator[None]:
    """The proxy, once its port takes connections."""
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            while process.poll() is None:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
            assert process.poll() is None, log.read_text()
            yield
        finally:
            process.terminate()


def nginx_command(server: Server, port: int, files: Certificate, folder: Path) -> list[str]:
    site = replaced(
        printed("nginx"),
        ("listen 443", f"listen 127.0.0.1:{port}"),
        ("/etc/ssl/llm/chain.pem", files.certfile),
        ("/etc/ssl/llm/key.pem", files.keyfile),
        ("127.0.0.1:8000", server.url.removeprefix("http://")),
    )
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    user = "user root;" if os.geteuid() == 0 else ""  # its workers would be another user, who cannot write here
    text = f"{user} daemon off; pid {folder}/pid; events {{}} http {{ access_log off; {folders} {site} }}"
    (folder / "nginx.conf").write_text(text)
    program = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin") or "nginx"
    return [program, "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")]


def caddy_command(server: Server, port: int, _files: Certificate, folder: Path) -> list[str]:
    site = replaced(
        printed("caddy"),
        ("llm.example.com", f"http://127.0.0.1:{port}"),
        ("127.0.0.1:8000", server.url.removeprefix("http://")),
    )
    version = subprocess.run(["caddy", "version"], capture_output=True, text=True, check=True).stdout
    if tuple(int(part) for part in re.findall(r"\d+", version)[:3]) < (2, 6, 3):
        site = replaced(site, ("request_buffers 4MiB", "buffer_requests"))
    (folder / "Caddyfile").write_text(f"{{\n    admin off\n    auto_https off\n}}\n{site}")
    return ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


@pytest.fixture(scope="module")
def behind(serve_process: Callable[..., Server]) -> Server:
    """The server as the page starts it."""
    return serve_process("--root-path", "/llm", "--api-key", KEY)


@pytest.fixture(params=["nginx", "caddy"])
def proxy(
    request: pytest.FixtureRequest, behind: Server, make_certificate: MakeCertificate, tmp_path: Path
) -> Iterator[Proxy]:
    if shutil.which(str(request.param), path=os.environ["PATH"] + ":/usr/sbin") is None:
        pytest.skip(f"no {request.param} here")
    files, port, server = make_certificate(), free_port(), behind._replace(url=behind.url.removesuffix("/llm"))
    make = {"nginx": nginx_command, "caddy": caddy_command}[request.param]
    secure = request.param == "nginx"
    trusted = ssl.create_default_context(cafile=files.certfile) if secure else None
    with (
        listening(make(server, port, files, tmp_path), port, tmp_path / "log"),
        httpx.Client(verify=trusted or True, headers={"Authorization": f"Bearer {KEY}"}, timeout=30) as client,
    ):
        yield Proxy(f"http{'s' if secure else ''}://127.0.0.1:{port}/llm", server, client, trusted)


def test_pages_and_plain_answers_pass(proxy: Proxy) -> None:
    assert "<title>" in proxy.client.get(f"{proxy.url}/").text
    assert proxy.client.get(f"{proxy.url}/v1/models").json()["data"][0]["id"] == "triolet-demo"
    large = " " * 2_000_000 + '{"prompt": "Hi"}'  # beyond nginx's own limit of 1 MiB
    headers = {"Content-Type": "application/json"}
    assert proxy.client.post(f"{proxy.url}/tokenize", content=large, headers=headers).json()["count"] > 0


def test_an_event_stream_is_not_held_back(proxy: Proxy) -> None:
    """The worker stands still, so nothing follows the first event that could push it out of a buffer."""
    children = psutil.Process(proxy.server.pid).children()
    worker = next(child for child in children if "worker" in " ".join(child.cmdline()))
    worker.send_signal(signal.SIGSTOP)
    try:
        explained = {"X-Triolet-Explain": "1"}
        with proxy.client.stream("POST", f"{proxy.url}/v1/chat/completions", json=BODY, headers=explained) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith(("data: ", ": explain "))
            worker.send_signal(signal.SIGCONT)
            assert [line for line in lines if line][-1] == "data: [DONE]"
    finally:
        worker.send_signal(signal.SIGCONT)


def test_a_client_that_leaves_is_noticed(proxy: Proxy) -> None:
    endless = {**BODY, "ignore_eos": True}
    with proxy.client.stream("POST", f"{proxy.url}/v1/chat/completions", json=endless) as answer:
        name = answer.headers["X-Request-Id"]
        assert next(answer.iter_lines()).startswith("data: ")
    where = f"{proxy.server.url}/v1/requests/{name}"
    while (told := proxy.client.get(where).json())["state"] != "finished":
        pass
    assert told["finish_reason"] == "cancelled"


async def test_a_websocket_passes(proxy: Proxy) -> None:
    url = proxy.url.replace("http", "ws", 1) + "/v1/stream"
    key = [(b"Authorization", f"Bearer {KEY}".encode())]
    with trio.fail_after(60):
        async with open_websocket_url(url, ssl_context=proxy.trusted, extra_headers=key) as open_socket:
            await open_socket.send_message(json.dumps({"type": "create", "id": "a", "request": {"prompt": "Once"}}))
            kinds: list[str] = []
            while not kinds or kinds[-1] not in ("finished", "failed", "error"):
                kinds.append(json.loads(await open_socket.get_message())["type"])
    assert kinds[-1] == "finished"


def test_the_probes_of_the_manifest_work(behind: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    pod: dict[str, Any] = next(yaml.safe_load_all(printed("yaml")))["spec"]["template"]["spec"]  # Any: YAML's values
    container: dict[str, Any] = pod["containers"][0]
    base = behind.url.removesuffix("/llm")
    for probe in ("startupProbe", "livenessProbe"):
        assert httpx.get(base + container[probe]["httpGet"]["path"], timeout=60).status_code == 200
    _, *command = container["readinessProbe"]["exec"]["command"]
    asked = [replaced(command[-1], ("http://127.0.0.1:8000", base))]
    for key, status in ((KEY, 0), ("another", 1)):
        monkeypatch.setenv("TRIOLET_API_KEY", key)
        assert subprocess.run([sys.executable, *command[:-1], *asked], capture_output=True).returncode == status
    verb, *options = container["args"]
    assert verb == "serve"
    accepted = subprocess.run([sys.executable, "-m", "triolet", "config", *options[:-1]], capture_output=True)
    assert accepted.returncode == 0, accepted.stderr
    drain = re.search(r"--drain-timeout (\d+)", " ".join(options))
    assert drain is not None
    assert pod["terminationGracePeriodSeconds"] > int(drain[1])
