"""A server under a path of a proxy: the same with the path in front, as with the path taken away."""

import click
import httpx
import msgspec
import pytest

from triolet.cli.values import ROOT_PATH
from triolet.protocol.settings import ServeSettings
from triolet.web.app import create_app

from .conftest import ScriptedEngine, Web
from .test_websocket import CHAT, connect


@pytest.fixture
def settings(settings: ServeSettings) -> ServeSettings:
    return msgspec.structs.replace(settings, root_path="/our/llm-1.0")


@pytest.fixture(params=["", "/our/llm-1.0"], ids=["taken away", "left"])
def base(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.mark.parametrize("http2", [False, True])
async def test_every_way_of_a_request(web: Web, base: str, http2: bool) -> None:
    async with httpx.AsyncClient(base_url=web.url, http1=not http2, http2=http2, verify=False) as client:
        for stream in (False, True):
            response = await client.post(f"{base}/v1/chat/completions", json=CHAT | {"stream": stream})
            assert response.status_code == 200
        for path in ("/", "/dashboard", "/static/chat.css", "/v1/models", "/v1/models/tiny", "/health", "/metrics"):
            assert (await client.get(base + path)).status_code == 200
        assert (await client.get(f"{base}/nothing")).status_code == 404


async def test_a_plain_request_bypasses_the_framework_there_too(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise AssertionError("it took the general path")

    monkeypatch.setattr("triolet.web.transport.http1.GuardedHTTP1.handle", fail)
    body = msgspec.json.encode(CHAT)
    async with await web.connect() as stream:
        head = "POST /our/llm-1.0/v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        await stream.send_all(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")


async def test_sockets(web: Web, base: str) -> None:
    async with connect(web, f"{base}/v1/stream") as client:
        await client.create("a")
        assert (await client.hear_all("a"))[-1]["type"] == "finished"


async def test_the_page_s_relative_addresses_need_the_slash(web: Web) -> None:
    response = await web.client.get("/our/llm-1.0")
    assert (response.status_code, response.headers["location"]) == (308, "/our/llm-1.0/")


async def test_the_description_says_where_the_server_is(web: Web) -> None:
    assert (await web.client.get("/openapi.json")).json()["servers"] == [{"url": "/our/llm-1.0"}]


@pytest.mark.parametrize(
    "path",
    ["/our/llm-1.0//v1/models", "/our/llm-1.0x/v1/models", "//our/llm-1.0/v1/models", "/our/llm-1.0/our/llm-1.0/",
     "/our/llm-1.0/../v1/models", "/our/"],
)  # fmt: skip
async def test_other_spellings_are_other_paths(web: Web, path: str) -> None:
    async with await web.connect() as stream:  # httpx would tidy the path
        await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 404")


class TestWithKeys:
    @pytest.fixture
    def settings(self, settings: ServeSettings) -> ServeSettings:
        return msgspec.structs.replace(settings, api_keys=("first",))

    @pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/nothing", "/v1/stream"])
    async def test_the_key_is_asked_for(self, web: Web, base: str, path: str) -> None:
        assert (await web.client.get(base + path)).status_code == 401

    @pytest.mark.parametrize("path", ["/", "/dashboard", "/static/chat.css", "/health/live"])
    async def test_what_is_open_stays_open(self, web: Web, base: str, path: str) -> None:
        assert (await web.client.get(base + path)).status_code == 200

    async def test_the_way_to_the_page_is_open(self, web: Web) -> None:
        assert (await web.client.get("/our/llm-1.0")).status_code == 308


async def test_no_path_of_the_servers_own_can_be_its_root(settings: ServeSettings) -> None:
    engine = ScriptedEngine(msgspec.structs.replace(settings, root_path=""))
    app = create_app(engine)  # type: ignore[arg-type]  # it is the part of the engine that the web uses
    for first in {rule.rule.split("/")[1] for rule in app.url_map.iter_rules()} - {""}:
        with pytest.raises(click.BadParameter, match="begins like a path of the server's own"):
            ROOT_PATH.convert(f"/{first}", None, None)
