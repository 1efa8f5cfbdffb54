"""The other APIs that clients speak: OpenAI's Responses, Anthropic's Messages, Ollama's chat; batches."""

from typing import Any, Final

from .check import CheckGroup, NotOffered, expect
from .expectations import endpoint, expect_error
from .server import NO_SUCH_THING, ExaminedServer

RESPONSES: Final = "/v1/responses"
MESSAGES: Final = "/v1/messages"
INPUT: Final = {"input": "Count from 1 to 5.", "max_output_tokens": 32, "temperature": 0}
TURN: Final = {"messages": [{"role": "user", "content": "Count from 1 to 5."}], "max_tokens": 32, "temperature": 0}
ENDS: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})


def _text_of(output: Any) -> str:  # Any: JSON
    return "".join(part["text"] for item in output if item["type"] == "message" for part in item["content"])


async def a_response(server: ExaminedServer) -> None:
    """Responses: output, status and usage"""
    reply = await endpoint(server, RESPONSES, INPUT)
    expect(reply["object"] == "response", f"object is {reply['object']!r}")
    expect(reply["status"] in ("completed", "incomplete"), f"status is {reply['status']!r}")
    expect(_text_of(reply["output"]), "no text")
    usage = reply["usage"]
    expect(usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"], "usage does not add up")


async def a_response_streams(server: ExaminedServer) -> None:
    """Responses, streamed: numbered events, one end, the same text"""
    whole = _text_of((await endpoint(server, RESPONSES, INPUT))["output"])
    events = (await endpoint(server, RESPONSES, INPUT, stream=True)).chunks
    kinds = [event["type"] for event in events]
    expect(kinds[0] == "response.created", f"the first is {kinds[0]}")
    expect([kind in ENDS for kind in kinds].count(True) == 1 and kinds[-1] in ENDS, f"they end {kinds[-2:]}")
    numbers = [event["sequence_number"] for event in events]
    expect(numbers == sorted(set(numbers)), "the sequence numbers do not ascend")
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    expect(text == whole, f"{text!r} instead of {whole!r}")


async def a_bad_response_is_refused(server: ExaminedServer) -> None:
    """Responses, a bad request: 400"""
    await endpoint(server, RESPONSES, INPUT)
    expect_error(await server.post(RESPONSES, INPUT, temperature="hot"), 400, 422)


async def a_message(server: ExaminedServer) -> None:
    """Messages: content, stop_reason and usage"""
    reply = await endpoint(server, MESSAGES, TURN)
    expect(reply["type"] == "message" and reply["role"] == "assistant", "type or role is wrong")
    expect(reply["content"][0]["type"] == "text" and reply["content"][0]["text"], "no text")
    expect(reply["stop_reason"] in ("end_turn", "max_tokens", "stop_sequence"), f"{reply['stop_reason']!r}")
    expect(reply["usage"]["input_tokens"] > 0 and reply["usage"]["output_tokens"] > 0, "usage is empty")


async def a_message_streams(server: ExaminedServer) -> None:
    """Messages, streamed: the events in their order, the same text"""
    whole = (await endpoint(server, MESSAGES, TURN))["content"][0]["text"]
    events = [
        event for event in (await endpoint(server, MESSAGES, TURN, stream=True)).chunks if event["type"] != "ping"
    ]
    kinds = [event["type"] for event in events]
    expect(kinds[:2] == ["message_start", "content_block_start"], f"they begin {kinds[:2]}")
    expect(kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"], f"they end {kinds[-3:]}")
    text = "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")
    expect(text == whole, f"{text!r} instead of {whole!r}")


async def a_bad_message_is_refused(server: ExaminedServer) -> None:
    """Messages, a bad request: 400 of Anthropic's shape"""
    await endpoint(server, MESSAGES, TURN)
    reply = await server.post(MESSAGES, TURN, max_tokens=-1)
    expect(reply.status == 400, f"status {reply.status}")
    expect(reply["type"] == "error" and reply["error"]["type"] == "invalid_request_error", f"it is {reply.body[:80]!r}")


async def tokens_are_counted(server: ExaminedServer) -> None:
    """Messages: count_tokens agrees with usage"""
    count = (await endpoint(server, f"{MESSAGES}/count_tokens", {"messages": TURN["messages"]}))["input_tokens"]
    used = (await endpoint(server, MESSAGES, TURN))["usage"]
    total = used["input_tokens"] + (used.get("cache_read_input_tokens") or 0)
    expect(count == total, f"{count}, but usage says {total}")


async def an_ollama_chat(server: ExaminedServer) -> None:
    """Ollama's /api/chat: lines of JSON, the last is done"""
    body = {"messages": TURN["messages"], "options": {"num_predict": 32, "temperature": 0}}
    *pieces, last = (await endpoint(server, "/api/chat", body)).lines
    expect(last["done"] is True and not any(piece["done"] for piece in pieces), "`done` is not last")
    expect("".join(piece["message"]["content"] for piece in (*pieces, last)), "no text")
    expect(last["eval_count"] > 0, "eval_count is missing")


async def ollama_lists_models(server: ExaminedServer) -> None:
    """Ollama's /api/tags lists the models"""
    reply = await server.get("/api/tags")
    if reply.status in NO_SUCH_THING:
        raise NotOffered(reply.refusal)
    expect(reply["models"] and reply["models"][0]["name"], "no model has a name")


async def batches_are_listed(server: ExaminedServer) -> None:
    """/v1/batches and /v1/files are lists"""
    for path in ("/v1/batches", "/v1/files"):
        reply = await server.get(path)
        if reply.status in NO_SUCH_THING:
            raise NotOffered(reply.refusal)
        expect(reply["object"] == "list" and isinstance(reply["data"], list), f"{path} is no list")


GROUP: Final = CheckGroup(
    "other APIs",
    (
        a_response,
        a_response_streams,
        a_bad_response_is_refused,
        a_message,
        a_message_streams,
        a_bad_message_is_refused,
        tokens_are_counted,
        an_ollama_chat,
        ollama_lists_models,
        batches_are_listed,
    ),
)
