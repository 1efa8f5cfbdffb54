"""From an Anthropic body to the program's own request."""

import json
from typing import Any, Final

import pytest
from msgspec import structs

from triolet.protocol.errors import ApiError
from triolet.protocol.grammars import GrammarSource
from triolet.protocol.requests import ChatMessage, ChatPrompt, FunctionCall, FunctionTool, Generate, ToolCall, ToolUse
from triolet.web.anthropic.anthropic import read_messages, read_prompt

from ..openai.test_request import ORIGIN, SERVED, prompt_of

HELLO = {"role": "user", "content": "Hi"}


def ask(**fields: object) -> Generate:
    data = json.dumps({"messages": [HELLO], "max_tokens": 9} | fields).encode()
    return read_messages(SERVED, ORIGIN, data).request


def turns(*messages: dict[str, Any], **fields: object) -> tuple[ChatMessage, ...]:  # Any: JSON
    return prompt_of(ask(messages=messages, **fields)).messages


def said(role: str, content: str) -> ChatMessage:
    return ChatMessage(role=role, content=content)


def test_the_models_defaults_hold_where_nothing_is_said() -> None:
    request = ask()
    assert (request.max_tokens, request.sampling.temperature, request.sampling.top_k) == (9, 0.6, 20)
    request = ask(temperature=0, top_p=0.5, top_k=3, stop_sequences=["END"])
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.top_k) == (0, 0.5, 3)
    assert request.stop == ("END",)


def test_the_system_prompt_is_the_first_turn() -> None:
    blocks = [{"type": "text", "text": "Be"}, {"type": "text", "text": "kind", "cache_control": {"type": "ephemeral"}}]
    assert turns(HELLO, system="Be kind") == (said("system", "Be kind"), said("user", "Hi"))
    assert turns(HELLO, system=blocks) == (said("system", "Be\nkind"), said("user", "Hi"))
    assert turns(HELLO, system="") == (said("user", "Hi"),)


def test_turns_of_one_speaker_become_one() -> None:
    again = {"role": "user", "content": [{"type": "text", "text": "there"}]}
    answer = {"role": "assistant", "content": "Hello"}
    assert turns(HELLO, again, answer, HELLO) == (
        said("user", "Hi\nthere"),
        said("assistant", "Hello"),
        said("user", "Hi"),
    )


def test_tools_thoughts_and_results_of_earlier_turns() -> None:
    asked = {
        "role": "assistant",
        "content": [
            {"type": "redacted_thinking", "data": "c2VjcmV0"},
            {"type": "thinking", "thinking": "Hm", "signature": "x"},
            {"type": "text", "text": "I look"},
            {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}},
        ],
    }
    results = {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "sunny"}]},
            {"type": "tool_result", "tool_use_id": "t2", "content": "no such city", "is_error": True},
            {"type": "tool_result", "tool_use_id": "t3"},
            {"type": "text", "text": "Well?"},
        ],
    }
    assert turns(HELLO, asked, results)[1:] == (
        ChatMessage(
            role="assistant",
            content="I look",
            reasoning_content="Hm",
            tool_calls=(ToolCall(id="t1", function=FunctionCall(name="weather", arguments='{"city":"Rome"}')),),
        ),
        ChatMessage(role="tool", content="sunny", tool_call_id="t1"),
        ChatMessage(role="tool", content="Error: no such city", tool_call_id="t2"),
        ChatMessage(role="tool", content="", tool_call_id="t3"),
        said("user", "Well?"),
    )


def test_the_answer_continues_a_last_turn_of_the_assistant() -> None:
    prompt = prompt_of(ask(messages=[HELLO, {"role": "assistant", "content": "Hel"}]))
    assert (prompt.continue_final_message, prompt.add_generation_prompt) == (True, False)
    assert not prompt_of(ask()).continue_final_message


@pytest.mark.parametrize(
    "content", ["", [], [{"type": "text", "text": ""}], [{"type": "redacted_thinking", "data": "c2VjcmV0"}]]
)
def test_an_empty_last_turn_of_the_assistant_is_left_out(content: object) -> None:
    assert prompt_of(ask(messages=[HELLO, {"role": "assistant", "content": content}])) == prompt_of(ask())


@pytest.mark.parametrize(
    ("thinking", "switch", "shown", "budget"),
    [
        (None, False, False, 0),
        ({"type": "disabled"}, False, False, 0),
        ({"type": "enabled", "budget_tokens": 1024}, True, True, 1024),
        ({"type": "adaptive"}, True, True, None),
        ({"type": "adaptive", "display": "omitted"}, True, False, None),
    ],
)
def test_thinking_is_off_unless_it_is_asked_for(
    thinking: dict[str, Any] | None, switch: bool, shown: bool, budget: int | None
) -> None:
    request = ask(thinking=thinking)
    assert prompt_of(request).template_variables["enable_thinking"] is switch
    assert (request.include_reasoning, request.reasoning_budget) == (shown, budget)


def test_effort_is_for_the_template() -> None:
    assert prompt_of(ask(output_config={"effort": "low"})).template_variables["reasoning_effort"] == "low"


WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "of a city",
    "input_schema": {"type": "object", "properties": {}},
}


@pytest.mark.parametrize(
    ("choice", "use"),
    [
        (None, ToolUse()),
        ({"type": "auto"}, ToolUse()),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolUse(parallel=False)),
        ({"type": "any"}, ToolUse(choice="required")),
        ({"type": "any", "disable_parallel_tool_use": True}, ToolUse(choice="required", parallel=False)),
        ({"type": "tool", "name": "weather"}, ToolUse(choice="required", name="weather", parallel=False)),
    ],
)
def test_tools_are_those_of_a_chat(choice: dict[str, Any] | None, use: ToolUse) -> None:
    request = ask(tools=[WEATHER], tool_choice=choice)
    tool = FunctionTool(name="weather", description="of a city", parameters=WEATHER["input_schema"])
    assert prompt_of(request).tools == (tool,)
    assert request.tool_use == structs.replace(use, schema_field="input_schema")


def test_no_tools_are_told_of_with_the_choice_none() -> None:
    request = ask(tools=[WEATHER], tool_choice={"type": "none"})
    assert (prompt_of(request).tools, request.tool_use) == ((), None)


FORMAT: dict[str, Any] = {"type": "json_schema", "schema": {"type": "object"}}


def test_the_answer_may_have_to_fit_a_schema() -> None:
    assert ask(output_config={"format": FORMAT}).grammar_source == GrammarSource(
        kind="json_schema", text='{"type": "object"}', param="output_config.format.schema"
    )
    assert ask().grammar_source is None


def test_notes_change_nothing() -> None:
    notes = {name: {"a": 1} for name in ("metadata", "cache_control", "service_tier", "context_management", "speed")}
    assert prompt_of(ask(**notes)) == prompt_of(ask())


def test_a_prompt_to_count_is_the_prompt_of_a_message() -> None:
    body = {"system": "Be kind", "messages": [HELLO], "thinking": {"type": "adaptive"}}
    counted = read_prompt(SERVED, ORIGIN, json.dumps(body).encode())
    assert isinstance(counted, ChatPrompt)
    assert counted == prompt_of(ask(**body))


Refused = tuple[dict[str, object], str, str]


def block(**fields: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": [fields]}]


REFUSED: Final[list[Refused]] = [
    ({"max_tokens": None}, "invalid_type", "max_tokens"),
    ({"max_tokens": 0}, "integer_out_of_range", "max_tokens"),
    ({"messages": []}, "invalid_messages", "messages"),
    ({"messages": [HELLO, {"role": "user", "content": []}]}, "invalid_messages", "messages[1].content"),
    ({"messages": [{"role": "assistant", "content": []}]}, "invalid_messages", "messages"),
    (
        {"messages": [HELLO, {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm"}]}]},
        "invalid_messages",
        "messages",
    ),
    ({"messages": block(type="image", source={})}, "unsupported_parameter", "messages[0].content[0].type"),
    ({"messages": block(type="document", source={})}, "unsupported_parameter", "messages[0].content[0].type"),
    (
        {"messages": block(type="tool_use", id="a", name="b", input={})},
        "invalid_value",
        "messages[0].content[0].type",
    ),
    ({"messages": [{"role": "tool", "content": "a"}]}, "invalid_value", "messages[0].role"),
    ({"stop_sequences": ["a"] * 5}, "invalid_stop", "stop_sequences"),
    ({"stop_sequences": ["a", ""]}, "invalid_stop", "stop_sequences[1]"),
    ({"temperature": 3}, "invalid_value", "temperature"),
    ({"model": "other"}, "model_not_found", "model"),
    ({"top_a": 1}, "unknown_parameter", "top_a"),
    ({"mcp_servers": [{"url": "x"}]}, "unsupported_parameter", "mcp_servers"),
    ({"container": "x"}, "unsupported_parameter", "container"),
    ({"tools": [WEATHER | {"input_schema": {"type": "array"}}]}, "invalid_value", "tools[0].input_schema.type"),
    ({"tools": [WEATHER, WEATHER]}, "invalid_value", "tools[1].name"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "invalid_value", "tools[0].type"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "invalid_value", "tool_choice.name"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "clock"}}, "invalid_value", "tool_choice.name"),
    ({"tool_choice": {"type": "any"}}, "invalid_value", "tool_choice"),
    ({"output_config": {"format": FORMAT | {"schema": []}}}, "invalid_type", "output_config.format.schema"),
    ({"thinking": {"type": "enabled"}}, "invalid_value", "thinking.budget_tokens"),
    ({"thinking": {"type": "disabled", "budget_tokens": 9}}, "invalid_value", "thinking.budget_tokens"),
    (
        {
            "messages": [
                HELLO,
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]},
            ]
        },
        "invalid_messages",
        "messages",
    ),
]


@pytest.mark.parametrize(("fields", "code", "param"), REFUSED)
def test_what_is_refused_names_its_field(fields: dict[str, object], code: str, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        ask(**fields)
    assert (refused.value.code, refused.value.param) == (code, param)
    assert param.split("[", 1)[0] in refused.value.message
