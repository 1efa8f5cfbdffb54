"""An answer survives its socket: whatever cuts its sockets, a client that resumes reads it whole, and once."""

import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from trio_websocket import ConnectionClosed, wrap_client_stream

from triolet.protocol.errors import ApiError
from triolet.protocol.events import Token
from triolet.protocol.messages import Cancel, Credit
from triolet.protocol.reports import KeptFigures
from triolet.protocol.requests import Generate
from triolet.protocol.settings import ServeSettings
from triolet.web.generation.kept_answers import KeptAnswers
from triolet.web.generation.resumable_answer import Follower, ResumableAnswer

from .conftest import ScriptedEngine, Web, flood, logprob
from .test_websocket import CHAT, Client, connect

Frame = dict[str, Any]
LONG = 10.0  # seconds that an answer waits for its client: until the test is over
TOKENS = 60


@asynccontextmanager
async def cut(web: Web) -> AsyncGenerator[Client, None]:
    """A socket that the network ends, not the client: without a word."""
    async with await web.connect() as stream, trio.open_nursery() as nursery:
        host = web.url.removeprefix("http://")
        yield Client(await wrap_client_stream(nursery, stream, host, "/v1/stream"))
        nursery.cancel_scope.cancel()


def counting(tokens: int = TOKENS, pause: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint) -> Any:
    """A script: a token for each choice after each pause, on credit alone, as the scheduler does."""

    async def script(engine: ScriptedEngine, request: Generate) -> None:
        engine.gateway.admitted(request.id, 5)
        engine.gateway.started(request.id)
        engine.gateway.flush()
        credit = engine.settings.limits.outbox_tokens
        for number in range(tokens):
            await pause()
            for index in range(request.n):
                while not credit:
                    message = await engine.receive()
                    credit += message.tokens if isinstance(message, Credit) else 0
                credit -= 1
                scores = (logprob(f"{number} ", number),) if request.sampling.logprobs is not None else ()
                engine.token(request, f"{number} ", index, scores)
        for index in range(request.n):
            engine.finish_choice(request, index)
        engine.gateway.complete(request.id, "stop")

    return script


async def accepted(client: Client, id: str, seconds: float = LONG, **fields: object) -> Frame:
    await client.say(type="create", id=id, request=CHAT | fields | {"disconnect_policy": f"grace:{seconds}"})
    frame = await client.hear()
    assert (frame["type"], frame["id"], frame["seq"]) == ("accepted", id, 0), frame
    return frame


async def resume(client: Client, id: str, token: str, after: int) -> None:
    await client.say(type="resume", id=id, resume=token, after=after)


async def hear_failed(client: Client, id: str) -> tuple[str, str | None]:
    frame = await client.hear()
    assert (frame["type"], frame["id"]) == ("failed", id), frame
    return frame["error"]["code"], frame["error"]["param"]


def texts(frames: list[Frame]) -> dict[int, str]:
    found: dict[int, str] = {}
    for frame in frames:
        if frame["type"] == "token":
            found[frame["index"]] = found.get(frame["index"], "") + frame["text"]
    return found


async def wait_forgotten(web: Web) -> None:
    """Until nothing runs and nothing is kept."""
    await web.engine.gateway.wait_idle()
    with trio.fail_after(LONG):
        while web.engine.gateway.kept.answers:
            await trio.testing.wait_all_tasks_blocked()
    assert web.engine.gateway.kept.bytes == 0


@pytest.mark.parametrize("seed", range(6))
async def test_a_client_reads_the_whole_answer_once_whatever_cuts_its_sockets(web: Web, seed: int) -> None:
    random = Random(seed)

    async def pause() -> None:
        for _ in range(random.choice((0, 0, 1, 3, 30))):
            await trio.lowlevel.checkpoint()

    web.engine.script = counting(pause=pause)
    fields: Frame = {"n": random.choice((1, 2)), "logprobs": random.choice((False, True))}
    token, frames = "", list[Frame]()
    while not frames or frames[-1]["type"] != "finished":
        async with random.choice((connect, cut))(web) as client:
            name = f"r{random.randrange(3)}"
            if not token:
                frames.append(await accepted(client, name, **fields))
                token = frames[0]["resume"]
            else:
                await resume(client, name, token, len(frames))
            for _ in range(random.choice((0, 1, 2, 20))):
                frame = await client.hear()
                assert frame["id"] == name
                frames.append(frame)
                if frame["type"] == "finished":
                    break
    assert [frame["seq"] for frame in frames] == list(range(len(frames)))
    assert [frame["type"] for frame in frames if frame["type"] != "token"] == ["accepted", "started", "finished"]
    assert texts(frames) == {index: "".join(f"{n} " for n in range(TOKENS)) for index in range(fields["n"])}
    assert web.engine.gateway.accounts.finished == {"stop": 1}


async def test_without_a_socket_it_is_written_to_its_end_and_can_be_read_again(web: Web) -> None:
    """Far beyond the outbox: keeping its frames counts as reading."""
    go_on = trio.Event()
    web.engine.script = counting(pause=go_on.wait)
    async with connect(web) as client:
        token = (await accepted(client, "a"))["resume"]
        assert (await client.hear())["type"] == "started"
    go_on.set()
    await web.engine.gateway.wait_idle()
    for after in (2, 0, 5):
        async with connect(web) as client:
            await resume(client, "b", token, after)
            frames = [await client.hear()]
            while frames[-1]["type"] != "finished":
                frames.append(await client.hear())
            assert [frame["seq"] for frame in frames] == list(range(after, after + len(frames)))
            await client.create("b")  # the name is free as soon as the end is known
            assert (await client.hear())["type"] == "started"
    async with connect(web) as client:  # who has all frames waits for none
        await resume(client, "b", token, frames[-1]["seq"] + 1)
        assert await hear_failed(client, "b") == ("invalid_value", "after")
    assert web.engine.gateway.accounts.finished["stop"] == 1
    assert web.engine.gateway.accounts.kept_answers == {"resumed": 3, "refused": 1}


async def test_a_queued_request_waits_for_its_client_too(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script = scripts.wait
    async with connect(web) as client:
        token = (await accepted(client, "a"))["resume"]
    async with connect(web) as client:
        await resume(client, "a", token, 1)
        await web.engine.wait_for_requests(1)
        web.engine.gateway.started(web.engine.requests[0].id)
        web.engine.gateway.flush()
        assert (await client.hear())["type"] == "started"


async def test_the_latest_socket_takes_over(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script = scripts.flow
    async with connect(web) as first, connect(web) as second:
        token = (await accepted(first, "a"))["resume"]
        assert [(await first.hear())["type"] for _ in range(2)] == ["started", "token"]
        await resume(second, "b", token, 2)
        assert (await second.hear())["type"] == "token"
        failed = await first.hear()
        assert (failed["type"], failed["id"], failed["seq"]) == ("failed", "a", 3)
        assert failed["error"]["code"] == "resumed_elsewhere"
        await first.say(type="cancel", id="a")  # it is no longer this socket's
        await first.create("a")
        assert [(await first.hear())["type"] for _ in range(2)] == ["started", "token"]
        web.engine.token(web.engine.requests[0], "lo")
        assert ((frame := await second.hear())["id"], frame["text"], frame["seq"]) == ("b", "lo", 3)
        await second.say(type="cancel", id="b")
        finished = await second.hear()
        assert (finished["type"], finished["reason"], finished["seq"]) == ("finished", "cancelled", 4)


async def test_after_its_time_it_is_cancelled_and_forgotten(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script = scripts.flow
    async with connect(web) as client:
        token = (await accepted(client, "a", 0.01))["resume"]
        assert [(await client.hear())["type"] for _ in range(2)] == ["started", "token"]
        assert web.engine.gateway.live_requests == 1  # while a socket follows, no time runs
    await wait_forgotten(web)
    cancelled = [message.id for message in web.engine.to_scheduler() if isinstance(message, Cancel)]
    assert cancelled == [web.engine.requests[0].id]
    async with connect(web) as client:
        await resume(client, "b", token, 0)
        assert await hear_failed(client, "b") == ("not_found", "resume")


async def test_what_cannot_be_resumed(web: Web, scripts: SimpleNamespace) -> None:
    web.engine.script = scripts.flow
    async with connect(web) as client:
        token = (await accepted(client, "a"))["resume"]
        assert [(await client.hear())["type"] for _ in range(2)] == ["started", "token"]
        id = web.engine.requests[0].id
        for guess in ("", "x", token[:-1], token + "x", id, f"{id}.x", f"{web.engine.gateway.new_id()}.x", "0-1.x"):
            await resume(client, "b", guess, 0)
            assert await hear_failed(client, "b") == ("not_found", "resume")
        await resume(client, "b", token, 4)
        assert await hear_failed(client, "b") == ("invalid_value", "after")
        await resume(client, "a", token, 0)
        error = await client.hear()
        assert (error["type"], error["error"]["code"], error["error"]["param"]) == ("error", "invalid_value", "id")
        for id in ("b", "c"):
            await client.create(id)
            assert [(await client.hear())["type"] for _ in range(2)] == ["started", "token"]
        await resume(client, "d", token, 0)
        assert await hear_failed(client, "d") == ("rate_limit_exceeded", None)
        web.engine.token(web.engine.requests[0], "lo")  # none of this touched the answer
        assert ((frame := await client.hear())["id"], frame["text"], frame["seq"]) == ("a", "lo", 3)


@pytest.mark.parametrize("policy", ["grace:300.5", "grace:1e300"])
async def test_a_server_has_a_longest_time(web: Web, policy: str) -> None:
    async with connect(web) as client:
        await client.say(type="create", id="a", request=CHAT | {"disconnect_policy": policy})
        assert await hear_failed(client, "a") == ("invalid_value", "disconnect_policy")
    assert web.engine.gateway.kept.answers == 0


async def test_a_client_that_stops_reading_and_leaves_holds_up_nothing(web: Web) -> None:
    pieces, piece = 400, "x" * 65536  # far beyond what the kernel takes for one connection

    web.engine.script = flood(pieces, piece)
    host = web.url.removeprefix("http://")
    async with await web.connect() as stream, trio.open_nursery() as nursery:
        socket = await wrap_client_stream(nursery, stream, host, "/v1/stream", message_queue_size=1)
        await socket.send_message(
            json.dumps({"type": "create", "id": "a", "request": CHAT | {"disconnect_policy": f"grace:{LONG}"}})
        )
        await web.engine.wait_for_requests(1)
        with trio.fail_after(30):
            await trio.testing.wait_all_tasks_blocked(0.02)
        assert 0 < web.engine.delivered < pieces  # a follower's pace is the answer's
        nursery.cancel_scope.cancel()
    with trio.fail_after(30):
        await web.engine.gateway.wait_idle()
    assert web.engine.delivered == pieces
    assert web.engine.gateway.accounts.finished == {"stop": 1}


async def test_a_takeover_while_the_end_is_on_its_way_makes_no_second_end(web: Web, scripts: SimpleNamespace) -> None:
    tokens = 24

    async def all_at_once(engine: ScriptedEngine, request: Generate) -> None:
        await trio.lowlevel.checkpoint()
        engine.gateway.started(request.id)
        for number in range(tokens):  # no two neighbours of one choice: a frame each
            engine.gateway.deliver(Token(id=request.id, index=number % 2, text="x" * 900_000, tokens=1))
        for index in (0, 1):
            engine.finish_choice(request, index)
        engine.gateway.complete(request.id, "stop")

    web.engine.script = all_at_once
    async with connect(web) as first, connect(web) as second:
        token = (await accepted(first, "a", n=2))["resume"]
        await web.engine.gateway.wait_idle()
        await trio.testing.wait_all_tasks_blocked(0.02)  # the kernel has taken what it takes; the rest waits
        await resume(second, "b", token, tokens + 2)
        assert (await second.hear())["type"] == "finished"
        rest = [(await first.hear())["type"] for _ in range(tokens + 2)]
        assert rest == ["started", *["token"] * tokens, "finished"]
        web.engine.script = scripts.flow
        await first.create("a")
        assert (await first.hear())["type"] == "started"


async def test_draining_ends_those_without_a_socket_and_lets_the_others_finish(
    web: Web, scripts: SimpleNamespace
) -> None:
    web.engine.script = scripts.flow
    async with connect(web) as client:
        await accepted(client, "a")
    async with connect(web) as client:
        await accepted(client, "b")
        assert [(await client.hear())["type"] for _ in range(2)] == ["started", "token"]
        web.engine.gateway.refuse_new("shutting_down", "the server is shutting down")
        assert web.engine.gateway.kept.answers == 0
        with trio.fail_after(LONG):
            while web.engine.gateway.live_requests > 1:
                await trio.testing.wait_all_tasks_blocked()
        web.engine.gateway.complete(web.engine.requests[1].id, "stop")
        assert (await client.hear())["type"] == "finished"
        with pytest.raises(ConnectionClosed):
            await client.hear()
    assert web.engine.gateway.accounts.finished == {"cancelled": 1, "stop": 1}


async def test_what_is_given_up_before_its_follower_has_begun_fails() -> None:
    request: Any = SimpleNamespace(id="r", tenant="")  # what it asks of a Generate
    answers = KeptAnswers[ResumableAnswer](10_000, KeptFigures(), Counter())
    answer = ResumableAnswer(request, LONG, LONG)
    answers.keep(answer)
    answer.append(b"{}")
    follower = Follower("a", lambda frame: None, lambda: None, 0)
    answer.hand_to(follower)
    answers.discard(answer)
    with trio.fail_after(LONG), pytest.raises(ApiError) as failed:
        await answer.follow(follower)
    assert failed.value.code == "not_found"


async def test_what_is_given_up_while_its_follower_catches_up_leaves_no_gap() -> None:
    """The follower's socket takes more in the turn of the event loop in which the missed frames are forgotten."""
    request: Any = SimpleNamespace(id="r", tenant="")  # what it asks of a Generate
    for _ in range(20):  # trio runs two tasks of one tick in either order
        answers = KeptAnswers[ResumableAnswer](100_000, KeptFigures(), Counter())
        answer, sent, posted = ResumableAnswer(request, LONG, LONG), trio.Event(), list[bytes]()
        answers.keep(answer)
        for _ in range(100):
            answers.append(answer, b"{}")

        def post(frame: bytes, sent: trio.Event = sent, posted: list[bytes] = posted) -> trio.Event:
            posted.append(frame)
            return sent

        follower = Follower("a", post, lambda: None, 0)
        answer.hand_to(follower)
        with pytest.RaisesGroup(ApiError):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(answer.follow, follower)
                await trio.testing.wait_all_tasks_blocked()
                sent.set()
                answers.discard(answer)
                for _ in range(5):
                    answer._pass_on(b"a later frame")
                    await trio.lowlevel.checkpoint()
        assert b"a later frame" not in posted


class TestWithLittleMemory:
    @pytest.fixture
    def settings(self, settings: ServeSettings) -> ServeSettings:
        limits = msgspec.structs.replace(settings.limits, resume_memory=10_000)
        return msgspec.structs.replace(settings, limits=limits)

    async def test_what_is_given_up_goes_on_where_it_is_read(self, web: Web) -> None:
        web.engine.script = counting(200)
        async with connect(web) as client:
            token = (await accepted(client, "a"))["resume"]
            frames = [await client.hear()]
            while frames[-1]["type"] != "finished":
                frames.append(await client.hear())
            assert texts(frames) == {0: "".join(f"{n} " for n in range(200))}
            await resume(client, "b", token, 0)
            assert await hear_failed(client, "b") == ("not_found", "resume")
        await wait_forgotten(web)
        assert web.engine.gateway.accounts.kept_answers == {"given_up": 1, "refused": 1}

    async def test_and_ends_where_nobody_reads_it(self, web: Web) -> None:
        go_on = trio.Event()
        web.engine.script = counting(200, go_on.wait)
        async with connect(web) as client:
            await accepted(client, "a")
        go_on.set()
        await wait_forgotten(web)
        assert web.engine.gateway.accounts.finished == {"cancelled": 1}


class TestWithKeys:
    @pytest.fixture
    def settings(self, settings: ServeSettings) -> ServeSettings:
        return msgspec.structs.replace(settings, api_keys=("first", "second"))

    async def test_only_the_same_key_resumes(self, web: Web, scripts: SimpleNamespace) -> None:
        web.engine.script = scripts.flow
        async with connect(web, authorization="Bearer first") as client:
            token = (await accepted(client, "a"))["resume"]
        async with connect(web, authorization="Bearer second") as client:
            await resume(client, "b", token, 0)
            assert await hear_failed(client, "b") == ("not_found", "resume")
        async with connect(web) as client:
            await client.say(type="auth", api_key="first")
            await resume(client, "b", token, 1)
            assert [(await client.hear())["type"] for _ in range(2)] == ["started", "token"]
