"""Stored responses over HTTP: when they are stored, and what may be done with them."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from msgspec import structs

from triolet.protocol.requests import ChatPrompt
from triolet.protocol.settings import ServeSettings
from triolet.web.responses.store import ResponseStore

from .conftest import Web

PATH = "/v1/responses"
BODY: dict[str, Any] = {"input": "Hi"}  # Any: JSON
TEXT = "Hello, wörld!"


@pytest.fixture
def settings(settings: ServeSettings, tmp_path: Path) -> ServeSettings:
    return structs.replace(settings, data=str(tmp_path / "data"), drain_timeout=0.0)


def streamed(text: str) -> dict[str, Any]:  # Any: JSON
    """The response of the last event."""
    response: dict[str, Any] = json.loads(text.removesuffix("\n\n").rpartition("\ndata: ")[2])["response"]
    return response


@pytest.mark.parametrize("way", [{}, {"TE": "trailers"}])  # straight to the handler, and through Quart
async def test_a_response_is_stored_before_its_end_is_seen(web: Web, way: dict[str, str]) -> None:
    whole = (await web.client.post(PATH, json=BODY, headers=way)).json()
    last = streamed((await web.client.post(PATH, json=BODY | {"stream": True}, headers=way)).text)
    for response in (whole, last):
        assert response["store"]
        assert (await web.client.get(f"{PATH}/{response['id']}", headers=way)).json() == response


async def test_a_conversation_goes_on(web: Web) -> None:
    first = (await web.client.post(PATH, json=BODY | {"instructions": "Be brief."})).json()
    second = BODY | {"input": "And?", "previous_response_id": first["id"]}
    answer = (await web.client.post(PATH, json=second)).json()
    assert answer["previous_response_id"] == first["id"]
    (prompt,) = web.engine.requests[-1].prompts
    assert isinstance(prompt, ChatPrompt)
    assert [(turn.role, turn.content) for turn in prompt.messages] == [
        ("user", "Hi"),
        ("assistant", TEXT),
        ("user", "And?"),
    ]


async def test_the_items_of_an_input(web: Web) -> None:
    items = [{"role": "user", "content": word} for word in ("one", "two", "three")]
    id = (await web.client.post(PATH, json={"input": items})).json()["id"]
    listed = (await web.client.get(f"{PATH}/{id}/input_items")).json()
    assert [item["content"][0]["text"] for item in listed["data"]] == ["three", "two", "one"]
    assert (listed["first_id"], listed["has_more"]) == (listed["data"][0]["id"], False)
    page = (await web.client.get(f"{PATH}/{id}/input_items?order=asc&limit=1&after={listed['last_id']}")).json()
    assert [item["content"][0]["text"] for item in page["data"]] == ["two"]
    assert page["has_more"]
    for query in ("limit=0", "limit=101", "limit=00000000101", "limit=x", "order=up", "after=x", "x=1"):
        answer = await web.client.get(f"{PATH}/{id}/input_items?{query}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, query.partition("=")[0])


async def test_items_with_the_same_id_are_on_a_page_each(web: Web) -> None:
    items = [{"role": "user", "content": word, "id": "msg_same"} for word in ("one", "two", "three")]
    id = (await web.client.post(PATH, json={"input": items})).json()["id"]
    path = f"{PATH}/{id}/input_items?order=asc&limit=1"
    first = (await web.client.get(path)).json()
    second = (await web.client.get(f"{path}&after={first['last_id']}")).json()
    third = (await web.client.get(f"{path}&after={second['last_id']}")).json()
    assert [page["data"][0]["content"][0]["text"] for page in (first, second, third)] == ["one", "two", "three"]
    assert (first["last_id"], third["has_more"]) == ("msg_same", False)


async def test_a_deleted_response_is_gone(web: Web) -> None:
    id = (await web.client.post(PATH, json=BODY)).json()["id"]
    assert (await web.client.delete(f"{PATH}/{id}")).json() == {"id": id, "object": "response", "deleted": True}
    for answer in (
        await web.client.get(f"{PATH}/{id}"),
        await web.client.delete(f"{PATH}/{id}"),
        await web.client.get(f"{PATH}/{id}/input_items"),
        await web.client.post(PATH, json=BODY | {"previous_response_id": id}),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_what_is_not_to_be_stored_is_not(web: Web, settings: ServeSettings) -> None:
    answer = (await web.client.post(PATH, json=BODY | {"store": False})).json()
    assert not answer["store"]
    assert (await web.client.get(f"{PATH}/{answer['id']}")).status_code == 404
    assert settings.data is not None
    assert not await trio.Path(settings.data).exists()  # asking made nothing either


async def test_a_failed_stream_is_stored_as_it_ended(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script = scripts.break_down
    last = streamed((await web.client.post(PATH, json=BODY | {"stream": True})).text)
    assert (await web.client.get(f"{PATH}/{last['id']}")).json()["status"] == "failed" == last["status"]


async def test_a_stored_response_is_not_streamed_again(web: Web) -> None:
    id = (await web.client.post(PATH, json=BODY)).json()["id"]
    answer = await web.client.get(f"{PATH}/{id}?stream=true")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream")
    assert (await web.client.get(f"{PATH}/{id}?include[]=reasoning.encrypted_content")).status_code == 200


async def test_reading_waits_for_no_writer(web: Web, settings: ServeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triolet.actors.database.BUSY_SECONDS", 0)
    id = (await web.client.post(PATH, json=BODY)).json()["id"]
    with closing(sqlite3.connect(f"{settings.data}/responses.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert (await web.client.get(f"{PATH}/{id}")).status_code == 200
        assert (await web.client.get(f"{PATH}/{id}/input_items")).status_code == 200
        answer = await web.client.post(PATH, json=BODY | {"previous_response_id": id, "store": False})
        assert answer.status_code == 200, answer.text


async def test_a_disk_that_fails_costs_no_answer(
    web: Web, settings: ServeSettings, caplog: pytest.LogCaptureFixture
) -> None:
    assert settings.data is not None
    await trio.Path(settings.data).write_text("a file where the folder should be")
    answer = await web.client.post(PATH, json=BODY)
    assert (answer.status_code, answer.json()["status"]) == (200, "completed")
    assert "could not be stored" in caplog.text


class TestWithoutAFolder:
    @pytest.fixture
    def settings(self, settings: ServeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServeSettings:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        return structs.replace(settings, data=None)

    async def test_a_response_is_stored_on_request_alone(self, web: Web, tmp_path: Path) -> None:
        assert not (await web.client.post(PATH, json=BODY)).json()["store"]
        assert not (tmp_path / "state").exists()
        answer = (await web.client.post(PATH, json=BODY | {"store": True})).json()
        assert (await web.client.get(f"{PATH}/{answer['id']}")).json() == answer


class TestWithoutRoom:
    @pytest.fixture
    def settings(self, settings: ServeSettings) -> ServeSettings:
        return structs.replace(settings, limits=structs.replace(settings.limits, response_storage=0))

    async def test_storing_is_refused_by_name(self, web: Web) -> None:
        assert not (await web.client.post(PATH, json=BODY)).json()["store"]
        answer = await web.client.post(PATH, json=BODY | {"store": True})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "store")


async def ended(web: Web, id: str) -> dict[str, Any]:  # Any: JSON
    """The stored response, once it has ended."""
    while True:
        response: dict[str, Any] = (await web.client.get(f"{PATH}/{id}")).json()
        if response["status"] not in ("queued", "in_progress"):
            return response
        await trio.lowlevel.checkpoint()


BACKGROUND = BODY | {"background": True}


async def test_a_response_is_made_without_its_client(web: Web) -> None:
    queued = (await web.client.post(PATH, json=BACKGROUND)).json()
    assert (queued["status"], queued["background"], queued["output"]) == ("queued", True, [])
    response = await ended(web, queued["id"])
    assert response["status"] == "completed"
    assert response["output"][0]["content"][0]["text"] == TEXT
    went_on = await web.client.post(PATH, json=BODY | {"previous_response_id": queued["id"]})
    assert went_on.status_code == 200


async def test_a_response_in_the_background_is_cancelled(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script = scripts.flow
    id = (await web.client.post(PATH, json=BACKGROUND)).json()["id"]
    while (await web.client.get(f"{PATH}/{id}")).json()["status"] == "queued":
        await trio.lowlevel.checkpoint()
    again = await web.client.post(PATH, json=BODY | {"previous_response_id": id})
    assert (again.status_code, again.json()["error"]["param"]) == (409, "previous_response_id")
    for _ in range(2):
        answer = await web.client.post(f"{PATH}/{id}/cancel")
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    assert web.engine.gateway.live_requests == 0


async def test_a_response_that_is_deleted_ends(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script = scripts.flow
    id = (await web.client.post(PATH, json=BACKGROUND)).json()["id"]
    assert (await web.client.delete(f"{PATH}/{id}")).status_code == 200
    await web.engine.gateway.wait_idle()
    assert (await web.client.get(f"{PATH}/{id}")).status_code == 404


async def test_a_failure_in_the_background(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script = scripts.refuse
    response = await ended(web, (await web.client.post(PATH, json=BACKGROUND)).json()["id"])
    assert (response["status"], response["error"]["code"]) == ("failed", "invalid_prompt")


async def test_only_what_is_in_the_background_is_cancelled(web: Web) -> None:
    id = (await web.client.post(PATH, json=BODY)).json()["id"]
    assert (await web.client.post(f"{PATH}/{id}/cancel")).status_code == 400
    assert (await web.client.post(f"{PATH}/resp_1/cancel")).status_code == 404


@pytest.mark.parametrize(("fields", "param"), [({"store": False}, "store"), ({"stream": True}, "stream")])
async def test_what_the_background_does_not_go_with(web: Web, fields: dict[str, bool], param: str) -> None:
    answer = await web.client.post(PATH, json=BACKGROUND | fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_an_explanation_of_the_background_is_refused_with_the_place_to_ask(web: Web) -> None:
    answer = await web.client.post(PATH, json=BACKGROUND, headers={"X-Triolet-Explain": "1"})
    assert answer.status_code == 400
    assert "/v1/requests/ID" in answer.json()["error"]["message"]
    assert not web.engine.requests


async def test_a_server_that_stops_stores_what_it_cut(
    web: Web, scripts: SimpleNamespace, settings: ServeSettings
) -> None:
    web.engine.script = scripts.flow
    id = (await web.client.post(PATH, json=BACKGROUND)).json()["id"]
    store = ResponseStore(settings)
    while json.loads(await store.get(id, ""))["status"] == "queued":
        await trio.lowlevel.checkpoint()
    web.stop.set()
    await web.engine.gateway.wait_idle()
    while (response := json.loads(await store.get(id, "")))["status"] == "in_progress":
        await trio.lowlevel.checkpoint()
    assert (response["status"], response["output"][0]["content"][0]["text"]) == ("failed", "Hel")
