"""A transport: chat and text completions over server-sent events, from any OpenAI-compatible server.

A chunk with text is a piece. The clock is read once per `recv`, so pieces that arrive together share one time.
"""

import msgspec
import trio
from msgspec import UNSET

from ..client.body import BadBody, EventStream
from ..client.chunk import PATHS, AnyChunk, AnyUsage, decode_chunk, refusal_text
from ..client.client import HttpClient, Response
from ..client.ending import Fault, outcome_of_status
from .exchange import LoadExchange, LoadRequest
from .settings import Api


class OpenAiTransport:
    def __init__(self, client: HttpClient, api: Api) -> None:
        self._client = client
        self._path = PATHS[api]

    async def perform(self, ask: LoadRequest, exchange: LoadExchange) -> None:
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


async def _follow(response: Response, ask: LoadRequest, exchange: LoadExchange) -> None:
    """Read to the end, or until the client has enough. A slow client sleeps after each piece."""
    events, arrivals = EventStream(), exchange.arrivals
    complete = False
    while data := await response.read():
        now, before = trio.current_time(), len(arrivals)
        try:
            for event in events.feed(data):
                if event == b"[DONE]":
                    complete = True
                else:
                    _note(decode_chunk(event), now, ask, exchange)
        except BadBody as error:
            raise Fault("malformed", str(error)) from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Fault("malformed", f"an event: {error}") from error
        if ask.cancel_after is not None and len(arrivals) >= ask.cancel_after:
            raise Fault("cancelled", "")  # leaving closes the connection
        if ask.pieces_per_second is not None:
            await trio.sleep((len(arrivals) - before) / ask.pieces_per_second)
    if not (complete or exchange.finish):
        raise Fault("unterminated", "the stream ended without finish_reason or [DONE]")


def _note(chunk: AnyChunk, now: float, ask: LoadRequest, exchange: LoadExchange) -> None:
    if (refusal := chunk.refusal()) is not None:
        raise Fault("stream_error", refusal)
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
        _note_usage(chunk.usage, exchange)


def _note_usage(usage: AnyUsage, exchange: LoadExchange) -> None:
    exchange.prompt_tokens = usage.prompt_tokens
    exchange.output_tokens = usage.completion_tokens
    details = usage.prompt_tokens_details
    exchange.cached_tokens = details.cached_tokens if details else None
