"""Files and batches with OpenAI's own client against `triolet serve`, killed in the middle and started again."""

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import openai
import pytest
from openai import OpenAI
from openai.types import Batch
from openai.types.responses import Response

from ..conftest import READY_LINE, Server, running_server
from ..dying_batch import dying_command

KEYS = "batch-key-1", "batch-key-2"


def lines(count: int, endpoint: str = "/v1/chat/completions", **body: Any) -> bytes:
    """An input file."""
    fields: dict[str, Any] = {"messages": [{"role": "user", "content": "Count."}], "temperature": 0}
    rows = [
        {"custom_id": f"line-{number}", "method": "POST", "url": endpoint, "body": fields | {"max_tokens": 8} | body}
        for number in range(count)
    ]
    return b"\n".join(json.dumps(row).encode() for row in rows)


def create(
    client: OpenAI, content: bytes, endpoint: Literal["/v1/chat/completions", "/v1/responses"] = "/v1/chat/completions"
) -> Batch:
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", metadata={"of": "a test"}
    )


def end_of(server: Server, client: OpenAI, id: str) -> Batch:
    """The batch, once the server has logged its end."""
    follow = ["tail", "-n", "+1", "-f", f"--pid={server.pid}", str(server.log)]
    with subprocess.Popen(follow, stdout=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None
        found = any(f"{id} is " in line for line in tail.stdout)
        tail.kill()
    assert found, server.log.read_text()
    return client.batches.retrieve(id)


def read(client: OpenAI, id: str | None) -> list[dict[str, Any]]:  # JSON
    return [json.loads(line) for line in client.files.content(id).read().splitlines()] if id else []


@pytest.fixture(scope="module")
def house(serve_process: Callable[..., Server], tmp_path_factory: pytest.TempPathFactory) -> Server:
    keys = [option for key in KEYS for option in ("--api-key", key)]
    data = str(tmp_path_factory.mktemp("data"))
    return serve_process(*keys, "--data", data, "--max-running", "4", "--batch-storage", "1MiB")


@pytest.fixture(scope="module")
def clients(house: Server) -> Iterator[tuple[OpenAI, OpenAI]]:
    mine, other = (OpenAI(base_url=f"{house.url}/v1", api_key=key, max_retries=0) for key in KEYS)
    with mine, other:
        yield mine, other


def test_a_batch_from_upload_to_output(house: Server, clients: tuple[OpenAI, OpenAI]) -> None:
    client, other = clients
    whole = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": "Count."}],
        temperature=0,
        max_tokens=8,
    )
    broken = json.loads(lines(1, temperature=9)) | {"custom_id": "broken"}
    streamed = json.loads(lines(1, stream=True)) | {"custom_id": "streamed"}
    content = b"\n".join([lines(5), json.dumps(broken).encode(), b"", json.dumps(streamed).encode()])
    batch = end_of(house, client, create(client, content).id)
    assert batch.status == "completed", batch
    counts = batch.request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (7, 5, 2)
    assert None not in (batch.in_progress_at, batch.finalizing_at, batch.completed_at)
    answers = read(client, batch.output_file_id)
    assert Counter(answer["custom_id"] for answer in answers) == Counter(f"line-{number}" for number in range(5))
    for answer in answers:
        assert answer["response"]["status_code"] == 200
        assert answer["response"]["body"]["choices"][0]["message"]["content"] == whole.choices[0].message.content
    refused = {line["custom_id"]: line["response"] for line in read(client, batch.error_file_id)}
    assert {name: refused[name]["body"]["error"]["param"] for name in refused} == {
        "broken": "temperature",
        "streamed": "stream",
    }
    assert {response["status_code"] for response in refused.values()} == {400}
    assert client.batches.list(limit=1).data[0].id == batch.id
    assert client.files.retrieve(str(batch.output_file_id)).purpose == "batch_output"

    # Another key sees none of it.
    for ask in (
        lambda: other.batches.retrieve(batch.id),
        lambda: other.batches.cancel(batch.id),
        lambda: other.files.retrieve(batch.input_file_id),
        lambda: other.files.content(str(batch.output_file_id)),
        lambda: other.files.delete(batch.input_file_id),
        lambda: other.batches.create(
            input_file_id=batch.input_file_id, endpoint="/v1/chat/completions", completion_window="24h"
        ),
    ):
        with pytest.raises(openai.NotFoundError):
            ask()
    assert not other.files.list().data
    assert not other.batches.list().data

    deleted = client.files.delete(batch.input_file_id)
    assert deleted.deleted
    with pytest.raises(openai.NotFoundError):
        client.files.content(batch.input_file_id)


def test_responses_as_lines(house: Server, clients: tuple[OpenAI, OpenAI]) -> None:
    client, _ = clients
    whole = client.responses.create(input="Count.", temperature=0, max_output_tokens=20)
    bodies: dict[str, dict[str, Any]] = {  # Any: JSON
        "plain": {"input": "Count.", "temperature": 0, "max_output_tokens": 20},
        "long": {"input": "a " * 9000},
        **{
            name: {"input": "Count.", name: value}
            for name, value in (
                ("previous_response_id", "resp_1"),
                ("store", True),
                ("background", True),
                ("truncation", "auto"),
                ("stream", True),
            )
        },
        "input": {"input": [{"type": "item_reference", "id": "msg_1_0"}]},
    }
    rows = [{"custom_id": n, "method": "POST", "url": "/v1/responses", "body": body} for n, body in bodies.items()]
    batch = end_of(house, client, create(client, b"\n".join(map(msgspec.json.encode, rows)), "/v1/responses").id)
    (answer,) = read(client, batch.output_file_id)
    response = Response.model_validate(answer["response"]["body"])
    assert (answer["custom_id"], response.output_text, response.status) == ("plain", whole.output_text, whole.status)
    refused = {line["custom_id"]: line["response"]["body"]["error"] for line in read(client, batch.error_file_id)}
    assert {name: error["param"] for name, error in refused.items()} == {
        name: "input" if name == "long" else name for name in bodies if name != "plain"
    }


def test_an_invalid_file_fails_as_a_whole_and_names_its_lines(house: Server, clients: tuple[OpenAI, OpenAI]) -> None:
    client, _ = clients
    good = lines(1)
    elsewhere = lines(1, "/v1/completions").replace(b"line-0", b"line-1")
    batch = create(client, b"\n".join([good, b"{", good, elsewhere, b'{"custom_id": "x"}']))
    batch = end_of(house, client, batch.id)
    assert batch.status == "failed"
    assert batch.errors is not None
    found = [(error.line, error.code) for error in batch.errors.data or ()]
    assert found == [
        (2, "invalid_json_line"),
        (3, "duplicate_custom_id"),
        (4, "mismatched_endpoint"),
        (5, "invalid_line"),
    ]
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)


def test_cancel_keeps_what_is_done(house: Server, clients: tuple[OpenAI, OpenAI]) -> None:
    client, _ = clients
    batch = create(client, lines(200, max_tokens=200, ignore_eos=True))
    with pytest.raises(openai.ConflictError, match="reads this file"):
        client.files.delete(batch.input_file_id)
    while not client.batches.retrieve(batch.id).request_counts.completed:  # type: ignore[union-attr]  # this server tells
        pass
    assert client.batches.cancel(batch.id).status == "cancelling"
    batch = end_of(house, client, batch.id)
    assert batch.status == "cancelled"
    answers, others = read(client, batch.output_file_id), read(client, batch.error_file_id)
    assert answers
    assert {line["error"]["code"] for line in others} == {"batch_cancelled"}
    assert sorted(line["custom_id"] for line in answers + others) == sorted(f"line-{number}" for number in range(200))


def test_refused_uploads_leave_nothing(clients: tuple[OpenAI, OpenAI]) -> None:
    _, other = clients
    before = {file.id for file in other.files.list()}
    with pytest.raises(openai.APIStatusError, match="--batch-storage") as refusal:
        other.files.create(file=("in.jsonl", b"x" * (1 << 20)), purpose="batch")
    assert refusal.value.status_code == 413
    with pytest.raises(openai.BadRequestError, match="purpose"):
        other.files.create(file=("in.jsonl", b"x"), purpose="assistants")
    with pytest.raises(openai.APIStatusError, match="multipart/form-data"):
        other.post("/files", cast_to=object, body={})
    assert {file.id for file in other.files.list()} == before


def test_killed_in_the_middle_no_line_is_lost_or_answered_twice(tmp_path: Path) -> None:
    """The first server kills itself in the middle of a line's transaction."""
    options = ("--data", str(tmp_path / "data"), "--max-running", "2", "--kv-cache-memory", "32MiB", "--threads", "1")
    command = dying_command(4, "serve", "--port", "0", *options)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().removeprefix(READY_LINE).strip()
        client = OpenAI(base_url=f"{url}/v1", api_key="none")
        killed = create(client, lines(10, ignore_eos=True)).id
        assert server.wait() == -signal.SIGKILL
    with running_server(tmp_path / "second", *options) as second:
        client = OpenAI(base_url=f"{second.url}/v1", api_key="none")
        batch = end_of(second, client, killed)
        answers = read(client, batch.output_file_id)
    assert batch.status == "completed"
    assert sorted(answer["custom_id"] for answer in answers) == sorted(f"line-{number}" for number in range(10))
    assert all(answer["response"]["body"]["usage"]["completion_tokens"] == 8 for answer in answers)
