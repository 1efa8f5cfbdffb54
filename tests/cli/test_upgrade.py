"""A new server takes over from a running one: no connection is refused or reset, no stream breaks, and the service
keeps the number of its process.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import trio

from triolet.loadtest.process import descendants

from ..conftest import Server, running_server

PATIENCE = 60.0  # seconds, at most
TRIOLET = str(Path(sys.executable).with_name("triolet"))
LONG = {"prompt": "One", "max_tokens": 1200, "ignore_eos": True, "temperature": 0, "stream": True}
SMALL_BUFFER = 4096  # bytes: the client's, so that its answer is not finished before it is read


class SlowReader:
    """A client that asks for a long answer and reads it later."""

    def __init__(self, url: str) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        self._socket.settimeout(PATIENCE)
        address = urlsplit(url)
        self._socket.connect((address.hostname, address.port))
        body = json.dumps(LONG).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._socket.sendall(b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body))
        assert self._socket.recv(12) == b"HTTP/1.1 200"

    def text(self) -> str:
        """The whole answer, which must end as every stream does."""
        with closing(self._socket), self._socket.makefile("rb") as file:
            lines: list[bytes] = []
            for line in file:
                if line.startswith(b"data: "):
                    lines.append(line.removeprefix(b"data: ").strip())
                    if lines[-1] == b"[DONE]":
                        break
        assert lines[-1] == b"[DONE]"
        return "".join(json.loads(line)["choices"][0]["text"] for line in lines[:-1] if b'"text"' in line)


async def upgrade(server: Server, *options: str) -> "subprocess.CompletedProcess[bytes]":
    """Without options, of the server of the data folder."""
    own = os.environ | {"XDG_STATE_HOME": str(server.log.parent / "state")}
    command = [TRIOLET, "upgrade", *options]
    return await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False, env=own)


async def choices(client: httpx.AsyncClient, count: int) -> int:
    """The status of a request for so many choices."""
    return (await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1, "n": count})).status_code


@asynccontextmanager
async def clients_all_the_time(url: str) -> AsyncGenerator[None]:
    """One client opens a connection for each request, the other keeps its own: all are answered."""
    answered = [0, 0]

    async def ask(number: int, kept: bool) -> None:
        limits = httpx.Limits(max_keepalive_connections=1 if kept else 0)
        async with httpx.AsyncClient(base_url=url, limits=limits, timeout=PATIENCE, verify=False) as client:
            while True:
                (await client.get("/v1/models")).raise_for_status()
                assert await choices(client, 1) == 200
                answered[number] += 1
                await trio.sleep(0.02)  # a new server shares the cores with it

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, 0, False)
        nursery.start_soon(ask, 1, True)
        yield
        nursery.cancel_scope.cancel()
    assert min(answered) > 10


async def wait_gone(pid: int, what: bytes) -> None:
    """Until the process has ended, or runs something else."""
    with trio.fail_after(PATIENCE):
        while what in command_of(pid):  # noqa: ASYNC110  # a process gives no event
            await trio.sleep(0.02)


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def test_one_server_after_another(tmp_path: Path) -> None:
    settings = tmp_path / "triolet.toml"
    settings.write_text("max-choices = 1")
    patient = ("--stall-timeout", "600", "--send-timeout", "600")  # with clients that read later
    options = ("--config", str(settings), "--kv-cache-memory", "64MiB", *patient)
    with running_server(tmp_path / "log", *options) as server:
        serving = server.log.with_name(f"{server.log.name}-audit") / "serving"
        serving.unlink()  # a server that starts compiles, and starts programs
        expected = SlowReader(server.url).text()
        readers = [SlowReader(server.url) for _ in range(2)]
        anew = httpx.Limits(max_keepalive_connections=0)  # an open connection may ask the old server once more
        async with httpx.AsyncClient(base_url=server.url, limits=anew, timeout=PATIENCE, verify=False) as client:
            assert await choices(client, 2) == 400

            # The new server has new settings; what the old one has begun it finishes.
            settings.write_text("max-choices = 2")
            async with clients_all_the_time(server.url):
                done = await upgrade(server)
                assert done.returncode == 0, done.stderr + server.log.read_bytes()
                assert b"serves" in done.stdout
            assert await choices(client, 2) == 200
            refused = await upgrade(server)
            assert (refused.returncode, b"still finishes its answers" in refused.stderr) == (1, True)
            assert b"serve" in command_of(server.pid).split(b"\0")
            assert [reader.text() for reader in readers] == [expected] * 2
            await wait_gone(server.pid, b"\0serve\0")
            second = [pid for pid in descendants(server.pid) if b"\0serve\0" in command_of(pid)]
            assert len(second) == 1

            # One that cannot start changes nothing.
            settings.write_text("max-choises = 3")
            refused = await upgrade(server, "--pid", str(server.pid))
            assert (refused.returncode, b"unknown key 'max-choises'" in refused.stderr) == (1, True)
            assert b"unknown key 'max-choises'" in server.log.read_bytes()
            assert await choices(client, 2) == 200

            # The second in a row: the one in the middle leaves nothing.
            settings.write_text("max-choices = 3")
            reader = SlowReader(server.url)
            async with clients_all_the_time(server.url):
                done = await upgrade(server)
                assert done.returncode == 0, done.stderr + server.log.read_bytes()
            serving.touch()
            assert await choices(client, 3) == 200
            assert reader.text() == expected
            with trio.fail_after(PATIENCE):
                while second[0] in (third := descendants(server.pid)):  # noqa: ASYNC110  # as above
                    await trio.sleep(0.02)
            assert len([pid for pid in third if b"\0serve\0" in command_of(pid)]) == 1
    # It has ended with status 0 (running_server), and so have all others.
    assert [pid for pid in third if command_of(pid)] == []
