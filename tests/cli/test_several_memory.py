"""A server of several models with a bound for their memory: they make room for each other."""

from functools import partial
from pathlib import Path

import pytest
import trio
from click import ClickException
from msgspec import structs

from triolet.actors.batch import runner
from triolet.cli.memory_needs import parts_of
from triolet.cli.options import BUNDLED_MODEL
from triolet.protocol.settings import ModelSettings, ServeSettings

from .several_house import LONG, SETTINGS, TURNS, House, Stream, ended, running, start_batch, states


def with_memory(count: float) -> ServeSettings:
    """Of three models; there is room for so many of them."""
    models = tuple(ModelSettings(name=name, path=str(BUNDLED_MODEL)) for name in "abc")
    return structs.replace(SETTINGS, models=models, aliases=(), memory=int(count * SIZE))


SIZE = 87 << 20  # a little more than one of the models takes, with its KV cache of 64 MiB


async def test_a_model_that_a_request_names_takes_the_place_of_the_longest_unused() -> None:
    async with running(with_memory(2.0)) as house:
        asked = {"prompt": "One", "max_tokens": 1}

        async def ask(model: str) -> None:
            answer = await house.client.post("/v1/completions", json=asked | {"model": model})
            assert (answer.status_code, answer.json()["model"]) == (200, model)

        assert await states(house) == {"a": "ready", "b": "ready", "c": "unloaded"}
        shown = await house.client.post("/api/show", json={"model": "c"})
        assert (shown.status_code, shown.json()["details"]["family"]) == (200, "")  # it was never loaded
        cards = (await house.client.get("/v1/models")).json()["data"]
        assert [(card["id"], card["max_model_len"]) for card in cards] == [(name, 8192) for name in "abc"]
        await ask("b")
        await ask("a")
        await ask("c")
        assert await states(house) == {"a": "ready", "b": "unloaded", "c": "ready"}
        stream = Stream()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(stream.read, house, model="a", max_tokens=8000))
            await stream.flowing.wait()
            await ask("c")  # so that the busy one is the longest unused
            await ask("b")
            assert await states(house) == {"a": "ready", "b": "ready", "c": "unloaded"}  # but it is not idle
            nursery.cancel_scope.cancel()


async def test_a_model_that_never_fits_is_refused_with_the_figures() -> None:
    with pytest.raises(ClickException, match=r"--memory 0\.05GiB is less than a needs alone: .* raise it to 0\.09GiB"):
        await parts_of(with_memory(0.5))
    broken = structs.replace(SETTINGS, models=(ModelSettings(name="x", path="no/folder"),), memory=SIZE)
    with pytest.raises(ClickException, match="no/folder"):
        await parts_of(broken)


async def test_models_that_do_not_fit_together_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "PASSING_SECONDS", 0.01)
    async with running(structs.replace(with_memory(1.0), data=str(tmp_path))) as house:
        await wait_no_longer_than_was_said(house)
        await leave_a_batch_the_room_that_there_is(house)
        await answer_everybody(house)


async def wait_no_longer_than_was_said(house: House) -> None:
    """A request for a model that finds no room."""
    stream = Stream()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(stream.read, house, model="a", max_tokens=8000))  # b waits for its end
        await stream.flowing.wait()
        asked, headers = {"prompt": "One", "max_tokens": 1, "model": "b"}, {"X-Request-Timeout": "0.2"}
        late = await house.client.post("/v1/completions", json=asked, headers=headers)
        assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
        nursery.cancel_scope.cancel()


async def leave_a_batch_the_room_that_there_is(house: House) -> None:
    """It unloads no model."""
    line = {"custom_id": "x", "method": "POST", "url": "/v1/chat/completions"}
    body = {"model": "b", "messages": TURNS, "max_tokens": 2}
    batch = await start_batch(house, [line | {"body": body}])
    while batch["status"] != "in_progress":
        batch = (await house.client.get(f"/v1/batches/{batch['id']}")).json()
    assert (await house.client.post("/v1/completions", json=LONG)).status_code == 200  # meanwhile the line asks
    assert await states(house) == {"a": "ready", "b": "unloaded", "c": "unloaded"}
    await house.client.post("/models/unload", json={"model": "a"})
    await ended(house, batch)
    assert await states(house) == {"a": "unloaded", "b": "ready", "c": "unloaded"}


async def answer_everybody(house: House) -> None:
    """One model after the other."""
    whole = (await house.client.post("/v1/completions", json=LONG | {"max_tokens": 50})).json()["choices"][0]["text"]
    streams = [(Stream(), name) for name in "cabacb"]
    async with trio.open_nursery() as nursery:
        for stream, name in streams:
            nursery.start_soon(partial(stream.read, house, model=name, max_tokens=50))
    assert {(stream.text, stream.last) for stream, _ in streams} == {(whole, "[DONE]")}
    assert sorted((await states(house)).values()) == ["ready", "unloaded", "unloaded"]
