"""Usage records of whole servers: after a stop, after a kill, of several web processes, and of a batch's lines."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import httpx
import psutil
import pytest

from ..conftest import READY_LINE, running_server

BODY = {"messages": [{"role": "user", "content": "Count."}], "temperature": 0, "max_tokens": 8}
FILE = ("in.jsonl", b"\n".join(
    json.dumps({"custom_id": f"{number}", "method": "POST", "url": "/v1/chat/completions", "body": BODY}).encode()
    for number in range(3)
))  # fmt: skip


def names(data: Path) -> Counter[str]:
    """The X-Request-Id of each record that is on disk."""
    with closing(sqlite3.connect(data / "usage.sqlite")) as connection:
        return Counter(name for (name,) in connection.execute("SELECT name FROM requests"))


def chat(url: str, name: str) -> None:
    answer = httpx.post(f"{url}/v1/chat/completions", json=BODY, headers={"X-Request-Id": name}, timeout=60)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("options", [(), ("--web-processes", "2")])
def test_a_stop_writes_what_has_ended_and_every_line_of_a_batch_counts_once(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    data = tmp_path / "data"
    with running_server(tmp_path / "log", "--data", str(data), *options) as server, httpx.Client(timeout=60) as client:
        file = client.post(f"{server.url}/v1/files", files={"file": FILE}, data={"purpose": "batch"}).json()["id"]
        batch = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        id = client.post(f"{server.url}/v1/batches", json=batch).json()["id"]
        for number in range(5):
            chat(server.url, f"before-{number}")  # a connection each: whichever process takes it
        until = time.monotonic() + 60
        while client.get(f"{server.url}/v1/batches/{id}").json()["status"] != "completed":
            assert time.monotonic() < until
        totals = client.get(f"{server.url}/v1/usage").json()["data"]
        assert [total["key_digest"] for total in totals] == [""]
        assert 'triolet_usage_records_total{result="lost"} 0.0' in client.get(f"{server.url}/metrics").text
        chat(server.url, "last")  # its record waits for its group when SIGTERM comes
    expected = [*(f"before-{number}" for number in range(5)), *(f"{id}-{line}" for line in (1, 2, 3)), "last"]
    assert names(data) == Counter(expected)


def test_a_kill_loses_no_record_that_is_older_than_a_group(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("triolet")), "serve", "--port", "0", "--kv-cache-memory", "384MiB"]
    with subprocess.Popen([*command, "--data", str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().removeprefix(READY_LINE).strip()
            family = psutil.Process(process.pid).children(recursive=True)
            for number in range(3):
                chat(url, str(number))
            until = time.monotonic() + 60
            while httpx.get(f"{url}/v1/usage").json()["data"][:1] == [] or names(tmp_path).total() < 3:
                assert time.monotonic() < until
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            psutil.wait_procs(family, timeout=30)
        finally:
            process.kill()
    assert names(tmp_path) == Counter("012")
