"""The client's side of a chat: the server's model, the length of a prompt in tokens, one answer as it comes.

Each answer has a WebSocket `/v1/stream` of its own. So a server that was started again in the meantime, or a network
that was away, costs at most one answer and never the conversation.
"""

import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, Final, NamedTuple, assert_never

import click
import msgspec
import trio
from trio_websocket import ConnectionClosed, HandshakeError, WebSocketConnection, open_websocket_url

from ..protocol.errors import ErrorBody
from ..protocol.openai_responses import ModelCard, ModelList, Tokenization
from ..protocol.stream_frames import (
    AcceptedFrame,
    CancelFrame,
    ClientFrame,
    Create,
    ErrorFrame,
    ExplanationFrame,
    FailedFrame,
    FinishedFrame,
    StartedFrame,
    StatusFrame,
    ToClient,
    TokenFrame,
)

HTTP_SECONDS: Final = 10.0  # for the model's card and a prompt's length; a running server answers at once
NAME: Final = "chat"  # of the one request on a socket

_decode: Final = msgspec.json.Decoder[ToClient](ToClient).decode


class AnswerError(Exception):
    """The server refused or the connection ended. The message is for the user."""


class Answer(NamedTuple):
    """How an answer ended, with the times that the user saw."""

    reason: str
    prompt_tokens: int
    tokens: int
    first_seconds: float
    total_seconds: float

    @property
    def tokens_per_second(self) -> float | None:
        """After the first token; None for answers too short to tell."""
        after_first = self.total_seconds - self.first_seconds
        return (self.tokens - 1) / after_first if self.tokens > 1 and after_first > 0 else None


class ChatClient:
    """A server, by its URL and the user's key for it."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def model(self) -> ModelCard:
        """The server's model. Raises click.ClickException, since without it there is nothing to talk to."""
        try:
            return msgspec.json.decode(await self._http("/v1/models"), type=ModelList).data[0]
        except urllib.error.HTTPError as error:
            reason = _reason(error)
            if error.code == 401 and not self._headers:
                reason = "add --api-key KEY, or @FILE: this server asks for a key"
            raise click.ClickException(f"{self._url}: {reason}") from error
        except (OSError, ValueError, LookupError, msgspec.MsgspecError) as error:
            raise click.ClickException(f"no Triolet server at {self._url}: {error}") from error

    async def count_tokens(self, request: dict[str, Any]) -> int:
        """The tokens of the prompt that the chat template makes. Raises AnswerError."""
        fields = ("model", "messages", "chat_template_kwargs")
        body = {name: request[name] for name in fields if name in request}
        try:
            data = await self._http("/tokenize", msgspec.json.encode(body))
            return msgspec.json.decode(data, type=Tokenization).count
        except urllib.error.HTTPError as error:
            raise AnswerError(_reason(error)) from error
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            raise AnswerError(f"the server at {self._url} cannot be reached: {error}") from error

    async def answer(
        self,
        request: dict[str, Any],
        *,
        show: Callable[[str], object],
        note: Callable[[str], object],
        stop: trio.Event,
    ) -> Answer:
        """Calls `show` with each piece of the answer, until it ends or, soon after `stop`, is stopped.

        `note` gets news of a server that is not ready. Raises AnswerError.
        """
        began = trio.current_time()
        address = "ws" + self._url.removeprefix("http") + "/v1/stream"
        headers = [(name.encode(), value.encode()) for name, value in self._headers.items()]
        answer: Answer | None = None
        refusal: object = None
        try:
            async with open_websocket_url(address, extra_headers=headers) as socket:
                try:
                    async with trio.open_nursery() as nursery:
                        await _send(socket, Create(id=NAME, request=msgspec.Raw(msgspec.json.encode(request))))
                        nursery.start_soon(_cancel_after, stop, socket)
                        answer = await _follow(socket, began, show, note)
                        nursery.cancel_scope.cancel()
                except* ConnectionClosed as group:
                    refusal = f"the connection to {self._url} ended: {group.exceptions[0]}"
                except* AnswerError as group:
                    refusal = group.exceptions[0]
        except HandshakeError as error:
            refusal = f"no connection to {self._url}: {error.__cause__ or str(error) or type(error).__name__}"
        if answer is None:
            raise AnswerError(refusal)
        return answer

    async def _http(self, path: str, body: bytes | None = None) -> bytes:
        """The answer to a GET, or to a POST of JSON. Raises what urlopen raises."""
        headers = {**self._headers, "Content-Type": "application/json"} if body else self._headers
        request = urllib.request.Request(self._url + path, data=body, headers=headers)

        def fetch() -> bytes:
            with urllib.request.urlopen(request, timeout=HTTP_SECONDS) as response:
                data: bytes = response.read()
                return data

        return await trio.to_thread.run_sync(fetch, abandon_on_cancel=True)


async def _cancel_after(stop: trio.Event, socket: WebSocketConnection) -> None:
    await stop.wait()
    await _send(socket, CancelFrame(id=NAME))


async def _send(socket: WebSocketConnection, frame: ClientFrame) -> None:
    await socket.send_message(msgspec.json.encode(frame).decode())


async def _follow(
    socket: WebSocketConnection, began: float, show: Callable[[str], object], note: Callable[[str], object]
) -> Answer:
    first: float | None = None
    thinks = False
    while True:
        match _decode(await socket.get_message()):
            case StartedFrame() | AcceptedFrame() | ExplanationFrame():
                pass
            case StatusFrame(ready=ready, reason=reason):
                if not ready:
                    note(reason)
            case TokenFrame(kind=kind, text=text):
                first = first or trio.current_time()
                if text and thinks != (kind == "reasoning"):  # thoughts stand between tags
                    show("\n</think>\n\n" if thinks else "<think>\n")
                    thinks = not thinks
                show(text)
            case FinishedFrame(reason=reason, usage=usage):
                now = trio.current_time()
                return Answer(reason, usage.prompt_tokens, usage.completion_tokens, (first or now) - began, now - began)
            case FailedFrame(error=error) | ErrorFrame(error=error):
                raise AnswerError(f"{error.message} ({error.code})")
            case other:
                assert_never(other)


def _reason(error: urllib.error.HTTPError) -> str:
    """The server's own words, if it sent any."""
    try:
        with error:
            detail = msgspec.json.decode(error.read(), type=ErrorBody).error
    except (OSError, msgspec.MsgspecError):
        return f"the server answered {error.code} {error.reason}"
    return f"{detail.message} ({detail.code})"
