"""Several web processes: whichever is asked explains every request, and traces and metrics are those of all."""

import json
from typing import Any

import httpx
import pytest
import trio
from msgspec import structs

from triolet.actors.fronts.division import owner

from .test_several import LONG, SETTINGS, SOON, get, metrics, open_streams, running

pytest.importorskip("opentelemetry.sdk.trace", reason="OpenTelemetry is not installed")
from ..otlp_collector import collecting

ROWS = 8


async def test_every_front_explains_every_request() -> None:
    with collecting() as collector:
        engine = structs.replace(SETTINGS.engine, max_running=ROWS)
        settings = structs.replace(SETTINGS, engine=engine, metric_aliases="vllm", otlp_endpoint=collector.url)
        async with running(settings) as house:
            async with trio.open_nursery() as nursery:
                streams = await open_streams(nursery, house, ROWS, max_tokens=1500)
                ids = {stream.front: stream.last["id"] for stream in streams if isinstance(stream.last, dict)}
                assert len(ids) == 2
                # One connection is one front: of these two requests it has taken one.
                async with httpx.AsyncClient(base_url=house.url, timeout=SOON, verify=False) as client:
                    for front, id in ids.items():
                        found = (await client.get(f"/v1/requests/{id}")).json()
                        assert owner(found["id"]) == front
                        assert found["state"] in ("decode", "parked")
                        assert found["timeline"]["first_token"] is not None
                    missing = await client.get("/v1/requests/nobody")
                    assert missing.status_code == 404
                watched = Watched()
                nursery.start_soon(watched.read, house.url)
                await watched.waits.wait()
                blocked_on = watched.said["blocked_on"]
                assert (blocked_on["unit"], blocked_on["total"]) == ("rows", ROWS)
                assert blocked_on["holders"]["running"] == ROWS
                nursery.cancel_scope.cancel()
            for _ in range(8):  # by connections of their own: one chance in 128 that all come to the same front
                ended = (await get(house, "/v1/requests/watched")).json()
                assert (ended["id"], ended["state"]) == (watched.said["id"], "finished")
            await trio.to_thread.run_sync(collector.wait_for_roots, ROWS + 1)
            found = await metrics(house)
            assert found["triolet_traces_exported_total"] >= 1
            text = (await get(house, "/metrics")).text
            assert 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="triolet-demo"}' in text


class Watched:
    """The comments of a stream that finds no place."""

    def __init__(self) -> None:
        self.said: dict[str, Any] = {}
        self.waits = trio.Event()

    async def read(self, url: str) -> None:
        headers = {"X-Triolet-Explain": "1", "X-Request-Id": "watched"}
        async with (
            httpx.AsyncClient(base_url=url, timeout=SOON, verify=False) as client,
            client.stream("POST", "/v1/completions", json=LONG, headers=headers) as response,
        ):
            async for line in response.aiter_lines():
                if line.startswith(": explain ") and not self.waits.is_set():
                    self.said = json.loads(line.removeprefix(": explain "))
                    if self.said["state"] == "waiting" and self.said["blocked_on"]["kind"] != "step":
                        self.waits.set()
