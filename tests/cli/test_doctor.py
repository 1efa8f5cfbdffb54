"""`triolet doctor` of a server that answers, one that hangs, and one that was killed; and that no text of a request
gets into what it prints or what servers record.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner, Result

from triolet.cli import doctor
from triolet.cli.main import main

from ..conftest import READY_LINE, Server, running_server
from ..stuck_server import SCRIPT

CANARY = "canaryxylophone"
PATIENCE = 60.0  # seconds, at most
T = TypeVar("T")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["doctor", *arguments], env={"COLUMNS": "160"})


def complete(url: str, prompt: str, **fields: object) -> None:
    body = json.dumps({"prompt": prompt, "max_tokens": 8, "ignore_eos": True, **fields}).encode()
    headers = {"Content-Type": "application/json", "X-Request-Id": CANARY}
    with urlopen(Request(f"{url}/v1/completions", body, headers)) as answer:
        answer.read()


def recordings(log: Path) -> list[Path]:
    return sorted((log.parent / "state" / "triolet" / "flight").glob("*.jsonl"))


def test_a_server_that_answers(serve_process: Callable[..., Server], tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("operator-key\n")
    server = serve_process("--operator-key", "operator-key")
    complete(server.url, CANARY)
    said = run(server.url, "--api-key", f"@{tmp_path / 'keys'}")
    assert said.exit_code == 0, said.output
    for words in ("ready at", "Nothing looks wrong.", "KV cache", "free +", "of prompts", "worker", "ready: pid "):
        assert words in said.output
    for task in ("run_scheduler, in MemoryReceiveChannel.receive", "run_supervisor", "Hangups.watch"):
        assert task in said.output
    report = json.loads(run(server.url, "--api-key", "operator-key", "--json").output)
    assert [record[0] for record in report["recordings"]["triolet-demo"]["records"]].count("back") >= 8
    assert CANARY not in said.output + json.dumps(report) + "".join(map(Path.read_text, recordings(server.log)))
    refused = run(server.url)
    assert (refused.exit_code, "--api-key KEY" in refused.output) == (1, True)


def test_with_several_web_processes_any_of_them_tells_of_the_scheduler(tmp_path: Path) -> None:
    with running_server(tmp_path / "log", "--web-processes", "2") as server:
        complete(server.url, CANARY)
        said = run(server.url).output
        scheduler, _, web = said.partition("Where the scheduler's process is:")[2].partition("\nWhere it is:")
        assert "run_scheduler, in" in scheduler
        assert "run_scheduler" not in web
        assert "run_tokenizer" in web
        assert "of prompts" in said


def test_several_models_have_a_recording_each(tmp_path: Path) -> None:
    demo = Path(__file__).parents[2] / "models" / "demo" / "checkpoint"
    small = ("--kv-cache-memory", "64MiB", "--max-model-len", "512")
    with running_server(tmp_path / "log", f"a={demo}", f"b={demo}", *small) as server:
        complete(server.url, "x", model="b")
        report = json.loads(run(server.url, "--json").output)
        steps = {
            name: sum(record[0] == "sent" for record in recording["records"])
            for name, recording in report["recordings"].items()
        }
        assert steps.keys() == {"a", "b"}
        assert steps["a"] == 0 < steps["b"]
        assert len(recordings(server.log)) == 2


@contextmanager
def lost_server(folder: Path, *command: str) -> Generator[tuple[subprocess.Popen[str], str, Path]]:
    """A server that will not end in order: its process, its URL and the file of its flight recorder."""
    small = ("--port", "0", "--kv-cache-memory", "64MiB", "--max-model-len", "512")
    own = os.environ | {"XDG_STATE_HOME": str(folder / "state")}
    with subprocess.Popen(
        [*command, *small], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=own
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().removeprefix(READY_LINE).strip()
            complete(url, CANARY)
            yield process, url, until(lambda: next(iter(recordings(folder / "log")), None))
        finally:
            process.kill()


def until(found: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + PATIENCE
    while not (value := found()):
        assert time.monotonic() < deadline
    return value


def test_a_server_whose_event_loop_is_stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lost_server(tmp_path, sys.executable, "-c", SCRIPT) as (process, url, file):
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname, parts.port)) as asking:
            asking.sendall(b"GET /health/ready HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert process.stdout is not None
            assert process.stdout.readline() == "stuck\n"
            until(lambda: '"stuck"' in file.read_text())  # its thread has noticed
            said = run("--pid", str(process.pid))
        assert said.exit_code == 1
        stacks, _, tasks = said.output.partition("Where it is:")[2].partition("Tasks:")
        assert "wait_for_ever" in stacks  # of the main thread
        assert "run_scheduler, in MemoryReceiveChannel.receive" in tasks
        assert "The event loop is stuck" in said.output
        assert "of prompts" in said.output  # the steps before
        assert CANARY not in said.output
        assert process.poll() is None
        process.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(doctor, "STACK_SECONDS", 0.2)
        assert "is it stopped?" in run("--pid", str(process.pid)).output


def test_a_server_that_was_killed(tmp_path: Path) -> None:
    triolet = str(Path(sys.executable).with_name("triolet"))
    with lost_server(tmp_path, triolet, "serve") as (process, _, file):
        until(lambda: '"back"' in file.read_text())
        process.kill()
    with file.open("a") as torn:
        torn.write('["sent",77')
    said = run(str(file))
    assert said.exit_code == 1
    assert "recorded until" in said.output
    assert "The recording ends without a stop" in said.output
    assert "of prompts" in said.output
    assert CANARY not in said.output


def test_an_orderly_end_is_recorded(tmp_path: Path) -> None:
    with running_server(tmp_path / "log") as server:
        pass
    (file,) = recordings(server.log)
    said = run(str(file))
    assert (said.exit_code, "in order" in said.output) == (0, True), said.output
    assert list(file.parent.glob("*.stacks")) == []


def test_what_cannot_be_looked_at_is_refused(tmp_path: Path) -> None:
    other = run("--pid", str(os.getpid()))
    assert (other.exit_code, "is no Triolet server" in other.output) == (2, True)
    gone = run(str(tmp_path / "gone.jsonl"))
    assert (gone.exit_code, "cannot be read" in gone.output) == (2, True)
    (tmp_path / "text").write_text("text\n")
    text = run(str(tmp_path / "text"))
    assert (text.exit_code, "is not a file of the flight recorder" in text.output) == (2, True)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        silent = run(f"http://127.0.0.1:{nobody.getsockname()[1]}")
    assert (silent.exit_code, "triolet doctor --pid PID" in silent.output) == (1, True)
