"""GET /v1/usage: whose records, summed up how, and what a disk that fails does to streams (nothing)."""

import sqlite3
import time
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import trio
from msgspec import structs

from triolet.actors.usage import table
from triolet.protocol.settings import ServeSettings

from .conftest import Web
from .test_disconnect import post, read_until

PATH = "/v1/usage"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}  # Any: JSON


@pytest.fixture
def settings(settings: ServeSettings, tmp_path: Path) -> ServeSettings:
    return structs.replace(settings, data=str(tmp_path / "data"))


async def ask(web: Web, key: str = "", **more: str) -> httpx.Response:
    """A whole answer."""
    return await web.client.post("/v1/chat/completions", json=CHAT, headers=bearer(key) | more)


async def usage(web: Web, key: str = "", **query: Any) -> dict[str, Any]:  # Any: JSON
    """Once everything that has ended is written."""
    assert web.engine.usage is not None
    ended = web.engine.gateway.accounts.finished
    with trio.fail_after(60):
        while web.engine.usage.counts["written"] < ended.total():  # noqa: ASYNC110 - a thread writes
            await trio.sleep(0.01)
    response = await web.client.get(PATH, params=query, headers=bearer(key))
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def digest(key: str) -> str:
    return sha256(key.encode()).hexdigest()


async def test_nothing_is_made_before_the_first_request_ends(web: Web, tmp_path: Path) -> None:
    empty: dict[str, Any] = {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    assert await usage(web) == await usage(web, group_by="none") == empty
    assert not (tmp_path / "data").exists()


async def test_a_record_and_its_sums(web: Web) -> None:
    before = time.time()
    answer = (await ask(web, **{"X-Request-Id": "mine"})).json()
    page = await usage(web, group_by="none")
    (record,) = page["data"]
    assert answer["id"] == f"chatcmpl-{record['id']}"
    counts = {"prompt_tokens": 5, "completion_tokens": 5, "cached_tokens": 4}
    assert before - 1 < record["arrived"] <= record["ended"] < time.time() + 1
    assert 0 <= record["queue_seconds"] <= record["first_token_seconds"] <= record["total_seconds"]
    assert (
        record.items()
        >= {
            "object": "usage.record",
            "request_id": "mine",
            "key_digest": "",
            "model": "tiny",
            "adapter": None,
            "finish_reason": "stop",
            "error": None,
        }.items()
        | counts.items()
    )
    assert (page["first_id"], page["last_id"], page["has_more"]) == (record["id"], record["id"], False)

    sums = {"object": "usage.total", "key_digest": "", "requests": 1, "errors": 0, "cancelled": 0} | counts
    day, hour = (int(record["ended"]) // period * period for period in (86400, 3600))
    none = {"start": None, "model": None, "adapter": None}
    assert (await usage(web))["data"] == [sums | none | {"start": day}]
    assert (await usage(web, group_by="hour"))["data"] == [sums | none | {"start": hour}]
    assert (await usage(web, group_by="model"))["data"] == [sums | none | {"model": "tiny"}]
    assert (await usage(web, start=int(record["ended"]) + 1))["data"] == []
    assert (await usage(web, end=int(record["arrived"])))["data"] == []


async def test_a_client_that_leaves_and_one_that_is_refused(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script = scripts.flow
    stream = await web.connect()
    await stream.send_all(post(CHAT | {"stream": True}))
    await read_until(stream, b"Hel")
    await stream.aclose()
    await web.engine.gateway.wait_idle()
    web.engine.script = scripts.refuse
    assert (await ask(web)).status_code == 400
    refused, left = (await usage(web, group_by="none"))["data"]
    assert (left["finish_reason"], left["completion_tokens"], left["error"]) == ("cancelled", 1, None)
    assert (refused["finish_reason"], refused["error"]) == ("error", "context_length_exceeded")
    (total,) = (await usage(web))["data"]
    assert (total["requests"], total["errors"], total["cancelled"], total["completion_tokens"]) == (2, 1, 1, 1)


async def test_pages_of_records(web: Web) -> None:
    for number in range(5):
        await ask(web, **{"X-Request-Id": str(number)})
    names, after = list[str](), dict[str, str]()
    for left in (3, 1, 0):
        page = await usage(web, group_by="none", limit=2, **after)
        names += [record["request_id"] for record in page["data"]]
        after = {"after": page["last_id"]}
        assert page["has_more"] == bool(left)
    assert names == ["4", "3", "2", "1", "0"]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"group_by": "week"}, "group_by"),
        ({"start": "yesterday"}, "start"),
        ({"end": "-1"}, "end"),
        ({"limit": "1001"}, "limit"),
        ({"after": "x"}, "after"),
        ({"group_by": "none", "after": "x"}, "after"),
        ({"key_digest": "x"}, "key_digest"),
        ({"tenant": "x"}, "tenant"),
    ],
)
async def test_what_it_does_not_take(web: Web, query: dict[str, str], param: str) -> None:
    await ask(web)
    await usage(web)
    response = await web.client.get(PATH, params=query)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


class TestWithKeys:
    @pytest.fixture
    def settings(self, settings: ServeSettings) -> ServeSettings:
        return structs.replace(settings, api_keys=("alice", "bob"), operator_keys=("boss",))

    async def test_a_key_sees_its_own_and_an_operator_all(self, web: Web) -> None:
        for key in ("alice", "bob", "alice"):
            await ask(web, key)
        for key, requests in (("alice", 2), ("bob", 1)):
            (total,) = (await usage(web, key))["data"]
            assert (total["key_digest"], total["requests"]) == (digest(key), requests)
            records = (await usage(web, key, group_by="none"))["data"]
            assert [record["key_digest"] for record in records] == [digest(key)] * requests
        totals = (await usage(web, "boss", group_by="model"))["data"]
        assert {total["key_digest"]: total["requests"] for total in totals} == {digest("alice"): 2, digest("bob"): 1}
        assert len((await usage(web, "boss", group_by="none"))["data"]) == 3
        (one,) = (await usage(web, "boss", key_digest=digest("bob")))["data"]
        assert one["requests"] == 1

    async def test_no_key_sees_a_record_of_another_by_its_id(self, web: Web) -> None:
        await ask(web, "alice")
        await ask(web, "bob")
        (record,) = (await usage(web, "bob", group_by="none"))["data"]
        query = {"group_by": "none", "after": record["id"]}
        assert (await web.client.get(PATH, params=query, headers=bearer("bob"))).status_code == 200
        assert (await web.client.get(PATH, params=query, headers=bearer("alice"))).status_code == 400

    @pytest.mark.parametrize("key", ["", "carol"])
    async def test_without_a_key_it_shows_nothing(self, web: Web, key: str) -> None:
        assert (await web.client.get(PATH, headers=bearer(key))).status_code == 401


class TestWithoutOperatorKeys:
    @pytest.fixture
    def settings(self, settings: ServeSettings) -> ServeSettings:
        return structs.replace(settings, api_keys=("alice", "bob"))

    async def test_no_key_sees_another(self, web: Web) -> None:
        await ask(web, "alice")
        assert (await usage(web, "bob"))["data"] == []
        response = await web.client.get(PATH, params={"key_digest": digest("alice")}, headers=bearer("bob"))
        assert response.status_code == 400


class TestWithoutRecords:
    @pytest.fixture
    def settings(self, settings: ServeSettings) -> ServeSettings:
        return structs.replace(settings, usage_days=0)

    async def test_it_says_so(self, web: Web, tmp_path: Path) -> None:
        assert (await ask(web)).status_code == 200
        response = await web.client.get(PATH)
        assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
        assert "--usage-days" in response.text
        assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("trouble", ["no folder", "no database", "no room"])
async def test_a_disk_that_fails_breaks_no_stream(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    asked = 0
    if trouble == "no folder":
        (tmp_path / "data").write_text("a file")
    elif trouble == "no database":
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "usage.sqlite").write_text("this is no database" * 1000)
    else:

        def fail(*_: object) -> int:
            raise sqlite3.OperationalError("database or disk is full")

        monkeypatch.setattr(table, "put", fail)
    assert web.engine.usage is not None
    for _ in range(3):
        answers: list[httpx.Response] = []
        for stream in (False, True):
            answers.append(await web.client.post("/v1/chat/completions", json=CHAT | {"stream": stream}))
            asked += 1
        assert [answer.status_code for answer in answers] == [200, 200]
        assert answers[1].text.endswith("data: [DONE]\n\n")
        with trio.fail_after(60):
            while not web.engine.usage._failing:  # noqa: ASYNC110 - a thread writes
                await trio.sleep(0.01)
    assert web.engine.gateway.accounts.finished == {"stop": asked}
    await web.engine.usage.end()
    assert web.engine.usage.counts == {"written": 0, "lost": asked}
