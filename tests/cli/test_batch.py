"""`triolet batch`: a file of requests without a server and by one, killed and continued."""

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from openai import OpenAI

from triolet.cli.main import main
from triolet.cli.options import BUNDLED_MODEL

from ..conftest import Server
from ..dying_batch import dying_command

PATIENCE = 120.0  # seconds: only a hang takes so long
LINES = 200  # of a batch that is interrupted: many more than can be done before the signal arrives


def write_lines(path: Path, count: int, **body: Any) -> Path:
    fields: dict[str, Any] = {"prompt": "Once", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
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


def run_until_killed(results: int, *arguments: str) -> None:
    """`triolet` with these arguments, in a process that kills itself after so many results of lines."""
    command = dying_command(results, *arguments)
    killed = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr


def test_killed_in_the_middle_it_goes_on_where_it_was(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "in.jsonl", 12)
    refused = json.loads(file.read_text().splitlines()[0]) | {"custom_id": "refused"}
    refused["body"]["top_p"] = 7
    file.write_text(f"\n  \n{file.read_text()}\n{json.dumps(refused)}\n", "utf-8-sig")  # as editors on Windows do
    output, part = tmp_path / "in.output.jsonl", tmp_path / "in.output.jsonl.part"
    command = ("batch", str(file), "--max-running", "2", "--kv-cache-memory", "32MiB", "--threads", "1")
    run_until_killed(4, *command)
    with closing(sqlite3.connect(part / "batches.sqlite")) as database:
        (done,) = database.execute("SELECT count(*) FROM lines WHERE failed IS NOT NULL").fetchone()
    assert done == 4
    assert not output.exists()

    other = write_lines(tmp_path / "other.jsonl", 3)
    copy = shutil.copytree(BUNDLED_MODEL, tmp_path / "copy")
    for arguments, problem in (
        ((other, "--output", output), "was begun with another file than"),
        ((file, copy), f"was begun with the model {BUNDLED_MODEL}, not {copy}: give that to go on"),
        ((file, "--quantize", "int8"), "was begun with --quantize none, not int8: give that to go on"),
    ):
        said = refusal(*arguments)
        assert problem in said
        assert "delete that folder to begin anew, or give another --output" in said

    again = CliRunner().invoke(main, [*command])
    assert again.exit_code == 1, again.output
    assert "12 answered, 1 refused" in again.output
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    assert sorted(answer["custom_id"] for answer in answers) == sorted([*(f"line-{n}" for n in range(12)), "refused"])
    assert {len(answer["response"]["body"]["choices"]) for answer in answers[:-1]} == {1}
    assert answers[-1]["response"]["body"]["error"]["param"] == "top_p"
    assert not part.exists()
    assert "exists: move it away" in refusal(file)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("hello", ":1: the line is not a request"),
        ('{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {}}', ":1: url is '/v1/embeddings'"),
        ("\n \nhello", ":3: the line is not a request"),
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


@pytest.fixture(scope="module")
def house(serve_process: Callable[..., Server], tmp_path_factory: pytest.TempPathFactory) -> Server:
    data = str(tmp_path_factory.mktemp("data"))
    ahead = ("--outbox-tokens", "8000")  # a stream that nobody reads goes on
    return serve_process("--api-key", "k", "--data", data, "--max-running", "1", *ahead)


class TestWithAServer:
    """`--url`: the file as a batch of a server that runs."""

    @pytest.fixture
    def client(self, house: Server) -> Iterator[OpenAI]:
        with OpenAI(base_url=f"{house.url}/v1", api_key="k", max_retries=0) as client:
            yield client

    def test_a_file_is_answered_there_and_leaves_nothing(self, house: Server, client: OpenAI, tmp_path: Path) -> None:
        file = write_lines(tmp_path / "in.jsonl", 3)
        refused = json.loads(file.read_text().splitlines()[0]) | {"custom_id": "refused"}
        refused["body"]["top_p"] = 7
        file.write_text(f"\n{json.dumps(refused)}\n{file.read_text()}")
        there = ("--url", f"{house.url}/v1", "--api-key", "k")
        result = CliRunner().invoke(main, ["batch", str(file), *there])
        output = tmp_path / "in.output.jsonl"
        assert result.exit_code == 1, result.output
        assert f"3 answered, 1 refused: {output}" in result.output
        answers = [json.loads(line) for line in output.read_text().splitlines()]
        assert [answer["custom_id"] for answer in answers] == ["line-0", "line-1", "line-2", "refused"]
        assert not client.files.list().data
        assert "exists: move it away" in refusal(file, *there)

    def test_ctrl_c_cancels_and_the_same_command_answers_the_rest(
        self, house: Server, client: OpenAI, tmp_path: Path
    ) -> None:
        file = write_lines(tmp_path / "in.jsonl", LINES, max_tokens=50)
        arguments = ["batch", str(file), "--url", house.url, "--api-key", "k"]
        output, part = tmp_path / "in.output.jsonl", tmp_path / "in.output.jsonl.part"
        command = [str(Path(sys.executable).with_name("triolet")), *arguments]
        before = {batch.id for batch in client.batches.list()}
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            while not (new := [batch for batch in client.batches.list(limit=1).data if batch.id not in before]):
                assert process.poll() is None
            while not client.batches.retrieve(new[0].id).request_counts.completed:  # type: ignore[union-attr]  # it has
                pass
            endless = {"ignore_eos": True}
            with client.completions.create(
                model="triolet-demo", prompt="Once", max_tokens=4000, stream=True, extra_body=endless
            ):
                process.send_signal(signal.SIGINT)  # while a stream runs, no line does
                said = process.stderr.read()
        assert process.returncode == 1
        assert f"What is done is in {part}; the same command goes on from there" in said
        assert client.batches.retrieve(new[0].id).status == "cancelled"
        assert not output.exists()
        (done,) = part.glob("batch_*.jsonl")
        answered = {line["custom_id"] for line in map(json.loads, done.read_text().splitlines()) if line["response"]}
        assert 0 < len(answered) < LINES

        other = write_lines(tmp_path / "other.jsonl", 3)
        for given, problem in (
            ((other, "--output", output, *arguments[2:]), "was begun with another file than"),
            ((file,), "was begun with --url: give that to go on"),
            ((file, "--url", "http://127.0.0.1:1"), f"was begun with --url {house.url}, not http://127.0.0.1:1"),
        ):
            assert problem in refusal(*given)

        again = CliRunner().invoke(main, arguments)
        assert f"{LINES} answered, 0 refused" in again.output
        assert again.exit_code == 0
        names = [json.loads(line)["custom_id"] for line in output.read_text().splitlines()]
        assert sorted(names) == sorted(f"line-{number}" for number in range(LINES))
        rest = client.batches.list(limit=1).data[0].request_counts
        assert rest is not None
        assert rest.total == LINES - len(answered)

    def test_what_the_server_refuses_is_said_in_its_words(self, house: Server, tmp_path: Path) -> None:
        file = write_lines(tmp_path / "in.jsonl", 3)
        for key, problem in (((), "add --api-key KEY"), (("--api-key", "x"), "invalid_api_key")):
            result = CliRunner().invoke(main, ["batch", str(file), "--url", house.url, *key])
            assert result.exit_code == 1
            assert problem in result.output
        assert "not both" in refusal(file, BUNDLED_MODEL, "--url", house.url)
        file.write_text(file.read_text().replace("line-2", "line-1"))
        assert "in.jsonl:3: custom_id: 'line-1' is not unique" in refusal(file, "--url", house.url, "--api-key", "k")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl"]
        away = CliRunner().invoke(main, ["batch", str(file), "--url", "http://127.0.0.1:1"])
        assert "cannot be reached" in away.output
