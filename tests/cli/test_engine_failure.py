"""An engine that breaks down while it serves: its streams are told before the server goes."""

import json
from functools import partial
from typing import Any

import httpx
import pytest
import trio

from triolet.actors import front_actors
from triolet.actors.admission.admission import run_admission
from triolet.cli.options import BUNDLED_MODEL, BUNDLED_NAME
from triolet.cli.serving import run_server
from triolet.protocol.settings import EngineSettings, ServeSettings

SOON = 60.0  # seconds: only a hang takes so long


async def test_streams_get_their_last_event(monkeypatch: pytest.MonkeyPatch) -> None:
    crash, stop = trio.Event(), trio.Event()

    async def doomed(*arguments: Any, **options: Any) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(run_admission, *arguments, **options))
            await crash.wait()
            raise RuntimeError("planted")

    monkeypatch.setattr(front_actors, "run_admission", doomed)
    model = EngineSettings(model=str(BUNDLED_MODEL))
    settings = ServeSettings(engine=model, served_model_name=BUNDLED_NAME, port=0)
    asked = {"prompt": "One", "max_tokens": 1800, "n": 8, "ignore_eos": True, "stream": True}
    lines: list[str] = []

    async def read(client: httpx.AsyncClient) -> None:
        async with client.stream("POST", "/v1/completions", json=asked) as response:
            async for line in response.aiter_lines():
                crash.set()
                if line:
                    lines.append(line)

    with trio.fail_after(SOON):
        with pytest.RaisesGroup(RuntimeError, flatten_subgroups=True):
            async with trio.open_nursery() as server:
                urls: list[str] = await server.start(
                    partial(run_server, settings, stop, on_progress=lambda progress: None)
                )
                async with httpx.AsyncClient(base_url=urls[0], timeout=SOON, verify=False) as client:
                    with trio.CancelScope(shield=True):  # the failing server must not take its client along
                        await read(client)
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "engine_error"
