"""Every way of a request into the server decodes a large body in a thread."""

import random
import threading

import pytest

from .conftest import Web
from .test_websocket import connect

LONG = {"metadata": {"padding": "x" * 60_000}}
CHAT = {"messages": [{"role": "user", "content": "Hi"}]} | LONG


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where bodies become requests: there, a request without a seed gets one."""
    found: list[int] = []
    draw = random.getrandbits

    def drawn(bits: int) -> int:
        if bits == 64:
            found.append(threading.get_ident())
        return draw(bits)

    monkeypatch.setattr(random, "getrandbits", drawn)
    monkeypatch.setattr("triolet.web.large_json.LARGE", 50_000)  # below the limit on bodies of these tests' server
    return found


async def test_over_http(web: Web, threads: list[int]) -> None:
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": "Hi"} | LONG)):
        assert (await web.client.post(path, json=body)).status_code == 200
    assert len(threads) == 2
    assert threading.get_ident() not in threads


async def test_over_a_websocket(web: Web, threads: list[int]) -> None:
    async with connect(web) as client:
        await client.create("r1", **LONG)
        assert (await client.hear_all("r1"))[-1]["type"] == "finished"
    assert len(threads) == 1
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"messages": [{"role": "user", "content": "Hi"}] * 1000}),
        ("/detokenize", {"tokens": [1] * 20_000}),
    ],
)
async def test_too_many_values_for_the_tokenizer(
    web: Web, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, object]
) -> None:
    for name, value in (("LARGE", 1000), ("MAX_CONTAINERS", 500), ("MAX_NUMBERS", 10_000)):
        monkeypatch.setattr(f"triolet.web.large_json.{name}", value)
    response = await web.client.post(path, json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (413, "content_too_large")
