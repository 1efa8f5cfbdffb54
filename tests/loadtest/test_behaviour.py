"""The behaviour benchmark against our server, which must do well, and against a bad one, which must not."""

import signal
import socket
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio

from triolet.cli.bench_behaviour import FLOOD_KEY, OWN, PROBE_KEY
from triolet.loadtest.behaviour.bench import examine
from triolet.loadtest.behaviour.client import ChatStream, Target, stream_chat
from triolet.loadtest.behaviour.plan import BehaviourPlan, Subject
from triolet.loadtest.behaviour.results import (
    BehaviourReport,
    Drained,
    Isolation,
    Leaving,
    NotMeasurable,
    SlowReaders,
    WorkerDeath,
)
from triolet.loadtest.behaviour.table import rows, table_of
from triolet.loadtest.process import descendants

TRIOLET = str(Path(sys.executable).with_name("triolet"))
BAD = f"{sys.executable} {Path(__file__).with_name('bad_server.py')} {{port}}"
PLAN = BehaviourPlan(
    streams=2, long_tokens=1500, drain_tokens=100, readers=4, flood=4, flood_tokens=8, hold_seconds=2.0, patience=30.0
)


def _examine(subject: Subject, plan: BehaviourPlan, log: Path) -> BehaviourReport:
    return trio.run(partial(examine, subject, plan, log))


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> BehaviourReport:
    command = f"{OWN} --threads 1 --kv-cache-memory 32MiB"
    subject = Subject(name="Triolet", command=command, keys=(PROBE_KEY, FLOOD_KEY))
    return _examine(subject, PLAN, tmp_path_factory.mktemp("ours") / "log")


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> BehaviourReport:
    plan = msgspec.structs.replace(PLAN, streams=4, long_tokens=400, patience=2.0)
    return _examine(Subject(name="bad", command=BAD), plan, tmp_path_factory.mktemp("bad") / "log")


def test_our_engine_stops_when_its_clients_leave(ours: BehaviourReport) -> None:
    result = ours.results["leaving"]
    assert isinstance(result, Leaving)
    assert result.seen_by == "/internal/ledger"
    assert result.seconds is not None


def test_a_server_that_computes_on_is_caught(bad: BehaviourReport) -> None:
    result = bad.results["leaving"]
    assert isinstance(result, Leaving), result
    assert result.seen_by == "a probe that is fast again"
    assert result.seconds is None


def test_what_is_not_read_is_not_kept(ours: BehaviourReport, bad: BehaviourReport) -> None:
    small, large = ours.results["slow readers"], bad.results["slow readers"]
    assert isinstance(small, SlowReaders)
    assert isinstance(large, SlowReaders)
    assert small.probe_seconds is not None
    assert large.grown_bytes_each > 200 * 1024


def test_a_flood_by_another_key_is_seen(ours: BehaviourReport) -> None:
    result = ours.results["isolation"]
    assert isinstance(result, Isolation)
    assert result.separate_keys
    assert result.probes_failed == 0
    assert result.flood_answered > 0


def test_our_streams_outlive_their_worker(ours: BehaviourReport) -> None:
    result = ours.results["worker death"]
    assert isinstance(result, WorkerDeath)
    assert (result.went_on, result.cut) == (2, 0)
    assert result.recovered_seconds is not None


def test_a_server_of_one_process_has_no_worker_to_kill(bad: BehaviourReport) -> None:
    result = bad.results["worker death"]
    assert isinstance(result, NotMeasurable)
    assert "one process" in result.because


def test_ours_drains_and_the_bad_one_cuts(ours: BehaviourReport, bad: BehaviourReport) -> None:
    good, cut = ours.results["drain"], bad.results["drain"]
    assert isinstance(good, Drained)
    assert isinstance(cut, Drained)
    assert (good.finished, good.cut, good.exit_code) == (2, 0, 0)
    assert (cut.finished, cut.cut, cut.exit_code) == (0, 4, -15)


def test_every_stream_of_ours_has_a_terminal_event_and_none_of_the_bad_ones(
    ours: BehaviourReport, bad: BehaviourReport
) -> None:
    assert ours.tally.without == 0
    assert ours.tally.done > 20
    assert bad.tally.done == 0
    assert bad.tally.without == bad.tally.begun > 20


def test_reports_survive_as_json_and_stand_side_by_side(ours: BehaviourReport, bad: BehaviourReport) -> None:
    again = [msgspec.json.decode(msgspec.json.encode(report), type=BehaviourReport) for report in (ours, bad)]
    assert again == [ours, bad]
    assert len(table_of(again).columns) == 3
    assert ("model's process killed: streams", "2 of 2 go on, 0 told, 0 cut") in rows(ours)


@pytest.mark.parametrize(
    ("writes", "end", "detail"),
    [
        ([b'{"choices":[{"delta":{"content":"a"}}]}', b"[DONE]"], "done", ""),
        ([b'{"choices":[{"delta":{"content":"a"}}]}'], "no terminal event", ""),
        ([b'{"error":{"message":"broke"}}'], "error event", "broke"),
    ],
)
async def test_a_streams_end_is_what_it_said(nursery: trio.Nursery, writes: list[bytes], end: str, detail: str) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            body = b"".join(b"data: " + data + b"\n\n" for data in writes)
            await stream.send_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body)

    listeners = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
    port = listeners[0].socket.getsockname()[1]
    stream: ChatStream = await stream_chat(Target(url=f"http://127.0.0.1:{port}", model="m"), "hello", 4)
    assert stream.end == end
    assert detail in stream.detail
    nursery.cancel_scope.cancel()


def _servers_of(bench: int) -> list[int]:
    """Its children that run the server; what it starts before, as its imports do, is none."""
    started: list[int] = []
    for pid in descendants(bench):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            started += [pid] if words[1:2] == [BAD.split()[1].encode()] else []
    return started


def test_a_benchmark_that_is_told_to_end_ends_its_server() -> None:
    command = [TRIOLET, "bench", "behaviour", "--command", BAD, "--json"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as bench:
        try:
            while not (server := _servers_of(bench.pid)):
                assert bench.poll() is None
            bench.terminate()
            assert bench.wait(60) == 128 + signal.SIGTERM
        finally:
            bench.kill()
    assert not [pid for pid in server if Path(f"/proc/{pid}").exists()]


def test_a_server_that_ends_at_once_is_told_in_a_line() -> None:
    done = subprocess.run(
        [TRIOLET, "bench", "behaviour", "--command", "false {port}"], stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 1
    assert "Error: the server ended with exit code 1 before it was ready" in done.stderr


def test_a_url_where_no_server_listens_is_told_at_once() -> None:
    with socket.socket() as bound:  # and not listening, so nobody else can
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        command = [TRIOLET, "bench", "behaviour", "--url", f"http://{address}"]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert f"Error: no server answers at {address}" in done.stderr


def test_a_command_without_a_port_is_refused() -> None:
    done = subprocess.run(
        [TRIOLET, "bench", "behaviour", "--command", "serve"], stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 2
    assert "{port}" in done.stderr
