"""A server of several models, for tests: real workers, real clients. All are the bundled model."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import httpx
import trio
from prometheus_client.parser import text_string_to_metric_families

from triolet.actors.several.several import Several, run_several
from triolet.cli.batches import SeveralBatches
from triolet.cli.memory_needs import parts_of
from triolet.cli.options import BUNDLED_MODEL
from triolet.cli.serving import serve_engine
from triolet.cli.succession import Succession
from triolet.protocol.settings import EngineSettings, LimitSettings, ModelSettings, ServeSettings

SOON = 60.0  # seconds: only a hang takes so long
SETTINGS = ServeSettings(
    engine=EngineSettings(model=str(BUNDLED_MODEL), threads=1, kv_cache_memory=64 << 20),
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
    batches, stop = SeveralBatches(Succession(settings)), trio.Event()

    async def run(on_open: Any) -> None:
        def keep(several: Several) -> None:
            opened.append(several)
            on_open(several)

        load = partial(
            run_several, settings, parts=await parts_of(settings), on_progress=lambda progress: None, on_open=keep
        )
        await load(beside=batches.run_lines, beside_all=batches.run)

    with trio.fail_after(2 * SOON):
        async with trio.open_nursery() as nursery:
            serve = partial(serve_engine, settings, run, stop, sockets=None, certificates=None)
            urls: list[str] = await nursery.start(serve)
            async with httpx.AsyncClient(base_url=urls[0], timeout=SOON, verify=False) as client:
                yield House(opened[0], client, urls[0])
            stop.set()


class Stream:
    """One streamed completion."""

    def __init__(self) -> None:
        self.flowing = trio.Event()
        self.text = ""
        self.last = ""

    async def read(self, house: House, **asked: Any) -> None:
        async with house.client.stream("POST", "/v1/completions", json=LONG | {"stream": True} | asked) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    self.last = line.removeprefix("data: ")
                    if "choices" in self.last:
                        self.text += json.loads(self.last)["choices"][0]["text"]
                        self.flowing.set()


async def start_batch(house: House, lines: list[dict[str, Any]]) -> dict[str, Any]:
    file = "\n".join(map(json.dumps, lines)).encode()
    uploaded = await house.client.post("/v1/files", files={"file": file}, data={"purpose": "batch"})
    asked = {"input_file_id": uploaded.json()["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch: dict[str, Any] = (await house.client.post("/v1/batches", json=asked)).json()
    return batch


async def ended(house: House, batch: dict[str, Any]) -> dict[str, Any]:
    while batch["status"] != "completed":
        await trio.sleep(0.05)
        batch = (await house.client.get(f"/v1/batches/{batch['id']}")).json()
    return batch


async def states(house: House) -> dict[str, str]:
    return {one["id"]: one["status"]["value"] for one in (await house.client.get("/models")).json()["data"]}
