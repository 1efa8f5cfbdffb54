"""Several web processes before one scheduler: the same texts, and what is left when one of the processes dies.

The scheduler's process is the test's own; worker and web processes are real, and so are the clients.
"""

import json
import os
import re
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import trio
from click import ClickException
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from triolet.actors.fronts import front_line
from triolet.actors.fronts.division import owner
from triolet.actors.fronts.front_line import FrontLine
from triolet.actors.fronts.fronts import Fronts
from triolet.actors.supervisor.restart_budget import RestartBudget
from triolet.cli.options import BUNDLED_MODEL, BUNDLED_NAME
from triolet.cli.process import run_or_refuse
from triolet.cli.several import run_fronts
from triolet.protocol.settings import AdapterPlaces, EngineSettings, LimitSettings, ServeSettings

from ..adapters import write_adapter
from ..conftest import Server

SOON = 60.0  # seconds: only a hang takes so long
LONG = {"prompt": "One", "max_tokens": 400, "ignore_eos": True, "temperature": 0, "stream": True}
SETTINGS = ServeSettings(
    engine=EngineSettings(model=str(BUNDLED_MODEL), threads=1, kv_cache_memory=64 << 20),
    served_model_name=BUNDLED_NAME,
    port=0,
    web_processes=2,
    drain_timeout=SOON,
)


class House(NamedTuple):
    url: str
    fronts: Fronts
    stop: trio.Event
    workers: list[int]  # its process


@asynccontextmanager
async def running(settings: ServeSettings) -> AsyncGenerator[House]:
    """The server for the length of a block, drained at its end; nothing of it is left."""
    running: list[Fronts] = []
    workers: list[int] = []
    stop = trio.Event()
    with trio.fail_after(2 * SOON):
        async with trio.open_nursery() as nursery:
            start = partial(
                run_fronts,
                settings,
                stop,
                on_progress=lambda progress: None,
                on_ready=lambda ready, _: workers.append(ready.pid),
                on_fronts=running.append,
            )
            urls: list[str] = await nursery.start(start)
            pids = list(running[0].pids.values())
            assert len(pids) == settings.web_processes
            yield House(urls[0], running[0], stop, workers)
            stop.set()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


class Stream:
    """One streamed answer on a connection of its own."""

    def __init__(self) -> None:
        self.front = ""
        self.status = 0
        self.text = ""
        self.events = 0
        self.last: dict[str, Any] | str = ""
        self.flowing = trio.Event()
        self.broken = False

    async def read(self, url: str, asked: dict[str, Any]) -> None:
        try:
            async with (
                httpx.AsyncClient(base_url=url, timeout=SOON, verify=False) as client,
                client.stream("POST", "/v1/completions", json=asked) as response,
            ):
                self.status = response.status_code
                async for line in response.aiter_lines():
                    self._take(line.removeprefix("data: "))
        except (httpx.RemoteProtocolError, httpx.ReadError):
            self.broken = True
        finally:
            self.flowing.set()

    def _take(self, data: str) -> None:
        if not data:
            return
        self.last = data if data == "[DONE]" else json.loads(data)
        if isinstance(self.last, dict) and "choices" in self.last:
            self.events += 1
            self.front = owner(self.last["id"].removeprefix("cmpl-"))
            self.text += self.last["choices"][0]["text"]
            if self.events == 3:
                self.flowing.set()


async def open_streams(nursery: trio.Nursery, house: House, count: int = 8, **changes: Any) -> list[Stream]:
    """Streams that flow, some at each front: the kernel chooses by the client's port."""
    streams = [Stream() for _ in range(count)]
    for stream in streams:
        nursery.start_soon(stream.read, house.url, LONG | changes)
    for stream in streams:
        await stream.flowing.wait()
    while len({stream.front for stream in streams}) < 2:  # one chance in 128 with eight of them
        streams.append(Stream())
        nursery.start_soon(streams[-1].read, house.url, LONG | changes)
        await streams[-1].flowing.wait()
    return streams


async def get(house: House, path: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=house.url, timeout=SOON, verify=False) as client:
        return (await client.get(path)).raise_for_status()


async def metrics(house: House) -> dict[str, float]:
    text = (await get(house, "/metrics")).text
    families = text_string_to_metric_families(text)
    return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}


async def until(condition: Callable[[dict[str, Any]], bool], house: House) -> None:
    """Until the ledger is so."""
    while not condition((await get(house, "/internal/ledger")).json()):  # noqa: ASYNC110 - of another process
        await trio.sleep(0.01)


async def until_replaced(house: House, front: str) -> None:
    while front in house.fronts.pids or len(house.fronts.pids) < 2:  # noqa: ASYNC110 - processes give no event
        await trio.sleep(0.01)


def nothing_is_held(ledger: dict[str, Any]) -> bool:
    blocks = ledger["kv_blocks"]
    assert blocks["free"] + blocks["cached"] + blocks["owned"] == blocks["total"]
    return bool(ledger["requests"] == blocks["owned"] == 0)


@pytest.fixture(scope="module")
def text(server: Server) -> str:
    """What the server of one process says."""
    whole = httpx.post(f"{server.url}/v1/completions", json=LONG | {"stream": False}, timeout=SOON, verify=False)
    answer: str = whole.json()["choices"][0]["text"]
    assert answer
    return answer


async def test_every_front_says_the_same_takes_what_is_asked_and_speaks_for_all(text: str, tmp_path: Path) -> None:
    settings = structs.replace(SETTINGS, data=str(tmp_path / "data"))
    async with running(settings) as house, trio.open_nursery() as nursery:
        async with trio.open_nursery() as first:
            streams = await open_streams(first, house)
            ledger = (await get(house, "/internal/ledger")).json()
            assert ledger["requests"] > 0
            assert ledger["children"] == 3
        assert {stream.text for stream in streams} == {text}
        assert all(stream.last == "[DONE]" for stream in streams)
        assert {stream.front for stream in streams} == set(house.fronts.pids)
        await until(nothing_is_held, house)
        seen = [await metrics(house) for _ in range(8)]
        assert {figures["triolet_requests_accepted_total"] for figures in seen} == {len(streams)}
        assert {figures["triolet_time_to_first_token_seconds_count"] for figures in seen} == {len(streams)}
        assert {figures["triolet_web_processes_silent"] for figures in seen} == {0}
        assert seen[0]["triolet_generation_tokens_total"] == 400 * len(streams)
        assert (await get(house, "/health/ready")).json()["status"] == "ready"
        await ask_for_dates(house)
        await ask_for_a_batch(house)
        last = await open_streams(nursery, house)
        house.stop.set()  # what runs may finish
    assert {(stream.text, stream.last) for stream in last} == {(text, "[DONE]")}


async def ask_for_dates(house: House) -> None:
    """Any front compiles grammars: each question comes on a connection of its own, so that both get some."""
    asked = {"prompt": "A date:", "structured_outputs": {"regex": "20[0-9]{2}"}, "seed": 1}
    for _ in range(8):
        async with httpx.AsyncClient(base_url=house.url, timeout=SOON, verify=False) as client:
            choice = (await client.post("/v1/completions", json=asked)).raise_for_status().json()["choices"][0]
        assert re.fullmatch("20[0-9]{2}", choice["text"])
        assert choice["finish_reason"] == "stop"


async def ask_for_a_batch(house: House) -> None:
    """Any front takes it, again by connections of their own, and the scheduler's process runs it."""
    rows = [
        {
            "custom_id": str(number),
            "method": "POST",
            "url": "/v1/completions",
            "body": {"prompt": "One", "max_tokens": 4},
        }
        for number in range(20)
    ]
    content = "\n".join(map(json.dumps, rows))

    async def ask(method: str, path: str, **more: Any) -> httpx.Response:
        async with httpx.AsyncClient(timeout=SOON, verify=False) as client:
            response = await client.request(method, house.url + path, **more)
        assert response.status_code == 200, response.text
        return response

    file = (await ask("POST", "/v1/files", data={"purpose": "batch"}, files={"file": content.encode()})).json()
    wanted = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    batch = (await ask("POST", "/v1/batches", json=wanted)).json()
    while batch["status"] not in ("completed", "failed"):
        batch = (await ask("GET", f"/v1/batches/{batch['id']}")).json()
    answers = (await ask("GET", f"/v1/files/{batch['output_file_id']}/content")).text.splitlines()
    assert sorted(int(json.loads(answer)["custom_id"]) for answer in answers) == list(range(20))
    assert 'triolet_batch_lines_total{result="completed"} 20.0' in (await get(house, "/metrics")).text


async def test_deaths_cost_the_streams_of_a_dead_front_alone(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(SETTINGS) as house:
        await kill_a_front(house, text)
        await kill_a_front_while_it_is_asked(house, monkeypatch)
        await kill_the_worker(house, text)


async def kill_a_front(house: House, text: str) -> None:
    """It takes its own streams and no other; what it counted stays."""
    async with trio.open_nursery() as nursery:
        streams = await open_streams(nursery, house)
        before = await metrics(house)
        doomed = streams[0].front
        os.kill(house.fronts.pids[doomed], signal.SIGKILL)
    for stream in streams:
        if stream.front == doomed:
            assert stream.broken
        else:
            assert (stream.text, stream.last) == (text, "[DONE]")
    await until(nothing_is_held, house)
    await until_replaced(house, doomed)
    after = await metrics(house)
    assert after["triolet_requests_accepted_total"] >= before["triolet_requests_accepted_total"] == len(streams)
    assert after["triolet_web_process_restarts_total"] == 1
    async with trio.open_nursery() as nursery:
        again = await open_streams(nursery, house)
    assert {stream.text for stream in again} == {text}


async def kill_a_front_while_it_is_asked(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts once."""
    ask = FrontLine.report
    doomed = next(iter(house.fronts.pids))
    before = (await house.fronts.observer.report()).web.accounts["accepted"]
    assert before  # it has something to lose

    async def die(line: FrontLine) -> bool:
        if line.name != doomed:
            return await ask(line)
        os.kill(line.pid, signal.SIGKILL)
        while doomed in house.fronts.pids:  # noqa: ASYNC110 - processes give no event
            await trio.sleep(0.01)
        return False

    with monkeypatch.context() as patch:
        patch.setattr(FrontLine, "report", die)
        during = await house.fronts.observer.report()
        assert during.web.accounts["accepted"] == before
        assert during.web.silent == 0
        assert doomed not in (during.web.processes or {})
        await until_replaced(house, doomed)
        assert (await house.fronts.observer.report()).web.accounts["accepted"] == before


async def kill_the_worker(house: House, text: str) -> None:
    """The streams of all fronts outlive it."""
    async with trio.open_nursery() as nursery:
        streams = await open_streams(nursery, house)
        os.kill(house.workers[0], signal.SIGKILL)
    assert {(stream.text, stream.last) for stream in streams} == {(text, "[DONE]")}
    await until(nothing_is_held, house)
    assert (await metrics(house))["triolet_worker_restarts_total"] == 1


async def test_the_places_are_divided_and_what_the_drain_timeout_ends_is_told_so() -> None:
    settings = structs.replace(SETTINGS, limits=LimitSettings(max_requests=3), drain_timeout=0.0)
    held: list[Stream] = []
    async with running(settings) as house, trio.open_nursery() as nursery:
        refused = 0
        while len(held) < 3 or refused < 3:
            stream = Stream()
            nursery.start_soon(stream.read, house.url, LONG | {"max_tokens": 8000})
            await stream.flowing.wait()
            refused += stream.status == 429
            held += [stream] * (stream.status == 200)
            assert (await get(house, "/internal/ledger")).json()["requests"] <= 3
            held = [stream for stream in held if stream.last != "[DONE]"]  # on a fast machine they end meanwhile
        parts = [sum(stream.front == name for stream in held) for name in house.fronts.pids]
        assert sorted(parts) == [1, 2]
        house.stop.set()
    for stream in held:
        assert isinstance(stream.last, dict)
        assert stream.last["error"]["code"] == "shutting_down"


def test_a_server_that_loses_all_its_fronts_says_so_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_left(budget: RestartBudget, now: float) -> None: ...

    async def lose() -> None:
        async with running(SETTINGS) as house:
            for pid in house.fronts.pids.values():
                os.kill(pid, signal.SIGKILL)
            await trio.sleep_forever()

    monkeypatch.setattr(RestartBudget, "next_delay", nothing_left)
    with pytest.raises(ClickException, match="no web process is left"):
        run_or_refuse(lose)


async def test_a_front_that_stands_still_holds_nobody_up_and_is_replaced(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_line, "PING_SECONDS", 0.2)
    monkeypatch.setattr(front_line, "SILENCE_SECONDS", 1.0)
    async with running(SETTINGS) as house:
        async with trio.open_nursery() as nursery:
            streams = await open_streams(nursery, house)
            stopped = streams[0].front
            os.kill(house.fronts.pids[stopped], signal.SIGSTOP)
        for stream in streams:
            if stream.front != stopped:
                assert (stream.text, stream.last) == (text, "[DONE]")
        await until_replaced(house, stopped)
        await until(nothing_is_held, house)


async def test_every_front_knows_an_adapter_before_its_loading_is_answered(tmp_path: Path) -> None:
    for seed, name in enumerate(("given", "loaded")):
        write_adapter(tmp_path / name, seed)
    engine = structs.replace(SETTINGS.engine, adapter_places=AdapterPlaces(count=2))
    loras = (f"given={tmp_path / 'given'}",)
    settings = structs.replace(SETTINGS, engine=engine, loras=loras, lora_folder=str(tmp_path))

    async def change(path: str, **body: str) -> int:
        async with httpx.AsyncClient(base_url=house.url, timeout=SOON, verify=False) as client:
            return (await client.post(path, json=body)).status_code

    async def fronts_that_know(name: str) -> set[str]:
        """Those that answer as this adapter, asked so often that both have been."""
        async with trio.open_nursery() as nursery:
            streams = await open_streams(nursery, house, model=name, max_tokens=4)
        return {stream.front for stream in streams if stream.status == 200}

    async with running(settings) as house:
        both = set(house.fronts.pids)
        assert await fronts_that_know("given") == both
        assert await change("/v1/load_lora_adapter", lora_name="late", lora_path="loaded") == 200
        assert await fronts_that_know("late") == both
        assert await change("/v1/load_lora_adapter", lora_name="late", lora_path="loaded") == 400
        killed = next(iter(both))
        os.kill(house.fronts.pids[killed], signal.SIGKILL)
        await until_replaced(house, killed)
        assert await fronts_that_know("late") == set(house.fronts.pids)
        assert await change("/v1/unload_lora_adapter", lora_name="late") == 200
        for _ in range(8):
            assert await change("/v1/completions", model="late", prompt="x") == 404
