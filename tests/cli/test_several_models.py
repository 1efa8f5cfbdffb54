"""A server of several models. All are the bundled model; counters tell them apart."""

import json
import os
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import trio.testing
from msgspec import structs
from trio_websocket import open_websocket_url

from triolet.actors import front_actors
from triolet.actors.admission.admission import run_admission
from triolet.cli.options import BUNDLED_MODEL
from triolet.protocol.settings import ModelSettings

from .several_house import LONG, SETTINGS, TURNS, House, Stream, ended, running, start_batch, states

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


async def test_whatever_is_asked_goes_to_the_model_that_it_names(tmp_path: Path) -> None:
    async with running(structs.replace(SETTINGS, data=str(tmp_path))) as house:
        await ask_in_every_dialect(house)
        await ask_over_both_websockets(house)
        await ask_in_a_batch(house)
        await change_aliases(house)


async def ask_in_every_dialect(house: House) -> None:
    """One request after the other; what names no model or an unknown one."""
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
        said = await house.client.post(path, json=body | {"model": ""})
        assert (said.status_code, "'a', 'b', 'chat'" in said.text) == (404, True), (path, said.text)
        said = await house.client.post(path, json=body | {"model": "a:latest"})
        assert said.status_code == 200, (path, said.text)
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


async def ask_over_both_websockets(house: House) -> None:
    """Each frame names its model."""
    before = await house.accepted()
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
    assert await house.accepted() == {"a": before["a"], "b": before["b"] + 2}


async def ask_in_a_batch(house: House) -> None:
    """Each line names its model."""
    body = {"messages": TURNS, "max_tokens": 2}
    lines = [
        {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body | {"model": name}}
        for name in ("a", "chat", "c")
    ]
    batch = await ended(house, await start_batch(house, lines))
    results = (await house.client.get(f"/v1/files/{batch['output_file_id']}/content")).text.splitlines()
    errors = (await house.client.get(f"/v1/files/{batch['error_file_id']}/content")).text.splitlines()
    models = {one["custom_id"]: one["response"]["body"]["model"] for one in map(json.loads, results)}
    assert models == {"a": "a", "chat": "chat"}
    (failed,) = map(json.loads, errors)
    assert (failed["custom_id"], failed["response"]["status_code"]) == ("c", 404)


async def change_aliases(house: House) -> None:
    """They come and go, and nonsense is refused."""
    done = await house.client.post("/models/alias", json={"alias": "new", "model": "a"})
    assert done.json()["model"]["aliases"] == ["new"]
    asked = {"prompt": "One", "max_tokens": 1, "model": "new"}
    assert (await house.client.post("/v1/completions", json=asked)).json()["model"] == "new"
    assert (await house.client.post("/models/alias", json={"alias": "new"})).json() == {
        "success": True,
        "model": None,
    }
    assert (await house.client.post("/v1/completions", json=asked)).status_code == 404
    wrong: list[tuple[str, dict[str, Any], int]] = [
        ("/models/alias", {"alias": "new"}, 404),
        ("/models/alias", {"alias": "a", "model": "b"}, 400),
        ("/models/alias", {"alias": "x:y", "model": "b"}, 400),
        ("/models/alias", {"alias": "new", "model": "c"}, 404),
        ("/models/load", {"model": "c"}, 404),
        ("/models/unload", {"model": ""}, 404),
        ("/models/unload", {"modell": "a"}, 400),
        ("/models/load", {}, 400),
    ]
    for path, body, status in wrong:
        assert (await house.client.post(path, json=body)).status_code == status, (path, body)
    assert await states(house) == {"a": "ready", "b": "ready"}


async def test_what_one_model_goes_through_the_other_does_not_notice(tmp_path: Path) -> None:
    async with running(structs.replace(SETTINGS, data=str(tmp_path))) as house:
        await kill_a_worker(house)
        await unload_under_a_stream(house)
        await unload_under_a_line_of_a_batch(house)


async def kill_a_worker(house: House) -> None:
    """It is of one model, and its streams go on."""
    whole = (await house.client.post("/v1/completions", json=LONG)).json()["choices"][0]["text"]
    streams = {"a": Stream(), "b": Stream()}
    async with trio.open_nursery() as nursery:
        for name, stream in streams.items():
            nursery.start_soon(partial(stream.read, house, model=name))
            await stream.flowing.wait()
        pids = {name: report.worker.pid for name, report in (await house.several.reports()).items()}
        assert pids["b"]
        os.kill(pids["b"], signal.SIGKILL)
    assert {name: stream.text for name, stream in streams.items()} == {"a": whole, "b": whole}
    after = await house.several.reports()
    assert (after["a"].worker.pid, after["a"].worker.restarts) == (pids["a"], 0)
    assert after["b"].worker.restarts == 1
    health = (await house.client.get("/health")).json()
    assert {name: one["status"] for name, one in health["models"].items()} == {"a": "ready", "b": "ready"}


async def unload_under_a_stream(house: House) -> None:
    """It is unloaded when the stream has ended, and a request loads it again."""
    whole = (await house.client.post("/v1/completions", json=LONG)).json()["choices"][0]["text"]
    pids = {name: report.worker.pid for name, report in (await house.several.reports()).items()}
    stream, again = Stream(), Stream()
    unloaded: list[httpx.Response] = []

    async def unload() -> None:
        unloaded.append(await house.client.post("/models/unload", json={"model": "chat"}))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(stream.read, house, model="b"))
        await stream.flowing.wait()
        nursery.start_soon(unload)
        while house.several.directory.states["b"] == "ready":
            await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(partial(again.read, house, model="b"))  # waits, and loads it
        async with open_websocket_url(f"{house.url.replace('http', 'ws', 1)}/v1/stream") as socket:
            request = {"prompt": "One", "max_tokens": 2, "model": "b"}
            await socket.send_message(json.dumps({"type": "create", "id": "x", "request": request}))
            assert json.loads(await socket.get_message())["error"]["code"] == "model_loading"
    assert (stream.text, stream.last) == (again.text, again.last) == (whole, "[DONE]")
    assert unloaded[0].json()["success"]
    assert await states(house) == {"a": "ready", "b": "ready"}
    after = {name: report.worker.pid for name, report in (await house.several.reports()).items()}
    assert after["a"] == pids["a"]
    assert pids["b"]
    with pytest.raises(ProcessLookupError):
        os.kill(pids["b"], 0)

    await house.client.post("/models/unload", json={"model": "b"})
    assert await states(house) == {"a": "ready", "b": "unloaded"}
    assert (await house.client.get("/health")).json()["models"]["b"]["status"] == "unloaded"
    shown = await house.client.post("/api/show", json={"model": "b"})
    assert (shown.status_code, shown.json()["details"]["family"]) == (200, "mistral")
    assert await states(house) == {"a": "ready", "b": "unloaded"}
    assert [one["id"] for one in (await house.client.get("/v1/models")).json()["data"]] == ["a", "b", "chat"]
    assert [one["name"] for one in (await house.client.get("/api/ps")).json()["models"]] == ["a:latest"]
    assert (await house.client.get("/internal/ledger")).json()["children"] == 1
    loaded = (await house.client.post("/models/load", json={"model": "chat"})).json()["model"]
    assert (loaded["id"], loaded["status"]["value"], loaded["aliases"]) == ("b", "ready", ["chat"])


async def unload_under_a_line_of_a_batch(house: House) -> None:
    """The line runs again."""
    body = {"model": "b", "messages": TURNS, "max_tokens": 1000, "ignore_eos": True}
    line = {"custom_id": "x", "method": "POST", "url": "/v1/chat/completions", "body": body}
    batch = await start_batch(house, [line])
    while 'batch_lines_running{model="b"} 1.0' not in (await house.client.get("/metrics")).text:
        pass
    assert (await house.client.post("/models/unload", json={"model": "b"})).json()["success"]
    batch = await ended(house, batch)
    assert batch["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
    assert (await states(house))["b"] == "ready"


async def test_a_model_that_cannot_be_loaded_again_fails_alone_until_it_can(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(BUNDLED_MODEL, folder)
    models = (SETTINGS.models[0], ModelSettings(name="b", path=str(folder)))
    async with running(structs.replace(SETTINGS, models=models, drain_timeout=0.0)) as house:
        await unload_without_patience(house)
        config = (folder / "config.json").read_text()
        (folder / "config.json").write_text("{}")
        asked = {"prompt": "One", "max_tokens": 1, "model": "b"}
        for path, body in (("/v1/completions", asked), ("/models/load", {"model": "b"})):
            refused = await house.client.post(path, json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_unavailable")
            assert "architectures" in refused.text
        assert await states(house) == {"a": "ready", "b": "failed"}
        assert (await house.client.post("/v1/completions", json=asked | {"model": "a"})).status_code == 200
        (folder / "config.json").write_text(config)
        assert (await house.client.post("/models/load", json={"model": "b"})).json()["success"]
        assert (await house.client.post("/v1/completions", json=asked)).status_code == 200


async def unload_without_patience(house: House) -> None:
    """What runs for too long is ended when its model is unloaded."""
    stream = Stream()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(stream.read, house, model="b", max_tokens=4000))
        await stream.flowing.wait()
        assert (await house.client.post("/models/unload", json={"model": "b"})).json()["success"]
    assert json.loads(stream.last)["error"]["code"] == "engine_unavailable"


async def test_an_engine_that_breaks_down_is_of_one_model_and_can_be_loaded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crashes: list[trio.Event] = []  # of each engine, in the order of loading

    async def doomed(*arguments: Any, **options: Any) -> None:
        crashes.append(crash := trio.Event())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(run_admission, *arguments, **options))
            await crash.wait()
            raise RuntimeError("planted")

    monkeypatch.setattr(front_actors, "run_admission", doomed)
    async with running(SETTINGS) as house:
        streams = {"a": Stream(), "b": Stream()}
        async with trio.open_nursery() as nursery:
            for name, stream in streams.items():
                nursery.start_soon(partial(stream.read, house, model=name))
                await stream.flowing.wait()
            crashes[1].set()
        assert streams["a"].last == "[DONE]"
        assert json.loads(streams["b"].last)["error"]["code"] == "engine_error"
        assert await states(house) == {"a": "ready", "b": "failed"}
        asked = {"prompt": "One", "max_tokens": 1, "model": "b"}
        assert (await house.client.post("/v1/completions", json=asked)).status_code == 503
        assert (await house.client.post("/models/load", json={"model": "b"})).json()["success"]
        assert (await house.client.post("/v1/completions", json=asked)).status_code == 200
