"""Scripts of other origins: what a browser asks before them, what it is answered, and who is still refused."""

import httpx
import msgspec
import pytest
import trio
from trio_websocket import HandshakeError

from triolet.protocol.settings import ServeSettings

from .conftest import Web
from .test_websocket import CHAT, connect

APP = "https://app.example"
PREFLIGHT = {
    "Origin": APP,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}


@pytest.fixture
def settings(settings: ServeSettings) -> ServeSettings:
    return msgspec.structs.replace(settings, allow_origins=(APP, "chrome-extension://abcd"))


def readable_by(response: httpx.Response, origin: str) -> bool:
    """Whether a browser lets a script of this origin read the answer, and the request's id."""
    fields = response.headers
    return fields.get("access-control-allow-origin") == origin and (
        response.request.method == "OPTIONS" or "X-Request-Id" in fields["access-control-expose-headers"]
    )


class TestWithKeys:
    @pytest.fixture
    def settings(self, settings: ServeSettings) -> ServeSettings:
        return msgspec.structs.replace(settings, api_keys=("first",))

    @pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/nothing"])
    async def test_a_browser_may_ask_without_a_key(self, web: Web, path: str) -> None:
        response = await web.client.options(path, headers=PREFLIGHT)
        assert response.status_code == 204
        assert readable_by(response, APP)
        assert response.headers["access-control-allow-headers"] == "authorization,content-type"
        assert "POST" in response.headers["access-control-allow-methods"]

    async def test_its_script_must_still_send_the_key(self, web: Web) -> None:
        refused = await web.client.post("/v1/chat/completions", json=CHAT, headers={"Origin": APP})
        assert refused.status_code == 401
        assert readable_by(refused, APP)  # so that the script learns why
        headers = {"Origin": APP, "Authorization": "Bearer first"}
        assert (await web.client.post("/v1/chat/completions", json=CHAT, headers=headers)).status_code == 200

    @pytest.mark.parametrize("origin", ["https://evil.example", "null"])
    async def test_others_are_not_answered_so(self, web: Web, origin: str) -> None:
        response = await web.client.options("/v1/models", headers=PREFLIGHT | {"Origin": origin})
        assert response.status_code == 401
        assert not readable_by(response, origin)

    async def test_asking_without_a_method_is_no_preflight(self, web: Web) -> None:
        assert (await web.client.options("/v1/models", headers={"Origin": APP})).status_code == 401


@pytest.mark.parametrize("http2", [False, True])
@pytest.mark.parametrize("origin", [APP, "chrome-extension://abcd"])
async def test_every_answer_may_be_read(web: Web, http2: bool, origin: str) -> None:
    headers = {"Origin": origin}
    async with httpx.AsyncClient(base_url=web.url, http1=not http2, http2=http2, verify=False) as client:
        for stream in (False, True):
            response = await client.post("/v1/chat/completions", json=CHAT | {"stream": stream}, headers=headers)
            assert response.status_code == 200
            assert readable_by(response, origin)
            assert response.headers["vary"] == "Origin"
        assert readable_by(await client.get("/v1/models", headers=headers), origin)
        assert readable_by(await client.get("/nothing", headers=headers), origin)
        assert readable_by(await client.options("/v1/models", headers=PREFLIGHT | headers), origin)


async def test_programs_see_no_difference(web: Web) -> None:
    response = await web.client.post("/v1/chat/completions", json=CHAT)
    assert response.status_code == 200
    assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize("name", ["rebound.example:8000", "app.example.evil", "a" * 64])  # no label is that long
async def test_a_rebound_name_is_still_refused(web: Web, name: str) -> None:
    headers = {"Host": name, "Origin": f"http://{name}"}
    response = await web.client.post("/tokenize", json={"prompt": ""}, headers=headers)
    assert response.status_code == 403


async def test_sockets_of_an_allowed_origin_are_opened(web: Web) -> None:
    async with connect(web, Origin=APP) as client:
        await client.create("a")
        assert (await client.hear_all("a"))[-1]["type"] == "finished"
    with pytest.RaisesGroup(HandshakeError, flatten_subgroups=True):
        async with connect(web, Origin="https://evil.example"):
            await trio.sleep_forever()


class TestAnyOrigin:
    @pytest.fixture
    def settings(self, settings: ServeSettings) -> ServeSettings:
        return msgspec.structs.replace(settings, allow_origins=("*",))

    @pytest.mark.parametrize("origin", ["https://whoever.example", "null"])
    async def test_all_may_use_it(self, web: Web, origin: str) -> None:
        response = await web.client.post("/v1/chat/completions", json=CHAT, headers={"Origin": origin})
        assert response.status_code == 200
        assert readable_by(response, origin)
