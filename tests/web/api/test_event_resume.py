"""A stream of server-sent events survives its connection: wherever it is cut, its client reads every byte, and once."""

import json
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from openai._streaming import SSEDecoder

from triolet.protocol.messages import Cancel
from triolet.protocol.settings import ServeSettings
from triolet.web.generation.event_answer import EventFeed
from triolet.web.generation.resumable_answer import ResumableAnswer

from .conftest import Web, flood
from .event_reader import KEEP_ALIVE, Reading
from .test_resume import LONG, counting, wait_forgotten
from .test_websocket import connect

Body = dict[str, Any]
CHAT: Body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "disconnect_policy": "detach"}
DIALECTS: dict[str, Body] = {
    "/v1/chat/completions": CHAT | {"n": 2, "logprobs": True, "stream_options": {"include_usage": True}},
    "/v1/completions": {"prompt": "Hi", "stream": True, "disconnect_policy": "detach"},
    "/v1/messages": CHAT | {"max_tokens": 9},
}
PATH = "/v1/chat/completions"
TOKENS = 6


@asynccontextmanager
async def reading(
    web: Web, body: Body = CHAT, path: str = PATH, headers: dict[str, str] | None = None
) -> AsyncGenerator[Reading]:
    async with await web.connect() as stream:
        found = Reading(stream)
        await found.ask("POST", path, headers or {}, json.dumps(body).encode())
        yield found


@asynccontextmanager
async def resumed(web: Web, token: str, last: bytes | str | None = None, **headers: str) -> AsyncGenerator[Reading]:
    """`last`: the event that the client has, or what the query says of it."""
    if isinstance(last, bytes):
        headers["Last-Event-ID"] = id_of(last)
    async with await web.connect() as stream:
        found = Reading(stream)
        query = f"?after={last}" if isinstance(last, str) else ""
        await found.ask("GET", events_of(token) + query, headers)
        yield found


def events_of(token: str) -> str:
    return f"/v1/requests/{token}/events"


def id_of(event: bytes) -> str:
    found = re.match(rb"id: (\S+)\n", event)
    assert found is not None, event
    return found[1].decode()


async def refused(web: Web, token: str, **headers: str) -> tuple[int, str | None]:
    response = await web.client.get(events_of(token), headers=headers)
    return response.status_code, response.json()["error"]["param"]


@pytest.mark.parametrize("path", DIALECTS)
async def test_wherever_it_is_cut_every_byte_comes_once(web: Web, path: str) -> None:
    web.engine.script = counting(TOKENS)
    cut, count = 1, 2
    while cut < count:
        async with reading(web, DIALECTS[path], path) as first:
            before = await first.events(cut)
        async with resumed(web, first.token, before[-1]) as second:
            joined = before + await second.events()
        async with resumed(web, first.token) as whole:
            undisturbed = await whole.events()
        assert joined == undisturbed
        assert [id_of(event) for event in joined] == [f"{first.token}:{number}" for number in range(len(joined))]
        cut, count = cut + 1, len(joined)
    assert count > TOKENS
    assert web.engine.gateway.accounts.finished == {"stop": count - 1}  # one end for each request


async def test_its_events_are_those_of_a_stream_that_cannot_be_resumed(web: Web) -> None:
    async with web.client.stream("POST", PATH, json=CHAT | {"disconnect_policy": "cancel"}) as response:
        plain = await response.aread()
        assert "x-triolet-resume" not in response.headers
    async with reading(web) as stream:
        numbered = b"".join(await stream.events())

    def without_names(data: bytes) -> bytes:
        return re.sub(rb'"id":"[^"]*"|"created":\d+|id: \S+\n', b"", data)

    assert without_names(numbered) == without_names(plain)


async def test_detached_it_is_written_to_its_end_without_a_reader(web: Web) -> None:
    """Far beyond the outbox, and kept after its end: for a reader by number, and by the whole id."""
    go_on = trio.Event()
    web.engine.script = counting(60, go_on.wait)
    async with reading(web) as first:
        start = await first.event()
    go_on.set()
    await web.engine.gateway.wait_idle()
    async with resumed(web, first.token, "0") as second:
        rest = await second.events()
    async with resumed(web, first.token, id_of(start)) as third:
        assert await third.events() == rest
    assert "".join(json.loads(event.split(b"data: ")[1])["choices"][0]["delta"]["content"] for event in rest[:-2]) == (
        "".join(f"{number} " for number in range(60))
    )
    assert web.engine.gateway.accounts.finished == {"stop": 1}
    assert await refused(web, first.token, **{"Last-Event-ID": id_of(rest[-1])}) == (400, "after")


async def test_grace_ends_it_when_its_time_is_over(
    web: Web, mock_clock: trio.testing.MockClock, scripts: SimpleNamespace
) -> None:
    web.engine.script = scripts.flow

    async def pass_seconds(seconds: float) -> None:
        await trio.testing.wait_all_tasks_blocked(0.02)  # the server has seen who left
        mock_clock.jump(seconds)
        await trio.testing.wait_all_tasks_blocked(0.02)

    async with reading(web, CHAT | {"disconnect_policy": "grace:0.5"}) as first:
        start = await first.event()
        await pass_seconds(100)  # while it is read, no time runs
    for _ in range(2):
        await pass_seconds(0.4)
        assert web.engine.gateway.live_requests == 1
        async with resumed(web, first.token, start) as again:
            assert b'"content":"Hel"' in await again.event()
            await pass_seconds(100)
    await pass_seconds(0.6)
    await wait_forgotten(web)
    assert web.engine.gateway.accounts.finished == {"cancelled": 1}
    cancelled = [message.id for message in web.engine.to_scheduler() if isinstance(message, Cancel)]
    assert cancelled == [web.engine.requests[0].id]
    assert await refused(web, first.token) == (404, "id")


async def test_what_was_detached_is_kept_for_the_longest_time_after_its_end(
    web: Web, mock_clock: trio.testing.MockClock, scripts: SimpleNamespace
) -> None:
    web.engine.script = scripts.flow
    async with reading(web) as first:
        await first.event()
    await trio.testing.wait_all_tasks_blocked(0.02)
    mock_clock.jump(10_000)
    await trio.testing.wait_all_tasks_blocked(0.02)
    assert web.engine.gateway.live_requests == 1
    web.engine.gateway.complete(web.engine.requests[0].id, "stop")
    for left in (1, 0):
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert web.engine.gateway.kept.answers == 1
        mock_clock.jump(web.engine.settings.limits.max_resume_seconds - left)
    await wait_forgotten(web)
    assert web.engine.gateway.accounts.finished == {"stop": 1}


async def test_the_latest_reader_takes_over(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script = scripts.flow
    async with reading(web) as first:
        start = await first.events(2)
        async with resumed(web, first.token, start[-1]) as second:
            (taken,) = await first.events()
            assert json.loads(taken.removeprefix(b"data: "))["error"]["code"] == "resumed_elsewhere"
            web.engine.token(web.engine.requests[0], "lo")
            assert b'"content":"lo"' in await second.event()
            assert (await web.client.delete(events_of(first.token))).status_code == 200
            assert (await second.events())[-1].endswith(b"data: [DONE]\n\n")
    assert web.engine.gateway.accounts.finished == {"cancelled": 1}


async def test_a_bug_in_one_readers_task_ends_that_reader_only(
    web: Web, scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise ZeroDivisionError

    web.engine.script = scripts.flow
    with monkeypatch.context() as patch:
        patch.setattr(ResumableAnswer, "_catch_up", fail)
        async with reading(web) as first:
            (event,) = await first.events()
    assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == "internal_error"
    async with resumed(web, first.token) as second:
        await second.event()
        assert (await web.client.delete(events_of(first.token))).status_code == 200
        assert (await second.events())[-1].endswith(b"data: [DONE]\n\n")


async def test_a_reader_that_stops_and_leaves_holds_up_nothing(web: Web) -> None:
    pieces, piece = 400, "x" * 65536  # far beyond what the kernel takes for one connection

    web.engine.script = flood(pieces, piece)
    body = json.dumps(CHAT).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    async with await web.connect() as stream:
        await stream.send_all(head.encode() + b"\r\n\r\n" + body)
        await web.engine.wait_for_requests(1)
        with trio.fail_after(30):
            await trio.testing.wait_all_tasks_blocked(0.02)
        assert 0 < web.engine.delivered < pieces  # its pace is the answer's
    with trio.fail_after(30):
        await web.engine.gateway.wait_idle()
    assert web.engine.delivered == pieces
    assert web.engine.gateway.accounts.finished == {"stop": 1}


async def test_a_reader_that_stops_does_not_hold_up_the_next(web: Web) -> None:
    web.engine.script = flood(200, "x" * 65536)
    async with reading(web) as first:
        with trio.fail_after(30):
            await trio.testing.wait_all_tasks_blocked(0.02)
            assert 0 < web.engine.delivered < 200
            async with resumed(web, first.token) as second:
                events = await second.events()
    assert [id_of(event) for event in events] == [f"{first.token}:{number}" for number in range(len(events))]
    assert b"".join(events).count(b"x" * 1000) >= 200 * 65
    assert web.engine.gateway.accounts.finished == {"stop": 1}


async def test_an_error_before_the_first_text_is_a_status(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script = scripts.refuse
    response = await web.client.post(PATH, json=CHAT)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert web.engine.gateway.kept.answers == 0


async def test_leaving_before_the_head_of_the_answer_cancels(web: Web, scripts: SimpleNamespace) -> None:
    """Nobody has the token."""
    web.engine.script = scripts.wait
    with trio.move_on_after(LONG):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: web.client.post(PATH, json=CHAT))
            await web.engine.wait_for_requests(1)
            nursery.cancel_scope.cancel()
        await web.engine.gateway.wait_idle()
    assert web.engine.gateway.accounts.finished == {"cancelled": 1}


async def test_a_failure_is_the_last_event_for_later_readers_too(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script = scripts.break_down
    async with reading(web) as first:
        events = await first.events()
    assert b'"code":"engine_error"' in events[-1]
    async with resumed(web, first.token, events[0]) as second:
        assert await second.events() == events[1:]


REFUSED: tuple[tuple[Body, str], ...] = (
    ({"disconnect_policy": "keep"}, "send cancel, detach or grace:SECONDS, above 0 and at most 300"),
    ({"disconnect_policy": "grace:"}, "grace:SECONDS"),
    ({"disconnect_policy": "grace:0"}, "above 0"),
    ({"disconnect_policy": "grace:-1"}, "grace:SECONDS"),
    ({"disconnect_policy": "grace:1e3"}, "grace:SECONDS"),
    ({"disconnect_policy": "grace:301"}, "at most 300"),
    ({"disconnect_policy": "detach", "stream": False, "stream_options": None}, "add stream: true"),
)


async def test_a_policy_that_cannot_be_is_refused_with_a_remedy(web: Web) -> None:
    for path, body in DIALECTS.items():
        for fields, said in REFUSED:
            given = {name: value for name, value in (body | fields).items() if value is not None}
            response = await web.client.post(path, json=given)
            assert response.status_code == 400
            assert response.json()["error"]["message"].startswith("disconnect_policy: ")
            assert said in response.json()["error"]["message"]
    assert web.engine.requests == []


async def test_what_cannot_be_resumed(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script = scripts.flow
    async with reading(web) as first:
        event = await first.event()
        request = web.engine.requests[0].id
        for guess in (request, f"chatcmpl-{request}", f"{request}.x", first.token[:-1], "0-1.x"):
            assert await refused(web, guess) == (404, "id")
        for last in ("x", "-1", "x:1", f"{first.token}:", f"{first.token}:9", f"{first.token}:{'9' * 99}"):
            assert await refused(web, first.token, **{"Last-Event-ID": last}) == (400, "after")
        async with connect(web) as client:  # its frames are not a socket's
            await client.say(type="resume", id="b", resume=first.token, after=0)
            assert (await client.hear())["error"]["code"] == "not_found"
        explained = await web.client.post(PATH, json=CHAT, headers={"X-Triolet-Explain": "1"})
        assert explained.json()["error"]["param"] == "X-Triolet-Explain"
        async with resumed(web, first.token, event):
            pass
    assert web.engine.gateway.live_requests == 1


async def test_draining_ends_those_without_a_reader_and_lets_the_others_finish(
    web: Web, scripts: SimpleNamespace
) -> None:
    web.engine.script = scripts.flow
    async with reading(web) as gone:
        await gone.event()
    async with reading(web) as stays:
        await stays.event()
        web.engine.gateway.refuse_new("shutting_down", "the server is shutting down")
        with trio.fail_after(LONG):
            while web.engine.gateway.live_requests > 1:
                await trio.testing.wait_all_tasks_blocked()
        web.engine.gateway.complete(web.engine.requests[1].id, "stop")
        assert (await stays.events())[-1].endswith(b"data: [DONE]\n\n")
    await wait_forgotten(web)
    assert web.engine.gateway.accounts.finished == {"cancelled": 1, "stop": 1}


async def test_what_still_waits_when_draining_begins_is_a_stream_like_any_other(
    web: Web, scripts: SimpleNamespace
) -> None:
    web.engine.script = scripts.wait
    bodies: list[bytes] = []

    async def ask() -> None:
        bodies.append((await web.client.post(PATH, json=CHAT)).content)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await web.engine.wait_for_requests(1)
        web.engine.gateway.refuse_new("shutting_down", "the server is shutting down")
        await scripts.answer(web.engine, web.engine.requests[0])
    assert bodies[0].endswith(b"data: [DONE]\n\n")
    assert web.engine.gateway.kept.answers == 0


class TestWithLittleMemory:
    @pytest.fixture
    def settings(self, settings: ServeSettings) -> ServeSettings:
        limits = msgspec.structs.replace(settings.limits, resume_memory=10_000)
        return msgspec.structs.replace(settings, limits=limits)

    async def test_what_is_given_up_goes_on_where_it_is_read(self, web: Web) -> None:
        web.engine.script = counting(60)
        async with reading(web) as first:
            events = await first.events()
            assert events[-1].endswith(b"data: [DONE]\n\n")
            assert [id_of(event) for event in events] == [f"{first.token}:{number}" for number in range(len(events))]
            assert await refused(web, first.token) == (404, "id")
        await wait_forgotten(web)
        assert web.engine.gateway.accounts.finished == {"stop": 1}

    async def test_and_ends_where_nobody_reads_it(self, web: Web) -> None:
        go_on = trio.Event()
        web.engine.script = counting(60, go_on.wait)
        async with reading(web) as first:
            await first.event()
        await trio.testing.wait_all_tasks_blocked(0.02)
        go_on.set()
        await wait_forgotten(web)
        assert web.engine.gateway.accounts.finished == {"cancelled": 1}
        assert web.engine.gateway.accounts.kept_answers["given_up"] == 1


class TestWithKeys:
    @pytest.fixture
    def settings(self, settings: ServeSettings) -> ServeSettings:
        return msgspec.structs.replace(settings, api_keys=("first", "second"))

    async def test_only_the_same_key_resumes(self, web: Web, scripts: SimpleNamespace) -> None:
        web.engine.script = scripts.flow
        first, second = ({"Authorization": f"Bearer {key}"} for key in ("first", "second"))
        async with reading(web, headers=first) as stream:
            token = stream.token
        assert await refused(web, token, **second) == (404, "id")
        assert (await web.client.delete(events_of(token), headers=second)).status_code == 404
        async with resumed(web, token, **first) as again:
            assert len(await again.events(2)) == 2


async def test_comments_between_numbered_events_are_no_events_for_openais_client() -> None:
    feed = EventFeed(b": keep-alive\n\n", 0, at_once=True)
    async with aclosing(feed.body()) as body:
        feed.post(b"id: t:0\ndata: 1\n\n")
        pieces = [await anext(body), await anext(body)]
        feed.post(b"id: t:1\ndata: 2\n\n")
        pieces.append(await anext(body))
    assert pieces[1] == KEEP_ALIVE
    assert [event.data for event in SSEDecoder().iter_bytes(iter(pieces))] == ["1", "2"]
