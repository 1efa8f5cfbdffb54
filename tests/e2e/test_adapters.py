"""LoRA adapters in a real server: by name in every dialect, loaded and unloaded while it runs, after a lost worker."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from ..adapters import write_adapter
from .conftest import PATIENCE, Serve, Server

Answer = dict[str, Any]  # JSON
FREE = {"prompt": "One two", "temperature": 0, "ignore_eos": True}


class Client:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.http = httpx.Client(base_url=server.url, timeout=PATIENCE)

    def post(self, path: str, **body: object) -> httpx.Response:
        return self.http.post(path, json=body)

    def text(self, model: str, tokens: int = 12) -> str:
        answer = self.post("/v1/completions", **FREE, model=model, max_tokens=tokens)
        assert answer.status_code == 200, answer.text
        choice: Answer = answer.json()["choices"][0]
        return str(choice["text"])

    def names(self) -> list[str]:
        return [card["id"] for card in self.http.get("/v1/models").json()["data"]]

    def error(self, path: str, **body: object) -> tuple[int, str, str]:
        answer = self.post(path, **body)
        error: Answer = answer.json()["error"]
        return answer.status_code, error["code"], error["message"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(("one", "two", "three", "four"), 1):
        write_adapter(folder / "loadable" / name, seed)
    write_adapter(folder / "elsewhere", 9)
    (folder / "loadable" / "link").symlink_to(folder / "elsewhere")
    return folder


@pytest.fixture(scope="module")
def client(folder: Path, serve: Serve) -> Iterator[Client]:
    server = serve(
        *("--lora", f"one={folder / 'loadable' / 'one'}", "--lora-folder", str(folder / "loadable")),
        *("--max-loras", "2", "--threads", "1"),
    )
    client = Client(server)
    yield client
    client.http.close()


def test_an_adapter_answers_by_its_name_in_every_dialect(client: Client) -> None:
    base, one = client.text("triolet-demo"), client.text("one")
    assert base != one == client.text("triolet-demo:one")
    assert client.server.gauge('triolet_adapter_requests_total{adapter="one"}') == 3  # with the one that tried it
    assert client.server.gauge('triolet_adapters{state="loaded"}') == 1
    turn = [{"role": "user", "content": "hi"}]
    fields: dict[str, object] = {"messages": turn, "max_tokens": 4, "temperature": 0}
    for path, body in (
        ("/v1/chat/completions", fields),
        ("/v1/messages", fields),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 4}),
        ("/api/chat", {"messages": turn, "stream": False, "options": {"num_predict": 4}}),
    ):
        answer = client.post(path, model="one", **body)
        assert (answer.status_code, answer.json()["model"]) == (200, "one"), answer.text
        wrong = client.post(path, model="onne", **body)
        assert (wrong.status_code, "Did you mean 'one'?" in wrong.text) == (404, True), wrong.text
    cards = {card["id"]: (card["root"], card["parent"]) for card in client.http.get("/v1/models").json()["data"]}
    assert cards == {"triolet-demo": ("triolet-demo", None), "one": ("triolet-demo", "triolet-demo")}
    assert client.http.get("/v1/models/one").json()["id"] == "one"
    assert [model["name"] for model in client.http.get("/api/tags").json()["models"]][1] == "one:latest"


def test_adapters_are_loaded_and_unloaded_beside_running_answers(client: Client, folder: Path) -> None:
    """Three adapters in two places: each answers as it does alone, whatever the others do meanwhile."""
    for name in ("two", "three"):
        answer = client.post("/v1/load_lora_adapter", lora_name=name, lora_path=name)
        assert (answer.status_code, answer.text) == (200, f"Success: LoRA adapter '{name}' added successfully.")
    alone = {name: client.text(name) for name in ("triolet-demo", "one", "two", "three")}
    assert len(set(alone.values())) == 4
    with ThreadPoolExecutor(8) as pool:
        asked = [(name, pool.submit(client.text, name)) for _ in range(4) for name in alone]
        again = client.post("/v1/load_lora_adapter", lora_name="two", lora_path="four", load_inplace=True)
        found = [(name, answer.result()) for name, answer in asked]
    assert again.status_code == 200
    assert all(text == alone[name] for name, text in found if name != "two")
    assert client.text("two") != alone["two"]  # the blocks of the first `two` are not read
    assert client.post("/v1/unload_lora_adapter", lora_name="two").status_code == 200
    assert client.error("/v1/completions", model="two", prompt="x")[:2] == (404, "model_not_found")
    assert client.error("/v1/unload_lora_adapter", lora_name="two")[:2] == (404, "not_found")
    assert client.post("/v1/unload_lora_adapter", lora_name="three").status_code == 200
    assert client.names() == ["triolet-demo", "one"]


def test_an_unloaded_adapter_finishes_its_answers(client: Client) -> None:
    client.post("/v1/load_lora_adapter", lora_name="two", lora_path="two")
    whole = client.text("two", tokens=100)
    body = {
        "model": "two",
        "prompt": "One two",
        "max_tokens": 100,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    with client.http.stream("POST", "/v1/completions", json=body) as stream:
        lines = (line.removeprefix("data: ") for line in stream.iter_lines() if line)
        text = json.loads(next(lines))["choices"][0]["text"]
        assert client.post("/v1/unload_lora_adapter", lora_name="two").status_code == 200
        assert client.error("/v1/completions", model="two", prompt="x")[0] == 404
        text += "".join(json.loads(line)["choices"][0]["text"] for line in lines if line != "[DONE]")
    assert text == whole


@pytest.mark.parametrize(
    ("path", "name", "problem"),
    [
        ("../elsewhere", "new", "not in the folder"),
        ("/etc", "new", "not in the folder"),
        ("link", "new", "not in the folder"),
        (".", "new", "not in the folder"),
        ("nowhere", "new", "no adapter_config.json"),
        ("two", "one", "already been loaded"),
        ("two", "triolet-demo", "the model's name"),
        ("two", "a:b", "no name"),
    ],
)
def test_what_cannot_be_loaded_is_refused(client: Client, path: str, name: str, problem: str) -> None:
    status, code, message = client.error("/v1/load_lora_adapter", lora_name=name, lora_path=path)
    assert (status, code) == (400, "invalid_value")
    assert problem in message
    assert client.names() == ["triolet-demo", "one"]


def test_a_damaged_adapter_is_refused_and_nobody_notices(client: Client, folder: Path) -> None:
    damaged = write_adapter(folder / "loadable" / "damaged", 5)
    weights = damaged / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    status, _, message = client.error("/v1/load_lora_adapter", lora_name="damaged", lora_path="damaged")
    assert (status, message.startswith("The LoRA adapter cannot be loaded: ")) == (400, True)
    assert client.text("one")


def test_a_worker_that_dies_is_replaced_with_its_adapters(client: Client) -> None:
    whole = client.text("one", tokens=200)
    body = {
        "model": "one",
        "prompt": "One two",
        "max_tokens": 200,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    with client.http.stream("POST", "/v1/completions", json=body) as stream:
        lines = (line.removeprefix("data: ") for line in stream.iter_lines() if line)
        text = json.loads(next(lines))["choices"][0]["text"]
        client.server.worker().kill()
        text += "".join(json.loads(line)["choices"][0]["text"] for line in lines if line != "[DONE]")
    assert text == whole
    client.server.wait_balanced()
