"""Tools, tool choices and the ways to switch thinking: what they mean, and what is refused with its path."""

import json

import msgspec
import pytest

from triolet.protocol.errors import ApiError
from triolet.protocol.openai_requests import ChatBody, TokenizeBody
from triolet.protocol.requests import FunctionTool, ToolUse
from triolet.web.openai.conversation import chat_prompt
from triolet.web.openai.decode import decode
from triolet.web.openai.json_depth import MAX_DEPTH
from triolet.web.openai.thinking import thinking_wish
from triolet.web.openai.tools import chat_tools

CHAT = msgspec.json.Decoder(ChatBody)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def function(name: str = "f", **fields: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, **fields}}


def named(name: str) -> dict[str, object]:
    return {"type": "function", "function": {"name": name}}


def body(**fields: object) -> ChatBody:
    return decode(json.dumps({"messages": [{"role": "user", "content": "Hi"}], **fields}).encode(), CHAT)


def nested(levels: int) -> dict[str, object]:
    schema: dict[str, object] = {}
    for _ in range(levels):
        schema = {"properties": schema}
    return schema


def test_a_function_has_what_the_client_says_of_it() -> None:
    tools, use = chat_tools(body(tools=[function(description="Of a city.", parameters=SCHEMA, strict=True)]))
    assert tools == (FunctionTool(name="f", description="Of a city.", parameters=SCHEMA, strict=True),)
    assert use == ToolUse()


@pytest.mark.parametrize(
    ("fields", "use"),
    [
        ({"tool_choice": "auto"}, ToolUse()),
        ({"tool_choice": "required"}, ToolUse(choice="required")),
        ({"tool_choice": named("g")}, ToolUse(choice="required", name="g", parallel=False)),
        ({"parallel_tool_calls": False}, ToolUse(parallel=False)),
        ({"tool_choice": None, "parallel_tool_calls": None}, ToolUse()),
    ],
)
def test_how_tools_may_be_called(fields: dict[str, object], use: ToolUse) -> None:
    assert chat_tools(body(tools=[function("f"), function("g")], **fields))[1] == use


@pytest.mark.parametrize(
    "fields",
    [{}, {"tools": []}, {"tools": None, "tool_choice": "auto"}, {"tools": [function()], "tool_choice": "none"}],
)
def test_without_tools_or_with_none_of_them_nothing_is_called(fields: dict[str, object]) -> None:
    assert chat_tools(body(**fields)) == ((), None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [function("")]}, "tools[0].function.name"),
        ({"tools": [function("a b")]}, "tools[0].function.name"),
        ({"tools": [function("x" * 129)]}, "tools[0].function.name"),
        ({"tools": [function(parameters=[1])]}, "tools[0].function.parameters"),
        ({"tools": [function(parameters={"type": "string"})]}, "tools[0].function.parameters.type"),
        ({"tools": [function(parameters={"properties": []})]}, "tools[0].function.parameters.properties"),
        ({"tools": [function(parameters=nested(MAX_DEPTH))]}, "tools[0].function.parameters"),
        ({"tools": [function(), function()]}, "tools[1].function.name"),
        ({"tools": [function(str(number)) for number in range(129)]}, "tools"),
        ({"tools": [function()], "tool_choice": named("g")}, "tool_choice.function.name"),
        ({"tools": [function()], "tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": named("g")}, "tool_choice"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_its_path(fields: dict[str, object], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat_tools(body(**fields))
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_prompt_can_be_counted_with_its_tools() -> None:
    asked = {"messages": [{"role": "user", "content": "Hi"}], "tools": [function(parameters=SCHEMA)]}
    counted = chat_prompt(decode(json.dumps(asked).encode(), msgspec.json.Decoder(TokenizeBody)))
    assert counted.tools == (FunctionTool(name="f", parameters=SCHEMA),)


ON, OFF = ({"enable_thinking": on, "thinking": on} for on in (True, False))


@pytest.mark.parametrize(
    ("fields", "variables", "budget", "include"),
    [
        ({}, {}, None, True),
        ({"enable_thinking": True}, ON, None, True),
        ({"enable_thinking": False}, OFF, 0, True),
        ({"thinking": {"type": "enabled", "budget_tokens": 64}}, ON, 64, True),
        ({"thinking": {"type": "disabled"}}, OFF, 0, True),
        ({"thinking": {"type": "adaptive"}}, {}, None, True),
        ({"thinking_token_budget": 9}, {}, 9, True),
        ({"reasoning": {"effort": "low", "max_tokens": 8}}, {"reasoning_effort": "low", **ON}, 8, True),
        ({"reasoning": {"enabled": False, "exclude": True}}, OFF, 0, False),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", **OFF}, 0, True),
        ({"include_reasoning": False}, {}, None, False),
    ],
)
def test_thinking_is_switched_and_bounded(
    fields: dict[str, object], variables: dict[str, object], budget: int | None, include: bool
) -> None:
    assert thinking_wish(body(**fields)) == (variables, budget, include)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"enable_thinking": False, "thinking": {"type": "enabled"}}, "thinking.type"),
        ({"enable_thinking": True, "reasoning_effort": "none"}, "reasoning_effort"),
        ({"thinking_token_budget": 1, "reasoning": {"max_tokens": 2}}, "reasoning.max_tokens"),
        ({"include_reasoning": True, "reasoning": {"exclude": True}}, "reasoning.exclude"),
    ],
)
def test_parameters_that_contradict_each_other_are_refused(fields: dict[str, object], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        thinking_wish(body(**fields))
    assert caught.value.param == param
