"""A plain request is answered past Quart, an odd one by it: the two answers are the same."""

import re
from typing import Any

import httpx
import msgspec
import pytest

from triolet.protocol.settings import EngineSettings, LimitSettings, ServeSettings
from triolet.web.asgi import Application
from triolet.web.exchange import Written
from triolet.web.transport.sending import Sending

from .conftest import Web

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
TEXT = {"model": "tiny", "prompt": "Hi"}
JSON = {"Content-Type": "application/json", "X-Request-Id": "mine", "Authorization": "Bearer right"}
CHANGING = re.compile(r'(cmpl-)[0-9a-f-]+|"created":\d+|_ms": ?[0-9.e-]+')

CHANCE = ("date", "content-length", "connection")  # the last: a refusal may overtake the body, and then closes

CASES: dict[str, tuple[str, dict[str, Any] | bytes, dict[str, str]]] = {
    "chat": ("/v1/chat/completions", CHAT, {}),
    "streamed": ("/v1/chat/completions", CHAT | {"stream": True, "n": 2}, {}),
    "completion": ("/v1/completions", TEXT | {"logprobs": 1, "echo": True}, {}),
    "streamed completion": ("/v1/completions", TEXT | {"stream": True}, {}),
    "no JSON": ("/v1/completions", b"{", {}),
    "unknown parameter": ("/v1/chat/completions", CHAT | {"temprature": 1}, {}),
    "too large": ("/v1/completions", b" " * (64 * 1024 + 1), {}),
    "wrong key": ("/v1/chat/completions", CHAT, {"Authorization": "Bearer wrong"}),
    "bad header": ("/v1/chat/completions", CHAT, {"X-Triolet-Explain": "2"}),
}


@pytest.fixture
def settings() -> ServeSettings:
    limits = LimitSettings(max_requests=8, max_body_bytes=64 * 1024, outbox_tokens=8, max_socket_requests=3)
    return ServeSettings(engine=EngineSettings(model="tiny"), limits=limits, api_keys=("right",))


@pytest.fixture
def by_quart(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that Quart dispatched."""
    seen: list[str] = []
    dispatch = Application.dispatch_request

    async def spy(self: Application, context: Any = None) -> Any:  # Any: Quart's own
        seen.append(context.request.path)
        return await dispatch(self, context)

    monkeypatch.setattr(Application, "dispatch_request", spy)
    return seen


@pytest.mark.parametrize("case", CASES)
async def test_both_ways_answer_alike(web: Web, by_quart: list[str], case: str) -> None:
    path, body, headers = CASES[case]
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)

    async def post(path: str) -> httpx.Response:
        """On a connection of its own: the answer to a body that was not awaited ends one."""
        async with httpx.AsyncClient(base_url=web.url) as client:
            return await client.post(path, content=content, headers=JSON | headers)

    plain = await post(path)
    assert by_quart == [] or case == "too large"  # left to the other way, which refuses it
    by_quart.clear()
    odd = await post(path + "?odd=1")
    assert by_quart == [path] or case == "wrong key"  # refused before any dispatch

    def shape(answer: httpx.Response) -> tuple[int, dict[str, str], str]:
        kept = {name: value for name, value in answer.headers.items() if name not in CHANCE}
        return answer.status_code, kept, CHANGING.sub(r"\1", answer.text)

    assert shape(plain) == shape(odd)
    assert plain.headers["x-request-id"] == "mine"


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://elsewhere"}, {"Content-Type": "application/json; charset=utf-8"}, {"Content-Encoding": "gzip"}],
)
async def test_what_is_odd_goes_to_quart(web: Web, by_quart: list[str], headers: dict[str, str]) -> None:
    answer = await web.client.post("/v1/completions", content=b"{}", headers=JSON | headers)
    assert answer.status_code in (400, 403, 415)
    assert by_quart == ["/v1/completions"] or answer.status_code == 403


@pytest.mark.parametrize("stream", [False, True])
async def test_neither_a_head_nor_an_end_is_a_write_of_its_own(
    web: Web, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    sent: list[bytes] = []
    write_now = Sending.write_now

    def spy(self: Sending, data: bytes) -> Written:
        sent.append(data)
        return write_now(self, data)

    monkeypatch.setattr(Sending, "write_now", spy)
    await web.client.post("/v1/completions", content=msgspec.json.encode(TEXT | {"stream": stream}), headers=JSON)
    assert stream or len(sent) == 1
    head, _, rest = sent[0].partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"Hello" in rest  # a stream's first text comes soon enough to be waited for
    assert sent[-1] not in (b"", b"0\r\n\r\n")
