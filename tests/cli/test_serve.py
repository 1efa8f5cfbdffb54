"""`triolet serve` as a user starts it: a process, its exit codes, its signals."""

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPResponse, IncompleteRead
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
import trio
from trio_websocket import wrap_client_stream

from triolet.cli.options import BUNDLED_MODEL, BUNDLED_NAME
from triolet.loadtest.process import descendants

TRIOLET = str(Path(sys.executable).with_name("triolet"))
EXIT_SECONDS = 60  # only a hang takes so long; the deadline turns it into a failure


class Served(NamedTuple):
    process: subprocess.Popen[str]
    url: str


@contextmanager
def served(*options: str) -> Generator[Served]:
    """A server with the bundled model on a free port, without a terminal; killed at the end unless it has ended."""
    command = [TRIOLET, "serve", "--port", "0", *options]
    output = subprocess.PIPE
    process = subprocess.Popen(command, stdout=output, stderr=output, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        match = re.fullmatch(r"Triolet is ready at (http://127\.0\.0\.1:\d+)\n", line)
        if match is None:
            process.kill()
            pytest.fail(f"{line!r}\n{process.stderr.read()}")
        yield Served(process, match[1])
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def _get(url: str) -> dict[str, object]:
    with urllib.request.urlopen(url, timeout=EXIT_SECONDS) as response:
        body: dict[str, object] = json.load(response)
        return body


@contextmanager
def stream(url: str, tokens: int) -> Generator[HTTPResponse]:
    """A completion of so many tokens, its first event read."""
    host, port = url.removeprefix("http://").split(":")
    with closing(HTTPConnection(host, int(port), timeout=EXIT_SECONDS)) as connection:
        asked = {"model": BUNDLED_NAME, "prompt": "One", "max_tokens": tokens, "stream": True, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(asked), {"Content-Type": "application/json"})
        with connection.getresponse() as response:
            assert response.status == 200, response.read()
            assert response.readline().startswith(b"data: ")
            yield response


def _read_to_end(response: HTTPResponse) -> bytes:
    try:
        return response.read()
    except IncompleteRead as error:
        return error.partial


def test_the_first_signal_lets_a_running_answer_finish_and_exits_with_0() -> None:
    with served() as server:
        assert _get(f"{server.url}/v1/models")["object"] == "list"
        with stream(server.url, tokens=200) as response:
            server.process.send_signal(signal.SIGINT)
            assert b"data: [DONE]" in _read_to_end(response)
        _, report = server.process.communicate(timeout=EXIT_SECONDS)
    assert server.process.returncode == 0, report
    for label in ("model", "runs on", "memory", "KV cache", "chat page", "API"):
        assert re.search(rf"^  {label} +\S", report, re.M), report
    assert "\x1b" not in report  # a pipe gets no colours and no bars


def test_the_drain_timeout_ends_a_running_answer() -> None:
    with served("--drain-timeout", "0") as server, stream(server.url, tokens=1800) as response:
        server.process.send_signal(signal.SIGTERM)
        assert b"data: [DONE]" not in _read_to_end(response)
        assert server.process.wait(timeout=EXIT_SECONDS) == 0


async def test_what_the_drain_timeout_ends_is_told_so() -> None:
    asked = {"prompt": "One", "max_tokens": 1800, "n": 8, "ignore_eos": True}  # 14,400 tokens: seconds
    with served("--drain-timeout", "0.5") as server, trio.fail_after(EXIT_SECONDS):
        async with (
            httpx.AsyncClient(base_url=server.url, timeout=EXIT_SECONDS, verify=False) as client,
            # The stream is ours to close: trio-websocket forgets it when the server closes first, as it does here.
            await trio.open_tcp_stream("127.0.0.1", int(server.url.rpartition(":")[2])) as stream,
            client.stream("POST", "/v1/completions", json=asked | {"stream": True}) as streamed,
            trio.open_nursery() as nursery,
        ):
            socket = await wrap_client_stream(nursery, stream, "127.0.0.1", "/v1/stream")
            whole: list[httpx.Response] = []

            async def ask_for_a_whole_answer() -> None:
                whole.append(await client.post("/v1/completions", json=asked))

            nursery.start_soon(ask_for_a_whole_answer)
            await socket.send_message(json.dumps({"type": "create", "id": "a", "request": asked}))
            assert json.loads(await socket.get_message())["type"] == "started"
            while (await client.get("/internal/ledger")).json()["requests"] < 3:
                await trio.lowlevel.checkpoint()
            server.process.send_signal(signal.SIGTERM)
            lines = [line async for line in streamed.aiter_lines() if line]
            frames = [json.loads(await socket.get_message())]
            while frames[-1]["type"] == "token":
                frames.append(json.loads(await socket.get_message()))
        _, report = server.process.communicate(timeout=EXIT_SECONDS)
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "shutting_down"
    assert (frames[-1]["type"], frames[-1]["error"]["code"]) == ("failed", "shutting_down")
    assert (whole[0].status_code, whole[0].json()["error"]["code"]) == (503, "shutting_down")
    assert server.process.returncode == 0, report
    # Every request has its line in the log, and nothing else has one.
    logged = [line for line in report.splitlines() if re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", line)]
    assert len(logged) == 3, report
    assert all(re.search(r" INFO triolet\.requests: \S+ error .* shutting_down$", line) for line in logged), report


def _command(pid: int) -> bytes:
    """Empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _signal_until_draining(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    process.send_signal(signal.SIGINT)
    while "Finishing running answers" not in process.stderr.readline():
        assert process.poll() is None


@pytest.mark.parametrize("options", [(), ("--web-processes", "2")])
def test_an_upgrade_ends_nothing_and_the_second_signal_a_running_answer_with_its_last_event_and_both_servers(
    options: tuple[str, ...],
) -> None:
    with served("--drain-timeout", "1000", *options) as server:
        server.process.send_signal(signal.SIGHUP)  # as a service manager does
        assert _get(f"{server.url}/health/ready")
        with stream(server.url, tokens=1800) as response:
            _signal_until_draining(server.process)
            started = descendants(server.process.pid)  # the next server too
            server.process.send_signal(signal.SIGINT)
            last = [line for line in _read_to_end(response).splitlines() if line][-1]
            error = json.loads(last.removeprefix(b"data: "))["error"]
            assert (error["code"], error["message"]) == ("shutting_down", "The server shut down before the end.")
            assert server.process.wait(timeout=EXIT_SECONDS) == 0
            deadline = time.monotonic() + EXIT_SECONDS
            while any(map(_command, started)):
                assert time.monotonic() < deadline, [_command(pid) for pid in started]


def test_the_third_signal_kills() -> None:
    with served("--drain-timeout", "1000") as server, stream(server.url, tokens=1800):
        _signal_until_draining(server.process)
        server.process.send_signal(signal.SIGSTOP)  # so that both are there when it looks, and the second ends nothing
        server.process.send_signal(signal.SIGINT)
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGCONT)
        assert server.process.wait(timeout=EXIT_SECONDS) == 1


def test_the_model_runs_in_the_server_s_process_when_told_to() -> None:
    with served("--inline") as server:
        assert _get(f"{server.url}/health/ready")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("no/such/folder",), "no folder no/such/folder"),
        (("--host", "0.0.0.0"), "--api-key"),
        (("--quantize", "fp8"), "fp8"),
        (("--kv-cache-dtype", "fp8"), "--kv-cache-dtype fp8"),
        (("--kv-cache-memory", "1KiB"), "kv"),
        (("--max-model-len", "100000"), "100000"),
        (("--port", "99999"), "--port"),
    ],
)
def test_what_cannot_be_served_is_refused_with_exit_code_2(arguments: tuple[str, ...], said: str) -> None:
    done = subprocess.run(
        [TRIOLET, "serve", "--port", "0", *arguments], capture_output=True, text=True, timeout=EXIT_SECONDS
    )
    assert done.returncode == 2, done.stderr
    assert said.lower() in done.stderr.lower()
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_port_in_use_is_refused_before_loading() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run([TRIOLET, "serve", "--port", port], capture_output=True, text=True, timeout=EXIT_SECONDS)
    assert done.returncode == 2
    assert f"port {port}" in done.stderr


def test_an_unsupported_configuration_is_refused_naming_it(tmp_path: Path) -> None:
    shutil.copytree(BUNDLED_MODEL, tmp_path, dirs_exist_ok=True)
    config = json.loads((BUNDLED_MODEL / "config.json").read_text()) | {"hidden_act": "mish"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = subprocess.run(
        [TRIOLET, "serve", str(tmp_path), "--port", "0"], capture_output=True, text=True, timeout=EXIT_SECONDS
    )
    assert done.returncode == 2, done.stderr
    assert "hidden_act" in done.stderr
    assert "mish" in done.stderr
