"""Everything but generation: small routes, errors in the OpenAI shape everywhere, keys, origins, the page's files."""

import gzip
import math
import re
from collections.abc import AsyncGenerator

import httpx
import msgspec
import pytest
import trio

from triolet.protocol.reports import Health
from triolet.protocol.settings import ServeSettings
from triolet.web import errors, wrong_keys
from triolet.web.routes.page_files import read_page

from .conftest import Web

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
JSON = {"Content-Type": "application/json"}


def error(response: httpx.Response) -> tuple[int, str]:
    """Status and code; asserts the shape."""
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    return response.status_code, response.json()["error"]["code"]


async def test_models(web: Web) -> None:
    card = {"id": "tiny", "object": "model", "created": 1_700_000_000, "owned_by": "triolet", "max_model_len": 128}
    card |= {"root": "tiny", "parent": None}
    assert (await web.client.get("/v1/models")).json() == {"object": "list", "data": [card]}
    assert (await web.client.get("/v1/models/tiny")).json() == card
    assert error(await web.client.get("/v1/models/other/one")) == (404, "model_not_found")


async def test_tokenize_and_back(web: Web) -> None:
    response = await web.client.post("/tokenize", json={"prompt": "ab"})
    assert response.json() == {"count": 2, "max_model_len": 128, "tokens": [97, 98]}
    assert (await web.client.post("/tokenize", json=CHAT)).json()["count"] == 1
    assert (await web.client.get("/tokenizer_info")).json()["eos_token"] == "</s>"
    assert (await web.client.post("/detokenize", json={"tokens": [97, 98]})).json() == {"prompt": "ab"}
    assert error(await web.client.post("/detokenize", json={"tokens": [100]})) == (400, "invalid_token_id")
    assert error(await web.client.post("/tokenize", json={})) == (400, "invalid_value")
    assert error(await web.client.post("/tokenize", json=CHAT | {"prompt": ""})) == (400, "invalid_value")


async def test_health_tells_the_reason(web: Web) -> None:
    for path in ("/health", "/health/ready", "/health/live"):
        assert (await web.client.get(path)).status_code == 200
    web.engine.state = Health(ready=False, status="stuck", reason="no step for 3 s")
    for path in ("/health", "/health/ready"):
        response = await web.client.get(path)
        assert error(response) == (503, "engine_unavailable")
        assert "no step for 3 s" in response.json()["error"]["message"]
        assert "retry-after" in response.headers
    assert (await web.client.get("/health/live")).status_code == 200


async def test_what_operators_read(web: Web) -> None:
    assert (await web.client.get("/metrics")).status_code == 200
    assert (await web.client.get("/internal/ledger")).json()["requests"] == 0
    assert set((await web.client.get("/version")).json()) == {"version", "components"}


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/nothing", (404, "not_found")),
        ("GET", "/V1/models", (404, "not_found")),
        ("GET", "/v1/models/", (404, "not_found")),
        ("GET", "/%ff%00%0d%0aX", (404, "not_found")),
        ("GET", "/v1/chat/completions", (405, "method_not_allowed")),
        ("DELETE", "/v1/models", (405, "method_not_allowed")),
        ("POST", "/v1/moderations", (404, "unsupported_endpoint")),
        ("GET", "/v1/stream", (426, "upgrade_required")),
        ("GET", "/static/none.js", (404, "not_found")),
    ],
)
async def test_errors_of_the_framework_have_our_shape(
    web: Web, method: str, path: str, expected: tuple[int, str]
) -> None:
    response = await web.client.request(method, path)
    assert error(response) == expected
    assert expected[0] != 405 or response.headers["allow"]


async def test_a_wrong_path_or_method_is_told_the_right_one(web: Web) -> None:
    wrong = await web.client.post("/chat/completions", json=CHAT)
    assert (
        wrong.json()["error"]["message"]
        == "There is nothing at '/chat/completions'. Did you mean /v1/chat/completions?"
    )
    wrong = await web.client.get("/v1/chat/completions")
    assert wrong.json()["error"]["message"] == "GET is not allowed at this path; use POST."


@pytest.mark.parametrize("path", ["//v1/models", "///v1/models", "//", "//static/chat.css", "/v1//models"])
async def test_slashes_are_not_merged(web: Web, path: str) -> None:
    assert error(await web.client.get(web.url + path)) == (404, "not_found")  # the client merges relative paths itself


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=UTF-8", 200),
        ("application/json; charset=utf-16", 415),
        ("text/plain", 415),
        ("multipart/form-data; boundary=x", 415),
        ("", 415),
    ],
)
async def test_only_json_is_read(web: Web, content_type: str, status: int) -> None:
    body = msgspec.json.encode(CHAT)
    response = await web.client.post("/v1/chat/completions", content=body, headers={"Content-Type": content_type})
    assert response.status_code == status
    assert status == 200 or error(response) == (415, "unsupported_media_type")


async def test_compressed_bodies_are_not_inflated(web: Web) -> None:
    headers = JSON | {"Content-Encoding": "gzip"}
    response = await web.client.post("/v1/chat/completions", content=gzip.compress(b"{}"), headers=headers)
    assert error(response) == (415, "unsupported_encoding")


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_refused(web: Web, chunked: bool) -> None:
    size = 64 * 1024 + 1

    async def parts() -> AsyncGenerator[bytes]:
        yield b" " * size

    content = parts() if chunked else b" " * size
    assert error(await web.client.post("/v1/completions", content=content, headers=JSON)) == (413, "content_too_large")


async def test_a_bug_is_a_500_without_details(
    web: Web, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken() -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(web.engine, "report", broken)
    response = await web.client.get("/internal/ledger")
    assert error(response) == (500, "internal_error")
    assert "secret" not in response.text
    assert "ZeroDivisionError" in caplog.text


async def test_requests_refused_at_the_edge_are_counted_by_code(web: Web) -> None:
    for path in ("/nothing", "/nowhere"):
        await web.client.get(path)
    await web.client.post("/v1/chat/completions", json={"model": "tiny", "messages": [], "surprise": 1})
    await web.client.post("/tokenize", json={"prompt": ""}, headers={"Origin": "http://elsewhere.example"})
    text = (await web.client.get("/metrics")).text
    counted = dict(re.findall(r'triolet_http_errors_total{code="(\w+)"} (\d+)', text))
    assert counted["not_found"] == "2"
    assert counted["origin_forbidden"] == "1"
    assert sum(map(int, counted.values())) == 4


async def test_request_ids_are_echoed_or_made(web: Web) -> None:
    for method, path in (("GET", "/health"), ("POST", "/v1/chat/completions")):  # by Quart, and without it
        response = await web.client.request(method, path, json=CHAT, headers={"X-Request-Id": "mine-1"})
        assert response.headers["x-request-id"] == response.headers["request-id"] == "mine-1"
    for bad in ("a" * 129, "two words"):
        response = await web.client.get("/health", headers={"X-Request-Id": bad})
        assert response.headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize("origin", ["https://elsewhere.example", "null", "http://[", "http://127.0.0.1:1"])
async def test_pages_of_other_origins_may_not_post(web: Web, origin: str) -> None:
    response = await web.client.post("/v1/chat/completions", json=CHAT, headers={"Origin": origin})
    assert error(response) == (403, "origin_forbidden")
    assert "access-control-allow-origin" not in response.headers
    assert (await web.client.post("/tokenize", json={"prompt": ""}, headers={"Origin": web.url})).status_code == 200


NAMES = {
    "localhost": 200,
    "LOCALHOST:8000": 200,
    "chat.localhost:8000": 200,
    "127.0.0.1:8000": 200,
    "[::1]:8000": 200,
    "rebound.example:8000": 403,
    "localhost.example": 403,
    "127.0.0.1.example": 403,
    "127.0.0.1%.example": 403,
}


@pytest.mark.parametrize("path", ["/", "/v1/models", "/metrics", "/internal/ledger", "/health/live", "/nothing"])
@pytest.mark.parametrize("name", NAMES)
async def test_without_keys_it_answers_under_its_own_names_alone(web: Web, name: str, path: str) -> None:
    """A page's own name may point to this machine: its Origin and its Host agree, and it is foreign all the same."""
    for headers in ({"Host": name}, {"Host": name, "Origin": f"http://{name}"}):
        response = await web.client.get(path, headers=headers)
        if NAMES[name] == 403:
            assert error(response) == (403, "host_forbidden")
            assert "--api-key" in response.text
        else:
            assert response.status_code == (404 if path == "/nothing" else 200)
        generation = await web.client.post("/v1/chat/completions", json=CHAT, headers=headers)  # without Quart
        assert generation.status_code == NAMES[name]


class TestWithAnotherHost:
    @pytest.fixture
    def settings(self, settings: ServeSettings) -> ServeSettings:
        return msgspec.structs.replace(settings, host="Llm.Internal")

    async def test_it_answers_under_the_name_that_it_listens_on(self, web: Web) -> None:
        assert (await web.client.get("/v1/models", headers={"Host": "llm.internal:8000"})).status_code == 200
        assert (await web.client.get("/v1/models", headers={"Host": "internal"})).status_code == 403


class TestOnAUnixSocket:
    @pytest.fixture
    def settings(self, settings: ServeSettings) -> ServeSettings:
        return msgspec.structs.replace(settings, uds="/run/triolet.sock")

    async def test_any_name_will_do(self, web: Web) -> None:
        assert (await web.client.get("/v1/models", headers={"Host": "triolet"})).status_code == 200


class TestWithOperatorKeys:
    @pytest.fixture
    def settings(self, settings: ServeSettings) -> ServeSettings:
        return msgspec.structs.replace(settings, api_keys=("client",), operator_keys=("operator",))

    @pytest.mark.parametrize("path", ["/metrics", "/internal/ledger", "/internal/doctor"])
    async def test_what_shows_the_whole_server_asks_for_them(self, web: Web, path: str) -> None:
        assert (await web.client.get(path, headers={"Authorization": "Bearer operator"})).status_code == 200
        for headers in ({}, {"Authorization": "Bearer client"}):
            response = await web.client.get(path, headers=headers)
            assert error(response) == (401, "invalid_api_key")
            assert "operator key" in response.text

    @pytest.mark.parametrize("path", ["/v1/models", "/version", "/health/ready", "/nothing"])
    async def test_they_open_nothing_else(self, web: Web, path: str) -> None:
        response = await web.client.get(path, headers={"Authorization": "Bearer operator"})
        assert error(response) == (401, "invalid_api_key")


async def test_the_pages_files(web: Web) -> None:
    response = await web.client.get("/")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["content-security-policy"].startswith("default-src 'self';")
    assert response.headers["x-content-type-options"] == "nosniff"
    again = await web.client.get("/", headers={"If-None-Match": response.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert (await web.client.get("/static/chat.css")).headers["content-type"] == "text/css; charset=utf-8"
    for path in (
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static//etc/passwd",
        "/static/",
        "/static/../../LICENSE",
    ):
        assert (await web.client.get(path)).status_code == 404


# An address that begins at the server's root, in markup, styles or scripts.
FROM_ROOT = re.compile(r"""(?:href|src|action)="/|url\(["']?/|(?:fetch|import|URL|WebSocket)\(["'`]/|["'`]/static/""")


@pytest.mark.parametrize("text", ['<a href="/">', "url(/a.svg)", 'fetch("/v1/models")', "`/static/${name}`"])
def test_an_address_from_the_root_is_recognized(text: str) -> None:
    assert FROM_ROOT.search(text)


def test_the_pages_work_under_any_path() -> None:
    texts = {name: file.data for name, file in read_page().items() if name.endswith((".html", ".css", ".js", ".svg"))}
    found = {name: FROM_ROOT.findall(text.decode()) for name, text in texts.items()}
    assert not {name: addresses for name, addresses in found.items() if addresses}


class TestWithKeys:
    @pytest.fixture
    def settings(self, settings: ServeSettings) -> ServeSettings:
        return msgspec.structs.replace(settings, api_keys=("first", "secönd"))

    async def test_any_name_will_do_where_a_key_is_asked_for(self, web: Web) -> None:
        headers = {"Host": "llm.example", "Origin": "http://llm.example", "Authorization": "Bearer first"}
        assert (await web.client.post("/tokenize", json={"prompt": ""}, headers=headers)).status_code == 200

    @pytest.mark.parametrize("path", ["/", "/docs", "/static/chat.css", "/health/live"])
    async def test_the_page_and_liveness_are_open(self, web: Web, path: str) -> None:
        assert (await web.client.get(path)).status_code == 200

    @pytest.mark.parametrize(
        "path",
        ["/v1/models", "/V1/models", "//v1/models", "//", "/v1%2fmodels", "/health", "/health/ready", "/metrics",
         "/version", "/openapi.json", "/internal/ledger", "/internal/doctor", "/nothing", "/v1/chat/completions",
         "/v1/models?api_key=first"],
    )  # fmt: skip
    async def test_everything_else_needs_the_key(self, web: Web, path: str) -> None:
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Basic first"},
            {"X-Original-URL": "/"},
        ):
            response = await web.client.get(web.url + path, headers=headers)
            assert error(response) == (401, "invalid_api_key")
            assert response.headers["www-authenticate"] == "Bearer"

    async def test_wrong_keys_wait_and_right_ones_do_not(self, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(errors, "WRONG_KEY_SECONDS", math.inf)
        answered: list[str] = []

        async def ask(method: str, path: str, key: str) -> None:
            await web.client.request(method, path, json=CHAT, headers={"Authorization": f"Bearer {key}"})
            answered.append(f"{path} {key}")

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                for path in ("/v1/models", "/v1/chat/completions"):
                    nursery.start_soon(ask, "POST" if "chat" in path else "GET", path, "wrong")
                while web.engine.gateway.accounts.http_errors["invalid_api_key"] < 2:
                    await trio.lowlevel.checkpoint()
                await ask("POST", "/v1/chat/completions", "first")
                await ask("GET", "/v1/models", "first")
                nursery.cancel_scope.cancel()
        assert answered == ["/v1/chat/completions first", "/v1/models first"]

    async def test_many_wrong_keys_are_refused_and_a_right_one_never(
        self, web: Web, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(errors, "WRONG_KEY_SECONDS", 0.0)
        wrong = {"Authorization": "Bearer wrong"}
        for _ in range(wrong_keys.MOST // 2):  # on both ways through the server
            for answer in (
                await web.client.get("/v1/models", headers=wrong),
                await web.client.post("/v1/chat/completions", json=CHAT, headers=wrong),
            ):
                assert error(answer) == (401, "invalid_api_key")
        for answer in (
            await web.client.get("/v1/models", headers=wrong),
            await web.client.post("/v1/chat/completions", json=CHAT, headers=wrong),
        ):
            assert error(answer) == (429, "too_many_wrong_keys")
            assert 1 <= int(answer.headers["Retry-After"]) <= 6
        assert error(await web.client.get("/v1/models")) == (401, "invalid_api_key")  # none is no guess
        right = {"Authorization": "Bearer first"}
        assert (await web.client.get("/v1/models", headers=right)).status_code == 200
        assert (await web.client.post("/v1/chat/completions", json=CHAT, headers=right)).status_code == 200

    async def test_each_key_is_a_tenant(self, web: Web) -> None:
        for key in ("first", "secönd"):
            headers = {b"Authorization": b"bearer " + key.encode()}
            assert (await web.client.post("/v1/chat/completions", json=CHAT, headers=headers)).status_code == 200
        first, second = (request.tenant for request in web.engine.requests)
        assert first != second
        assert "first" not in first

    async def test_a_key_may_come_as_anthropics_clients_send_it(self, web: Web) -> None:
        assert (await web.client.get("/v1/models", headers={"X-API-Key": "first"})).status_code == 200
        for headers in ({"X-API-Key": "wrong"}, {"X-API-Key": ""}, {"X-API-Key": "first", "Authorization": "Bearer x"}):
            assert error(await web.client.get("/v1/models", headers=headers)) == (401, "invalid_api_key")

    async def test_a_right_key_in_the_query_is_still_refused(self, web: Web) -> None:
        headers = {"Authorization": "Bearer first"}
        assert error(await web.client.get("/v1/models?api_key=first", headers=headers)) == (401, "invalid_api_key")
        assert (await web.client.get("/v1/models", headers=headers)).status_code == 200
