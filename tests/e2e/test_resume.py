"""Answers that outlive their sockets on a real server of two web processes: found, and at last forgotten."""

import json
from random import Random
from typing import Any

import httpx
import pytest
import trio
from trio_websocket import WebSocketConnection, open_websocket_url

from .conftest import PATIENCE, Serve, Server

SOCKETS = 64  # of which the kernel gives each process one: it does not in 1 of 10^19 runs
CHAT = {"model": "triolet-demo", "messages": [{"role": "user", "content": "Count from 1 to 20."}], "ignore_eos": True}
GRACE = {"disconnect_policy": f"grace:{PATIENCE:g}"}

Frame = dict[str, Any]


@pytest.fixture(scope="module")
def server(serve: Serve) -> Server:
    return serve("--web-processes", "2")


async def say(socket: WebSocketConnection, **frame: object) -> None:
    await socket.send_message(json.dumps(frame))


async def hear(socket: WebSocketConnection) -> Frame:
    frame: Frame = json.loads(await socket.get_message())
    return frame


def stream_url(server: Server) -> str:
    return server.url.replace("http://", "ws://") + "/v1/stream"


async def test_any_process_says_where_an_answer_is(server: Server) -> None:
    outcomes: set[str] = set()
    with trio.fail_after(PATIENCE):
        async with open_websocket_url(stream_url(server)) as socket:
            await say(socket, type="create", id="a", request=CHAT | {"max_tokens": 8} | GRACE)
            frames = [await hear(socket)]
        token = frames[0]["resume"]
        for _ in range(SOCKETS):
            async with open_websocket_url(stream_url(server)) as socket:
                await say(socket, type="resume", id="b", resume=token, after=len(frames))
                frame = await hear(socket)
                while frame["type"] in ("started", "token"):
                    frames.append(frame)
                    frame = await hear(socket)
            outcomes.add(frame["error"]["code"] if frame["type"] == "failed" else frame["type"])
            if len(outcomes) == 2:
                break
    assert outcomes == {"misdirected", "finished"}
    assert [frame["seq"] for frame in frames] == list(range(len(frames)))
    assert sum(frame["tokens"] for frame in frames if frame["type"] == "token") == 8


def test_any_process_says_where_a_stream_is(server: Server) -> None:
    body = CHAT | GRACE | {"max_tokens": 8, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=PATIENCE) as response:
        events = f"{server.url}/v1/requests/{response.headers['x-triolet-resume']}/events"
        start = next(line for line in response.iter_lines() if line.startswith("id: "))
    outcomes: dict[int, httpx.Response] = {}
    for _ in range(SOCKETS):
        found = httpx.get(events, headers={"Last-Event-ID": start.removeprefix("id: ")}, timeout=PATIENCE)
        outcomes[found.status_code] = found
        if len(outcomes) == 2:
            break
    assert sorted(outcomes) == [200, 421]
    assert outcomes[421].headers["connection"] == "close"
    assert outcomes[200].text.endswith("data: [DONE]\n\n")
    assert outcomes[200].text.startswith(start[:-1] + "1\n")
    assert httpx.delete(events, timeout=PATIENCE).status_code in (200, 421)


async def test_nothing_is_left_of_clients_that_come_and_go(server: Server) -> None:
    random = Random(1)

    async def one() -> None:
        token, after = "", 0
        for _ in range(random.randrange(1, 4)):
            async with open_websocket_url(stream_url(server)) as socket:
                if token:
                    await say(socket, type="resume", id="a", resume=token, after=after)
                else:
                    request = CHAT | {"max_tokens": random.choice((4, 200, 1000)), "disconnect_policy": "grace:0.2"}
                    await say(socket, type="create", id="a", request=request)
                for _ in range(random.randrange(1, 8)):
                    frame = await hear(socket)
                    after += 1
                    token = frame.get("resume", token)
                    if frame["type"] in ("finished", "failed"):
                        return

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for _ in range(24):
                nursery.start_soon(one)
    server.wait_balanced()
    # The first tests' answers wait on; they have ended long ago.
    server.wait_until(lambda: server.ledger()["kept_answers"] <= 2, "the answers are forgotten")
