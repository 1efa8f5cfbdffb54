"""A server of several models: real workers, real clients. Both are the bundled model; counters tell them apart."""

import json
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import trio
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families
from trio_websocket import open_websocket_url

from triolet.actors.several.several import Several, run_several
from triolet.cli.batches import SeveralBatches
from triolet.cli.options import BUNDLED_MODEL
from triolet.cli.serving import serve_engine
from triolet.protocol.settings import EngineSettings, LimitSettings, ModelSettings, ServeSettings

SOON = 60.0  # seconds: only a hang takes so long
SETTINGS = ServeSettings(
    engine=EngineSettings(model=str(BUNDLED_MODEL), threads=2, kv_cache_memory=64 << 20),
    limits=LimitSettings(max_requests=8),
    models=tuple(ModelSettings(name=name, path=str(BUNDLED_MODEL)) for name in "ab"),
    aliases=("chat=b",),
    port=0,
    drain_timeout=SOON,
)
LONG = {"prompt": "One", "max_tokens": 400, "ignore_eos": True, "temperature": 0}
TURNS = [{"role": "user", "content": "hi"}]


class House(NamedTuple):
    several: Several
    client: httpx.AsyncClient
    url: str

    async def accepted(self) -> dict[str, float]:
        """How many requests each model has accepted."""
        families = text_string_to_metric_families((await self.client.get("/metrics")).text)
        (family,) = (family for family in families if family.name == "triolet_requests_accepted")
        return {sample.labels["model"]: sample.value for sample in family.samples}


@asynccontextmanager
async def running(settings: ServeSettings) -> AsyncGenerator[House]:
    """The server for the length of a block, drained at its end."""
    opened: list[Several] = []
    batches, stop = SeveralBatches(), trio.Event()

    async def run(on_open: Any) -> None:
        def keep(several: Several) -> None:
            opened.append(several)
            on_open(several)

        load = partial(run_several, settings, cores=2, on_progress=lambda progress: None, on_open=keep)
        await load(beside=batches.run_lines, beside_all=batches.run)

    with trio.fail_after(2 * SOON):
        async with trio.open_nursery() as nursery:
            serve = partial(serve_engine, settings, run, stop, sockets=None, certificates=None)
            urls: list[str] = await nursery.start(serve)
            async with httpx.AsyncClient(base_url=urls[0], timeout=SOON, verify=False) as client:
                yield House(opened[0], client, urls[0])
            stop.set()


ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": TURNS, "max_tokens": 2}),
    ("/v1/completions", {"prompt": "One", "max_tokens": 2}),
    ("/v1/responses", {"input": "hi", "max_output_tokens": 16}),
    ("/v1/responses", {"input": "hi", "max_output_tokens": 16, "background": True, "store": True}),
    ("/v1/messages", {"messages": TURNS, "max_tokens": 2}),
    ("/api/chat", {"messages": TURNS, "stream": False, "options": {"num_predict": 2}}),
    ("/api/generate", {"prompt": "One", "stream": False, "options": {"num_predict": 2}}),
]
COUNTED: list[tuple[str, dict[str, Any]]] = [
    ("/tokenize", {"prompt": "One"}),
    ("/detokenize", {"tokens": [5]}),
    ("/v1/messages/count_tokens", {"messages": TURNS}),
    ("/v1/responses/input_tokens", {"input": "hi"}),
    ("/api/show", {}),
]


async def test_every_dialect_goes_to_the_model_that_it_names(tmp_path: Path) -> None:
    async with running(structs.replace(SETTINGS, data=str(tmp_path))) as house:
        expected = {"a": 1.0, "b": 0.0}  # of each model
        await house.client.post("/v1/completions", json={"prompt": "One", "max_tokens": 1})
        for path, body in ASKED:
            for name in ("b", "chat", "a"):
                said = await house.client.post(path, json=body | {"model": name})
                assert (said.status_code, said.json().get("model")) == (200, name), (path, said.text)
                expected["a" if name == "a" else "b"] += 1
                assert await house.accepted() == expected, (path, name)
        for path, body in COUNTED:
            said = await house.client.post(path, json=body | {"model": "chat"})
            assert said.status_code == 200, (path, said.text)
        for path, body in ASKED + COUNTED:
            said = await house.client.post(path, json=body | {"model": "c"})
            assert said.status_code == 404, (path, said.text)
            assert "'a', 'b', 'chat'" in said.text
        fell_back = await house.client.post(
            "/v1/completions",
            json={"prompt": "One", "max_tokens": 1, "model": "c"},
            headers={"X-Model-Fallback": "d, chat"},
        )
        assert fell_back.json()["model"] == "chat"
        for path, list_name, key in (("/v1/models", "data", "id"), ("/api/tags", "models", "model")):
            listed = (await house.client.get(path)).json()[list_name]
            assert [one[key].removesuffix(":latest") for one in listed] == ["a", "b", "chat"]
        assert (await house.client.get("/v1/models/chat")).json()["root"] == "b"
        assert (await house.client.get("/v1/models/c")).status_code == 404
        assert (await house.client.post("/v1/load_lora_adapter", json={"lora_name": "x", "lora_path": "x"})).is_error


async def test_both_websockets_go_to_the_model_that_a_frame_names() -> None:
    async with running(SETTINGS) as house:
        url = house.url.replace("http", "ws", 1)
        async with open_websocket_url(f"{url}/v1/stream") as socket:
            for name in ("b", "c"):
                request = {"prompt": "One", "max_tokens": 2, "model": name}
                await socket.send_message(json.dumps({"type": "create", "id": name, "request": request}))
            last: dict[str, str] = {}
            while len(last) < 2:
                frame = json.loads(await socket.get_message())
                if frame["type"] in ("finished", "failed"):
                    last[frame["id"]] = frame["type"]
            assert last == {"b": "finished", "c": "failed"}
        async with open_websocket_url(f"{url}/v1/responses") as socket:
            asked = {"type": "response.create", "model": "chat", "input": "hi", "max_output_tokens": 16}
            await socket.send_message(json.dumps(asked))
            kind = ""
            while kind not in ("response.completed", "response.incomplete"):
                kind = json.loads(await socket.get_message())["type"]
                assert kind not in ("error", "response.failed")
        assert await house.accepted() == {"a": 0.0, "b": 2.0}


async def test_a_worker_that_dies_is_of_one_model_and_its_streams_go_on() -> None:
    async with running(SETTINGS) as house:
        whole = (await house.client.post("/v1/completions", json=LONG)).json()["choices"][0]["text"]
        texts = {"a": "", "b": ""}
        flowing = {"a": trio.Event(), "b": trio.Event()}

        async def read(name: str) -> None:
            asked = LONG | {"stream": True, "model": name}
            async with house.client.stream("POST", "/v1/completions", json=asked) as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        texts[name] += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
                        flowing[name].set()

        async with trio.open_nursery() as nursery:
            for name, event in flowing.items():
                nursery.start_soon(read, name)
                await event.wait()
            pids = {name: report.worker.pid for name, report in (await house.several.reports()).items()}
            assert pids["b"]
            os.kill(pids["b"], signal.SIGKILL)
        assert texts == {"a": whole, "b": whole}
        after = {
            name: (report.worker.pid, report.worker.restarts)
            for name, report in (await house.several.reports()).items()
        }
        assert after["a"] == (pids["a"], 0)
        assert after["b"][1] == 1
        health = (await house.client.get("/health")).json()
        assert {name: one["status"] for name, one in health["models"].items()} == {"a": "ready", "b": "ready"}


async def test_the_lines_of_a_batch_go_to_the_models_that_they_name(tmp_path: Path) -> None:
    body = {"messages": TURNS, "max_tokens": 2}
    lines = [
        {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body | {"model": name}}
        for name in ("a", "chat", "c")
    ]
    async with running(structs.replace(SETTINGS, data=str(tmp_path))) as house:
        file = "\n".join(map(json.dumps, lines)).encode()
        uploaded = await house.client.post("/v1/files", files={"file": file}, data={"purpose": "batch"})
        asked = {"input_file_id": uploaded.json()["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batch = (await house.client.post("/v1/batches", json=asked)).json()
        while batch["status"] != "completed":
            await trio.sleep(0.1)
            batch = (await house.client.get(f"/v1/batches/{batch['id']}")).json()
        results = (await house.client.get(f"/v1/files/{batch['output_file_id']}/content")).text.splitlines()
        errors = (await house.client.get(f"/v1/files/{batch['error_file_id']}/content")).text.splitlines()
    models = {one["custom_id"]: one["response"]["body"]["model"] for one in map(json.loads, results)}
    assert models == {"a": "a", "chat": "chat"}
    (failed,) = map(json.loads, errors)
    assert (failed["custom_id"], failed["response"]["status_code"]) == ("c", 404)
