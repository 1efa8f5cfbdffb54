"""A server that is away, breaks off or never answers costs one answer and not the conversation."""

import gc
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import click
import msgspec
import pytest
import trio
from trio_websocket import WebSocketConnection, WebSocketRequest, serve_websocket

from triolet.cli.chat_client import AnswerError, ChatClient
from triolet.cli.chat_conversation import ChatConversation
from triolet.cli.chat_display import PlainDisplay
from triolet.cli.chat_session import ChatSession
from triolet.protocol.errors import ErrorBody, ErrorDetail
from triolet.protocol.openai_responses import ModelCard
from triolet.protocol.stream_frames import CancelFrame, Create, FromClient, TokenFrame

REQUEST: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}  # Any: a JSON body


@asynccontextmanager
async def _server(converse: Callable[[WebSocketConnection], Awaitable[None]]) -> AsyncGenerator[str]:
    """A WebSocket server whose side of each connection is `converse`; its URL."""

    async def accept(request: WebSocketRequest) -> None:
        await converse(await request.accept())

    async with trio.open_nursery() as nursery:
        server = await nursery.start(serve_websocket, accept, "127.0.0.1", 0, None)
        yield f"http://127.0.0.1:{server.port}"
        nursery.cancel_scope.cancel()


# trio-websocket leaves a socket that the server closed first to the garbage collector, which warns of it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_an_answer_that_breaks_off_is_an_error() -> None:
    async def break_off(socket: WebSocketConnection) -> None:
        await socket.get_message()
        token = TokenFrame(id="chat", seq=1, index=0, kind="text", text="Hel", tokens=1)
        await socket.send_message(msgspec.json.encode(token).decode())
        await socket.aclose(1011, "a reason")

    shown: list[str] = []
    async with _server(break_off) as url:
        client = ChatClient(url, None)
        with pytest.raises(AnswerError, match=rf"^the connection to {url} ended: .*a reason"):
            await client.answer(REQUEST, show=shown.append, note=shown.append, stop=trio.Event())
    assert shown == ["Hel"]
    gc.collect()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_thoughts_stand_between_tags() -> None:
    async def think(socket: WebSocketConnection) -> None:
        await socket.get_message()
        for kind, text in (("reasoning", "Well"), ("reasoning", "."), ("text", ""), ("text", "Hello")):
            token = {"type": "token", "id": "chat", "seq": 1, "index": 0, "kind": kind, "text": text, "tokens": 1}
            await socket.send_message(msgspec.json.encode(token).decode())
        await socket.aclose(1011, "a reason")

    shown: list[str] = []
    async with _server(think) as url:
        with pytest.raises(AnswerError):
            await ChatClient(url, None).answer(REQUEST, show=shown.append, note=shown.append, stop=trio.Event())
    assert "".join(shown) == "<think>\nWell.\n</think>\n\nHello"
    gc.collect()


async def _refusal(status: str, code: str, message: str, key: str | None) -> str:
    """What the user is told when the server answers every request so."""
    body = msgspec.json.encode(ErrorBody(error=ErrorDetail(message=message, type="server_error", code=code)))

    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, answer, 0)
        client = ChatClient(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}", key)
        with pytest.raises(click.ClickException) as caught:
            await client.model()
        nursery.cancel_scope.cancel()
    return caught.value.message


async def test_a_server_that_refuses_is_told_in_its_own_words() -> None:
    missing = await _refusal("401 Unauthorized", "invalid_api_key", "A key is needed.", None)
    assert missing.endswith("add --api-key KEY, or @FILE: this server asks for a key")
    assert "The key is wrong." in await _refusal("401 Unauthorized", "invalid_api_key", "The key is wrong.", "K")
    assert "is being loaded" in await _refusal("503 Busy", "model_loading", "the model is being loaded", None)


async def test_a_server_that_is_away_is_an_error() -> None:
    client = ChatClient("http://127.0.0.1:9", None)  # the discard port: nothing of ours listens there
    with pytest.raises(AnswerError, match=r"no connection to .*:9: "):
        await client.answer(REQUEST, show=print, note=print, stop=trio.Event())
    with pytest.raises(AnswerError, match="cannot be reached"):
        await client.count_tokens(REQUEST)


class _Client(ChatClient):
    """Without the HTTP half, which the server here has not."""

    async def count_tokens(self, request: dict[str, Any]) -> int:
        return 1


class _Lines:
    def __init__(self, *lines: str) -> None:
        self._lines = [*reversed(lines)]

    async def read(self, default: str = "") -> str | None:
        return self._lines.pop() if self._lines else None


async def test_a_second_interrupt_does_not_wait_for_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    asked, told_to_stop = trio.Event(), trio.Event()

    async def never_answer(socket: WebSocketConnection) -> None:
        for event, expected in ((asked, Create), (told_to_stop, CancelFrame)):
            frame = msgspec.json.decode(await socket.get_message(), type=FromClient)
            assert isinstance(frame, expected)
            event.set()
        await trio.sleep_forever()

    conversation = ChatConversation()
    async with _server(never_answer) as url, trio.open_nursery() as nursery:
        session = ChatSession(
            _Client(url, None), ModelCard(id="m", created=0, root="m", max_model_len=64), conversation, PlainDisplay()
        )
        assert not session.interrupt()
        nursery.start_soon(session.converse, _Lines("question", "/stats"))
        await asked.wait()
        assert session.interrupt()
        await told_to_stop.wait()
        assert session.interrupt()
    assert conversation.last_question == "question"  # for /retry
    said = capsys.readouterr().err
    assert "stopped\n/retry asks again" in said
    assert "turns     0" in said
