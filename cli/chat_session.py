"""A chat in the terminal, over a server's WebSocket `/v1/stream`: reads lines, shows answers as their frames come.

Commands: /reset forgets the conversation, /quit leaves. Ctrl-C cancels the running answer; at the prompt it leaves.
The text of a stopped answer stays in the conversation.
"""

import os
import signal
import stat
import sys
import urllib.error
import urllib.request
from functools import partial
from typing import Any, Final, assert_never

import click
import msgspec
import trio
from trio_websocket import ConnectionClosed, HandshakeError, WebSocketConnection, open_websocket_url

from ..protocol.openai_responses import ModelList
from ..protocol.stream_frames import (
    CancelFrame,
    ClientFrame,
    Create,
    ErrorFrame,
    FailedFrame,
    FinishedFrame,
    StartedFrame,
    ToClient,
    TokenFrame,
)

HTTP_SECONDS: Final = 10.0  # for the list of models; a running server answers it at once
_READ: Final = 64 * 1024

_decode: Final = msgspec.json.Decoder[ToClient](ToClient).decode


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for every request of a conversation."""

    api_key: str | None = None
    system: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None


class TerminalLines:
    """Reads lines from a file descriptor of its own: a terminal, a pipe or a file.

    It uses no thread, so that Ctrl-C can end a read. Line editing is left to the terminal.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = b""
        # A regular file is always readable, and epoll does not accept it.
        self._waits = not stat.S_ISREG(os.fstat(descriptor).st_mode)

    async def read(self) -> str | None:
        """The next line without its line end, or None at the end of the input."""
        while b"\n" not in self._buffer:
            if self._waits:
                await trio.lowlevel.wait_readable(self._descriptor)
            else:
                await trio.lowlevel.checkpoint()
            data = os.read(self._descriptor, _READ)
            if not data:
                rest, self._buffer = self._buffer, b""
                return rest.decode(errors="replace") if rest else None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode(errors="replace").rstrip("\r")


class ChatSession:
    """The turns so far, the socket, and what the user is doing."""

    def __init__(self, socket: WebSocketConnection, model: str, options: ChatOptions) -> None:
        self._socket = socket
        self._model = model
        self._options = options
        self._lines = TerminalLines(sys.stdin.fileno())
        self._messages: list[dict[str, str]] = []
        self._asked = 0
        self._answering: str | None = None
        self.reset()

    def reset(self) -> None:
        system = self._options.system
        self._messages = [{"role": "system", "content": system}] if system else []

    async def converse(self) -> None:
        """Questions and answers until the input ends or is /quit."""
        while True:
            click.echo(click.style("you › ", fg="cyan", bold=True), nl=False)
            line = await self._lines.read()
            if line is None or line.strip() == "/quit":
                return
            if line.strip() == "/reset":
                self.reset()
                click.echo(click.style("The conversation begins anew.", dim=True))
            elif line.strip().startswith("/"):
                click.echo(click.style("Commands: /reset, /quit", dim=True))
            elif line.strip():
                await self._ask(line)

    async def interrupt(self) -> bool:
        """Ctrl-C: stop the running answer. False if there is none, so that the caller leaves."""
        if self._answering is None:
            return False
        await self._send(CancelFrame(id=self._answering))
        return True

    async def _ask(self, question: str) -> None:
        self._messages.append({"role": "user", "content": question})
        self._asked += 1
        self._answering = f"chat-{self._asked}"
        request: dict[str, Any] = {"model": self._model, "messages": self._messages}  # Any: a JSON body
        if self._options.temperature is not None:
            request["temperature"] = self._options.temperature
        if self._options.max_tokens is not None:
            request["max_tokens"] = self._options.max_tokens
        await self._send(Create(id=self._answering, request=msgspec.Raw(msgspec.json.encode(request))))
        try:
            answer = await self._show_answer()
        finally:
            self._answering = None
        if answer is None:
            self._messages.pop()  # an unanswered question would give two user turns in a row
        else:
            self._messages.append({"role": "assistant", "content": answer})

    async def _show_answer(self) -> str | None:
        click.echo(click.style("      ", fg="green"), nl=False)
        parts: list[str] = []
        started = trio.current_time()
        first: float | None = None
        while True:
            frame = _decode(await self._socket.get_message())
            if not isinstance(frame, ErrorFrame) and frame.id != self._answering:
                continue  # the end of a stopped answer
            match frame:
                case StartedFrame():
                    pass
                case TokenFrame(text=text):
                    first = first or trio.current_time()
                    parts.append(text)
                    click.echo(_indented(harmless(text)), nl=False)
                case FinishedFrame():
                    click.echo()
                    _show_statistics(frame, (first or started) - started, trio.current_time() - started)
                    return "".join(parts)
                case FailedFrame(error=error) | ErrorFrame(error=error):
                    click.echo()
                    click.secho(f"{error.message} ({error.code})", fg="red", err=True)
                    return None
                case _:
                    assert_never(frame)

    async def _send(self, frame: ClientFrame) -> None:
        await self._socket.send_message(msgspec.json.encode(frame).decode())


def _show_statistics(frame: FinishedFrame, first: float, total: float) -> None:
    tokens = frame.usage.completion_tokens
    rate = f", {(tokens - 1) / (total - first):.0f} tokens/s" if tokens > 1 and total > first else ""
    end = "" if frame.reason == "stop" else f", ended by {frame.reason}"
    click.echo(click.style(f"      {tokens} tokens, first after {first * 1000:.0f} ms{rate}{end}", dim=True))


def harmless(text: str) -> str:
    """The text without control characters: a model's text must not control the terminal."""
    return "".join(character for character in text if character in "\n\t" or character.isprintable())


def _indented(text: str) -> str:
    return text.replace("\n", "\n      ")


def _first_model(url: str, headers: dict[str, str]) -> str:
    """The name of the server's model: blocking, for a thread."""
    request = urllib.request.Request(f"{url}/v1/models", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=HTTP_SECONDS) as response:
            return msgspec.json.decode(response.read(), type=ModelList).data[0].id
    except urllib.error.HTTPError as error:
        if error.code == 401:
            raise click.ClickException(f"{url} asks for a key: add --api-key KEY") from error
        raise click.ClickException(f"{url} answered {error.code} {error.reason}") from error
    except (OSError, ValueError, LookupError, msgspec.MsgspecError) as error:
        raise click.ClickException(f"no Triolet server at {url}: {error}") from error


async def chat_with(url: str, options: ChatOptions) -> None:
    """Connect to the server at `url` and talk until the user leaves."""
    headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
    model = await trio.to_thread.run_sync(partial(_first_model, url, headers))
    address = "ws" + url.removeprefix("http") + "/v1/stream"
    header_bytes = [(name.encode(), value.encode()) for name, value in headers.items()]
    try:
        async with open_websocket_url(address, extra_headers=header_bytes) as socket:
            session = ChatSession(socket, model, options)
            click.echo(click.style(f"{model} at {url}. /reset begins anew, /quit leaves, Ctrl-C stops.", dim=True))
            with trio.open_signal_receiver(signal.SIGINT) as interrupts:
                async with trio.open_nursery() as nursery:

                    async def watch_interrupts() -> None:
                        async for _ in interrupts:
                            if not await session.interrupt():
                                nursery.cancel_scope.cancel()

                    nursery.start_soon(watch_interrupts)
                    await session.converse()
                    nursery.cancel_scope.cancel()
            click.echo()
    except* (ConnectionClosed, HandshakeError) as group:
        closed = group.exceptions[0]
    else:
        return
    raise click.ClickException(f"the connection to {url} ended: {closed}")
