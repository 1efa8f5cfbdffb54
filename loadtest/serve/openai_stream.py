"""Chat and text completions over server-sent events, of any OpenAI-compatible server, as a load's transport.

A chunk with text is a piece; the clock is read once for everything that one `recv` brought, so pieces that came
together have one time. Unknown fields are passed over: servers add their own.
"""

from typing import Final

import msgspec
import trio
from msgspec import UNSET, Struct, UnsetType

from .exchange import Ask, Exchange, Fault
from .http_body import BadBody, EventStream
from .http_client import HttpClient, Response
from .intake import Take
from .record import Outcome
from .settings import Api

PATHS: Final[dict[Api, str]] = {"chat": "/chat/completions", "completions": "/completions"}


class _Delta(Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: msgspec.Raw | UnsetType = UNSET


class _Choice(Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _PromptDetails(Struct):
    cached_tokens: int | None = None


class Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: msgspec.Raw | UnsetType = UNSET


class _ErrorText(Struct):
    message: str = ""


class _Refusal(Struct):
    """The shapes of an error's body: OpenAI's, a flat one, and a plain string."""

    error: _ErrorText | str | None = None
    message: str = ""


_decode: Final = msgspec.json.Decoder(_Chunk).decode
_decode_refusal: Final = msgspec.json.Decoder(_Refusal).decode


class OpenAiTransport:
    def __init__(self, client: HttpClient, api: Api) -> None:
        self._client = client
        self._path = PATHS[api]

    async def perform(self, ask: Ask, exchange: Exchange) -> None:
        slow = ask.pieces_per_second is not None
        async with self._client.request("POST", self._path, ask.body, key=ask.key, slow=slow) as answer:
            response, exchange.sent, exchange.reused = answer
            exchange.head = trio.current_time()
            exchange.status = response.head.status
            await _check_head(response)
            await _follow(response, ask, exchange)

    async def close(self) -> None:
        await self._client.close()


async def _check_head(response: Response) -> None:
    status = response.head.status
    if status != 200:
        raise Fault(outcome_of_status(status), refusal_text(await response.read_all()), status)
    kind = response.head.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"text/event-stream":
        raise Fault("malformed", f"the answer is {kind.decode(errors='replace')}, not text/event-stream")


async def _follow(response: Response, ask: Ask, exchange: Exchange) -> None:
    events = EventStream()
    arrivals = exchange.arrivals
    complete = False

    def take(data: bytes) -> bool:
        """Whether the client has had what it wants."""
        nonlocal complete
        now = trio.current_time()
        try:
            for event in events.feed(data):
                if event == b"[DONE]":
                    complete = True
                else:
                    _take(_decode(event), now, ask, exchange)
        except BadBody as error:
            raise Fault("malformed", str(error)) from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Fault("malformed", f"an event: {error}") from error
        return ask.cancel_after is not None and len(arrivals) >= ask.cancel_after

    if ask.pieces_per_second is None:
        await response.follow(take)
    else:
        await _follow_slowly(response, take, arrivals, ask.pieces_per_second)
    if ask.cancel_after is not None and len(arrivals) >= ask.cancel_after:
        raise Fault("cancelled", "")  # leaving closes the connection
    if not (complete or exchange.finish):
        raise Fault("unterminated", "the stream ended without finish_reason or [DONE]")


async def _follow_slowly(response: Response, take: Take, arrivals: list[float], rate: float) -> None:
    while data := await response.read():
        before = len(arrivals)
        take(data)
        await trio.sleep((len(arrivals) - before) / rate)


def _take(chunk: _Chunk, now: float, ask: Ask, exchange: Exchange) -> None:
    if chunk.error is not UNSET and bytes(chunk.error) != b"null":
        raise Fault("stream_error", refusal_text(b'{"error":' + bytes(chunk.error) + b"}"))
    for choice in chunk.choices:
        delta = choice.delta
        text = choice.text if delta is None else delta.content
        if text or (delta and (delta.reasoning or delta.reasoning_content or delta.tool_calls is not UNSET)):
            exchange.arrivals.append(now)
            if ask.keep_text and text:
                exchange.texts.append(text)
        if choice.finish_reason is not None:
            exchange.finish = choice.finish_reason
    if chunk.usage is not None:
        take_usage(chunk.usage, exchange)


def take_usage(usage: Usage, exchange: Exchange) -> None:
    exchange.prompt_tokens = usage.prompt_tokens
    exchange.output_tokens = usage.completion_tokens
    details = usage.prompt_tokens_details
    exchange.cached_tokens = details.cached_tokens if details else None


def outcome_of_status(status: int) -> Outcome:
    if status in (429, 503):
        return "refused"
    return "client_error" if 400 <= status < 500 else "server_error"


def refusal_text(body: bytes) -> str:
    """The message of an error's body, in whatever shape it has."""
    try:
        refusal = _decode_refusal(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return body[:200].decode(errors="replace").strip()
    error = refusal.error
    return (error if isinstance(error, str) else error.message if error else refusal.message) or body[:200].decode()
