"""Tool calls: whole, streamed, and the conversation that follows."""

from typing import Any, Final

from .check import CheckGroup, expect
from .expectations import CHAT, ask_for, expect_error, message, parsed, question
from .server import ExaminedServer

WEATHER: Final = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
ASKED: Final = question("What is the weather in Paris?", tools=[WEATHER], max_tokens=200)
NAMED: Final = {"type": "function", "function": {"name": "get_weather"}}


def _expect_call(call: Any) -> None:  # Any: JSON
    expect(call["type"] == "function" and call["id"], "a call lacks type or id")
    expect(call["function"]["name"] == "get_weather", f"the function is {call['function']['name']!r}")
    arguments = parsed(call["function"]["arguments"], "arguments")
    expect(isinstance(arguments.get("city"), str), f"arguments are {arguments!r}")


async def tools_are_taken(server: ExaminedServer) -> None:
    """tools with tool_choice auto: a text or valid calls"""
    reply = await ask_for(server, CHAT, ASKED)
    calls, reason = message(reply).get("tool_calls"), reply["choices"][0]["finish_reason"]
    expect((reason == "tool_calls") == bool(calls), f"finish_reason {reason!r} with the calls {calls!r:.80}")
    if calls:
        for call in calls:
            _expect_call(call)


async def required_calls(server: ExaminedServer) -> None:
    """tool_choice required: at least one valid call"""
    reply = await ask_for(server, CHAT, ASKED, tool_choice="required")
    calls = message(reply).get("tool_calls")
    expect(calls, f"no call, but {message(reply).get('content')!r:.80}")
    for call in calls:
        _expect_call(call)


async def a_named_tool_is_called(server: ExaminedServer) -> None:
    """tool_choice that names a function: a call of it"""
    reply = await ask_for(server, CHAT, ASKED, tool_choice=NAMED)
    (call,) = message(reply)["tool_calls"]
    _expect_call(call)


async def none_calls_nothing(server: ExaminedServer) -> None:
    """tool_choice none: no call"""
    reply = await ask_for(server, CHAT, ASKED, tool_choice="none")
    expect(not message(reply).get("tool_calls"), "there is a call")


async def deltas_make_a_call(server: ExaminedServer) -> None:
    """Streamed pieces of a call make valid JSON"""
    reply = await ask_for(server, CHAT, ASKED, tool_choice=NAMED, stream=True)
    pieces = [
        piece
        for chunk in reply.chunks
        for choice in chunk["choices"]
        for piece in choice["delta"].get("tool_calls") or ()
    ]
    expect(pieces, "no piece of a call is streamed")
    first = pieces[0]
    expect(
        first["index"] == 0 and first.get("id") and first["function"].get("name"), "the first lacks index, id or name"
    )
    arguments = "".join(piece["function"].get("arguments") or "" for piece in pieces if piece["index"] == 0)
    _expect_call({**first, "type": "function", "function": {**first["function"], "arguments": arguments}})


async def results_are_taken(server: ExaminedServer) -> None:
    """A call and its result may be in the conversation"""
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    turns = [
        *ASKED["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "18 degrees and sunny"},
    ]
    await ask_for(server, CHAT, ASKED, messages=turns)


async def an_unknown_tool_is_refused(server: ExaminedServer) -> None:
    """tool_choice that names an unknown function: 400"""
    await ask_for(server, CHAT, ASKED)
    choice = {"type": "function", "function": {"name": "no_such_tool"}}
    expect_error(await server.post(CHAT, ASKED, tool_choice=choice), 400, 422)


GROUP: Final = CheckGroup(
    "tools",
    (
        tools_are_taken,
        required_calls,
        a_named_tool_is_called,
        none_calls_nothing,
        deltas_make_a_call,
        results_are_taken,
        an_unknown_tool_is_refused,
    ),
)
