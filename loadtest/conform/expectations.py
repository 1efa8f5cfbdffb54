"""What several checks ask for, and what they expect of every answer. Sources: OpenAI's OpenAPI document and clients."""

from collections.abc import Container
from typing import Any, Final

import msgspec

from .check import Fails, NotOffered, expect
from .server import DONE, NO_SUCH_THING, REFUSED, ExaminedServer, RawReply

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
REASONS: Final = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})


def question(text: str = "Count from 1 to 20.", **fields: Any) -> dict[str, Any]:  # Any: JSON
    """A short greedy chat request."""
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 24, "temperature": 0, **fields}


async def ask(server: ExaminedServer, path: str = CHAT, **fields: Any) -> RawReply:  # Any: JSON
    """A request that every server must answer. Raises Fails."""
    body = question() if path == CHAT else {"prompt": "One, two, three,", "max_tokens": 8, "temperature": 0}
    reply = await server.post(path, body, **fields)
    expect(reply.status == 200, f"it is refused: {reply.refusal}")
    return reply


async def ask_for(
    server: ExaminedServer,
    path: str,
    body: dict[str, Any],  # Any: JSON, here and below
    refusals: Container[int] = REFUSED,
    **fields: Any,
) -> RawReply:
    """A request for something that a server need not have. Raises NotOffered."""
    reply = await server.post(path, body, **fields)
    if reply.status in refusals:
        raise NotOffered(reply.refusal)
    expect(reply.status == 200, f"it fails: {reply.refusal}")
    return reply


async def endpoint(server: ExaminedServer, path: str, body: dict[str, Any], **fields: Any) -> RawReply:  # Any: JSON
    """A plain request to an endpoint that a server need not have. Raises NotOffered."""
    return await ask_for(server, path, body, NO_SUCH_THING, **fields)


def message(reply: RawReply) -> Any:  # Any: JSON
    return reply["choices"][0]["message"]


def content(reply: RawReply) -> str:
    """The text of a chat answer. Raises Fails where there is none."""
    text = message(reply)["content"]
    expect(isinstance(text, str) and text, f"content is {text!r}: a text was expected")
    assert isinstance(text, str)
    return text


def streamed(reply: RawReply, index: int = 0) -> str:
    """The text of one choice of a streamed answer, chat or completion."""
    parts = [choice for chunk in reply.chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join((part["delta"].get("content") if "delta" in part else part["text"]) or "" for part in parts)


def expect_stream(reply: RawReply) -> None:
    expect(reply.content_type == "text/event-stream", f"Content-Type is {reply.content_type!r}")
    expect(reply.events and reply.events[-1].strip() == DONE, "the last event is not [DONE]")


def expect_error(reply: RawReply, *statuses: int) -> Any:  # Any: JSON
    """The error of OpenAI's shape. Raises Fails."""
    expect(reply.status in statuses, f"status {reply.status}, not {' or '.join(map(str, statuses))}: {reply.refusal}")
    try:
        error = reply["error"]
        missing = {"message", "type", "param", "code"} - set(error)
    except (ValueError, LookupError, TypeError, AttributeError):
        raise Fails(f"the body is no error of OpenAI's shape: {reply.body[:120]!r}") from None
    expect(not missing, f"the error lacks {', '.join(sorted(missing))}")
    expect(isinstance(error["message"], str) and error["message"], "the error has no message")
    return error


def parsed(text: str, what: str) -> dict[str, Any]:  # Any: JSON
    """Raises Fails unless it is a JSON object."""
    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        raise Fails(f"{what} is no JSON object: {text[:80]!r}") from None
    return found
