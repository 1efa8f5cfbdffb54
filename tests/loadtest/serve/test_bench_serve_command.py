"""`triolet bench serve` as a user runs it, against a real server on the bundled model, one for all of these tests."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from triolet.cli.bench import bench

from ...conftest import Server

TRIOLET = str(Path(sys.executable).with_name("triolet"))
KEYS = ("first-key", "second-key")


@pytest.fixture(scope="module")
def url(serve_process: Callable[..., Server]) -> str:
    return serve_process("--api-key", KEYS[0], "--api-key", KEYS[1]).url


def _bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TRIOLET, "bench", *arguments], capture_output=True, text=True, timeout=300)


def _serve(
    url: str, out: Path, name: str, *arguments: str, key: bool = True
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The result and the records of a run in which nothing may fail."""
    done = _bench(
        "serve", "--url", url, "--out", str(out), "--name", name, "--warm-up", "0", "--prompt-tokens", "30",
        "--output-tokens", "uniform:4-8", *(("--api-key", KEYS[0]) if key else ()), *arguments,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "output tokens/s" in done.stdout
    result = json.loads((out / f"{name}.json").read_text())
    records = [json.loads(line) for line in (out / f"{name}.jsonl").read_text().splitlines()]
    assert result["summary"]["failures"] == 0, result["summary"]
    return result, records


def test_a_closed_loop_tells_what_its_clients_saw(url: str, tmp_path: Path) -> None:
    result, records = _serve(
        url, tmp_path, "closed", "--concurrency", "3", "--requests", "12", "--slo", "e2e=100s", "--turns", "2",
        "--think-time", "0",
    )  # fmt: skip
    summary = result["summary"]
    assert len(records) == summary["requests"] == 12
    assert {record["outcome"] for record in records} == {"ok"}
    for record in records:
        assert record["output_tokens"] == record["output_tokens_asked"]  # ignore_eos, and the server's own count
        if record["turn"] == 0:
            assert abs(record["prompt_tokens"] - 30) <= 8  # learned from two probes; words differ in their tokens
        else:
            assert record["prompt_tokens"] > 42  # what was said before is in it
        times = [record[name] for name in ("intended", "started", "sent", "head")] + record["arrivals"]
        assert times == sorted(times)
        assert times[-1] <= record["ended"]
    assert {record["turn"] for record in records} == {0, 1}
    assert summary["tokens_are_counted"] is True
    assert summary["output_tokens"] == sum(record["output_tokens"] for record in records)
    assert sum(record["reused"] for record in records) >= 9  # three clients, three connections and the probes' own
    assert summary["goodput"]["share"] == 1.0
    assert summary["latencies"]["ttft"]["count"] == 12
    assert result["client"]["cpu_ms_per_1000_tokens"] > 0
    assert result["model"] == "triolet-demo"
    page = (tmp_path / "closed.html").read_text()
    assert "<svg" in page
    for text in (page, json.dumps(result), json.dumps(records)):
        assert KEYS[0] not in text


def test_an_open_loop_with_everything_in_the_mix(url: str, tmp_path: Path) -> None:
    result, records = _serve(
        url, tmp_path, "open", "--api", "completions", "--rate", "50", "--burstiness", "0.5", "--requests", "40",
        "--output-tokens", "24", "--shared-prefix", "0.5@64", "--cancel", "0.2@2", "--slow", "0.1@200", "--tenant",
        f"big,key={KEYS[0]},weight=2", "--tenant", f"small,key={KEYS[1]},priority=3", "--priorities", "0:1,1:1",
        key=False,
    )  # fmt: skip
    assert {record["tenant"] for record in records} == {"big", "small"}
    assert {record["priority"] for record in records if record["tenant"] == "small"} == {3}
    assert {record["behaviour"] for record in records} == {"ordinary", "cancels", "slow"}
    assert {record["outcome"] for record in records} == {"ok", "cancelled"}
    for record in records:
        if record["outcome"] == "cancelled":
            assert record["behaviour"] == "cancels"
            assert len(record["arrivals"]) >= 2
    assert result["client"]["late_start_p99"] is not None
    assert not any(key in json.dumps(result) for key in KEYS)


def test_the_websocket_tells_the_tokens_of_every_piece(url: str, tmp_path: Path) -> None:
    _result, records = _serve(
        url, tmp_path, "socket", "--api", "websocket", "--concurrency", "6", "--requests", "20", "--cancel", "0.2@2",
        "--slow", "0.1@200", "--streams-per-socket", "2",
    )  # fmt: skip
    whole = [record for record in records if record["outcome"] == "ok"]
    assert {record["behaviour"] for record in whole} >= {"ordinary"}
    for record in whole:
        assert len(record["counts"]) == len(record["arrivals"])
        assert record["output_tokens"] == record["output_tokens_asked"]
    assert sum(record["reused"] for record in records) > len(records) / 2


def test_recorded_traffic_is_replayed_and_two_runs_are_compared(url: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
        f"2026-01-01 00:00:{second:02}.5,{20 + second},{3 + second}\n" for second in range(6)
    ))  # fmt: skip
    for name in ("a", "b"):
        result, records = _serve(url, tmp_path, name, "--trace", str(trace), "--time-scale", "0.05")
        assert sorted(record["output_tokens"] for record in records) == [3, 4, 5, 6, 7, 8]
        assert sorted(record["intended"] for record in records) == pytest.approx([0.05 * place for place in range(6)])
        assert result["settings"]["arrivals"]["type"] == "trace"
    files = [str(tmp_path / f"{name}.json") for name in ("a", "b")]
    done = CliRunner().invoke(bench, ["compare", *files, "--json"])
    verdict = json.loads(done.stdout)
    assert done.exit_code == (3 if verdict["overloaded"] else 1 if verdict["call"] == "worse" else 0)
    assert "in pairs" in verdict["notes"][0]
    done = CliRunner().invoke(bench, ["compare", files[0], files[0]])
    assert done.exit_code == (3 if json.loads(Path(files[0]).read_bytes())["client"]["bottleneck"] else 0)
    assert "Verdict: " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rate", "1", "--ramp", "1:2"), "--rate and --ramp: one of them"),
        (("--burstiness", "1"), "need --rate"),
        (("--url", "localhost:8000"), "is not an address"),
        (("--prompt-tokens", "many"), "is no distribution"),
        (("--slo", "fast"), "is not one limit"),
        (("--trace", "no-such.csv"), "no-such.csv"),
        (("--ramp", "1:5", "--requests", "5"), "--ramp needs --duration"),
        (("--extra-body", "[]"), "is no JSON object"),
        (("--tenant", "a", "--api-key", "K"), "not both"),
    ],
)
def test_what_cannot_run_is_refused(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(bench, ["serve", "--out", str(tmp_path), *arguments])
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())
    assert not list(tmp_path.iterdir())


def test_a_missing_key_and_a_field_that_the_server_refuses_are_told_with_their_remedy(url: str, tmp_path: Path) -> None:
    words = ["serve", "--url", url, "--out", str(tmp_path)]
    done = CliRunner().invoke(bench, words)
    assert (done.exit_code, "add --api-key KEY" in done.stderr) == (2, True)
    done = CliRunner().invoke(bench, [*words, "--api-key", KEYS[0], "--extra-body", '{"speed": 1}'])
    assert (done.exit_code, "client_error" in done.stderr, "speed" in done.stderr) == (2, True, True)


def test_comparing_one_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("{}")
    for old in ([str(path)], [str(tmp_path), "--peer", "a=b"], [str(tmp_path), str(tmp_path)], []):
        done = CliRunner().invoke(bench, ["compare", *old])
        assert (done.exit_code, "`triolet bench peers MODEL`" in " ".join(done.stderr.split())) == (2, True)
    for files in ([str(path)], [str(path), str(path)]):
        done = CliRunner().invoke(bench, ["peers", *files])
        assert (done.exit_code, "`triolet bench compare A.json B.json`" in " ".join(done.stderr.split())) == (2, True)
    done = CliRunner().invoke(bench, ["compare", str(path), str(path)])
    assert (done.exit_code, "is no result" in done.stderr) == (2, True)


@pytest.mark.parametrize("option", ["--png", "--no-png"])
def test_the_option_of_a_picture_says_where_the_charts_are(option: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(bench, ["serve", option, "--out", str(tmp_path)])
    assert (done.exit_code, "the charts are in the report, NAME.html" in " ".join(done.stderr.split())) == (2, True)
