"""`triolet batch`: a file of requests without a server, killed and continued."""

import json
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from triolet.cli.main import main

PATIENCE = 120.0  # seconds: only a hang takes so long
POLL = 0.02


def write_lines(path: Path, count: int, **body: Any) -> Path:
    fields: dict[str, Any] = {"prompt": "Once", "max_tokens": 100, "temperature": 0, "ignore_eos": True}
    rows = [
        {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/completions", "body": fields | body}
        for number in range(count)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def refusal(*arguments: object) -> str:
    result = CliRunner().invoke(main, ["batch", *map(str, arguments)])
    assert result.exit_code == 2, result.output
    return " ".join(result.output.split())


def results_in(part: Path) -> int:
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{part}/batches.sqlite?mode=ro", uri=True)) as database:
        (count,) = database.execute("SELECT count(*) FROM lines WHERE failed IS NOT NULL").fetchone()
        return int(count)
    return 0


def test_killed_in_the_middle_it_goes_on_where_it_was(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "in.jsonl", 40)
    refused = json.loads(file.read_text().splitlines()[0]) | {"custom_id": "refused"}
    refused["body"]["top_p"] = 7
    file.write_text(f"{file.read_text()}\n{json.dumps(refused)}\n")
    output, part = tmp_path / "in.output.jsonl", tmp_path / "in.output.jsonl.part"
    size = ("--max-running", "2", "--kv-cache-memory", "32MiB", "--threads", "1")
    command = [str(Path(sys.executable).with_name("triolet")), "batch", str(file), *size]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + PATIENCE
        while results_in(part) < 4:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(POLL)
        process.kill()
    done = results_in(part)
    assert 4 <= done < 40
    assert not output.exists()

    other = write_lines(tmp_path / "other.jsonl", 3)
    assert "was begun with another file" in refusal(other, "--output", output)

    again = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert again.returncode == 1, again.stderr
    assert "40 answered, 1 refused" in again.stdout
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    assert sorted(answer["custom_id"] for answer in answers) == sorted([*(f"line-{n}" for n in range(40)), "refused"])
    assert {len(answer["response"]["body"]["choices"]) for answer in answers[:-1]} == {1}
    assert answers[-1]["response"]["body"]["error"]["param"] == "top_p"
    assert not part.exists()
    assert "exists: move it away" in refusal(file)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("hello", ":1: the line is not a request"),
        ('{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {}}', ":1: url is '/v1/embeddings'"),
        ("", ":1: the line is not a request"),
    ],
)
def test_a_file_that_cannot_be_run_is_refused_before_a_model_is_loaded(
    tmp_path: Path, content: str, problem: str
) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(content)
    assert problem in refusal(file)
    assert not (tmp_path / "in.output.jsonl.part").exists()


def test_every_invalid_line_is_named_and_none_runs(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "in.jsonl", 3)
    file.write_text(file.read_text().replace("line-2", "line-1") + "\n[]")
    text = refusal(file, "--kv-cache-memory", "32MiB")
    assert "in.jsonl:3: custom_id: 'line-1' is not unique" in text
    assert "in.jsonl:4: Expected `object`" in text
    assert not list(tmp_path.glob("*.part"))
