"""200 streams at once on the bundled model all finish, and nothing is left of them."""

import json

import httpx
import pytest
import trio

from .conftest import PATIENCE, Serve, Server

CROWD = 200


@pytest.fixture(scope="module")
def server(serve: Serve) -> Server:
    return serve()


async def test_two_hundred_streams_finish(server: Server) -> None:
    reasons: list[str] = []

    async def one(client: httpx.AsyncClient, number: int) -> None:
        body = {
            "model": "triolet-demo",
            "messages": [{"role": "user", "content": f"What is {number} + {number}?"}],
            "max_tokens": 24,
            "stream": True,
        }
        async with client.stream("POST", f"{server.url}/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200
            lines = [line async for line in answer.aiter_lines() if line.startswith("data: ")]
        assert lines[-1] == "data: [DONE]"
        (choice,) = json.loads(lines[-2][6:])["choices"]
        reasons.append(choice["finish_reason"])

    limits = httpx.Limits(max_connections=CROWD)
    with trio.fail_after(PATIENCE):
        async with httpx.AsyncClient(limits=limits, timeout=None) as client, trio.open_nursery() as nursery:
            for number in range(CROWD):
                nursery.start_soon(one, client, number)
    assert len(reasons) == CROWD
    assert set(reasons) <= {"stop", "length"}
    server.wait_balanced()
