"""A body of the Responses API: what it means as a chat, and what is refused."""

import json
from typing import Any

import pytest

from triolet.protocol.errors import ApiError
from triolet.protocol.requests import ChatMessage, ChatPrompt, FunctionCall, Generate, ToolCall, ToolUse
from triolet.protocol.settings import LimitSettings
from triolet.web.generation.asked import Origin, ServedModel
from triolet.web.responses.body import read_body
from triolet.web.responses.request import generate_from_response, items_of, restated

from ..api.conftest import READY

SERVED = ServedModel("tiny", READY, LimitSettings())
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": 1}'}
OUTPUT_TEXT: dict[str, Any] = {"type": "output_text", "text": "Hi", "annotations": [], "logprobs": None}


def generate(body: dict[str, Any]) -> Generate:  # Any: JSON
    read = read_body(json.dumps(body).encode())
    return generate_from_response(read, (), items_of(read), SERVED, Origin("r", "", 0.0))


def turns(*items: dict[str, Any], **fields: Any) -> list[ChatMessage]:  # Any: JSON
    (prompt,) = generate({"input": list(items)} | fields).prompts
    assert isinstance(prompt, ChatPrompt)
    return list(prompt.messages)


def test_a_text_is_a_turn_of_the_user() -> None:
    (prompt,) = generate({"input": "Hi", "instructions": "Be brief."}).prompts
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages == (
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(role="user", content="Hi"),
    )


def test_instructions_and_a_system_turn_are_one() -> None:
    first = {"role": "developer", "content": [{"type": "input_text", "text": "In French."}]}
    assert turns(first, {"role": "user", "content": "Hi"}, instructions="Be brief.") == [
        ChatMessage(role="system", content="Be brief.\n\nIn French."),
        ChatMessage(role="user", content="Hi"),
    ]


def test_what_the_model_said_in_one_go_is_one_turn() -> None:
    found = turns(
        {"role": "user", "content": "Look!"},
        {"id": "rs_1", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [OUTPUT_TEXT]},
        CALL | {"id": "fc_1", "status": "completed", "caller": None},  # a null that a client adds
        CALL | {"call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"type": "message", "role": "assistant", "content": "Yes."},
    )
    calls = tuple(ToolCall(id=id, function=FunctionCall(name="look", arguments='{"at": 1}')) for id in ("c1", "c2"))
    assert found == [
        ChatMessage(role="user", content="Look!"),
        ChatMessage(role="assistant", content="Hi", reasoning_content="Hm.", tool_calls=calls),
        ChatMessage(role="tool", content="one", tool_call_id="c1"),
        ChatMessage(role="tool", content="two", tool_call_id="c2"),
        ChatMessage(role="assistant", content="No."),
        ChatMessage(role="assistant", content="Yes."),
    ]


def test_thoughts_without_an_answer() -> None:
    summary = [{"type": "summary_text", "text": "I thought."}]
    assert turns({"type": "reasoning", "summary": summary}, {"role": "user", "content": "And?"}) == [
        ChatMessage(role="assistant", content="", reasoning_content="I thought."),
        ChatMessage(role="user", content="And?"),
    ]


def test_parameters() -> None:
    request = generate(
        {
            "input": "Hi",
            "max_output_tokens": 5,
            "temperature": 0,
            "top_p": 0.5,
            "top_logprobs": 2,
            "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
            "reasoning": {"effort": "low", "summary": "auto"},
            "seed": 7,
            "priority": -1,
            "store": False,
            "service_tier": "auto",
        }
    )
    (prompt,) = request.prompts
    assert isinstance(prompt, ChatPrompt)
    assert prompt.template_variables == {"reasoning_effort": "low", "enable_thinking": True, "thinking": True}
    assert (request.max_tokens, request.priority) == (5, -1)
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.logprobs, sampling.seed) == (0.0, 0.5, 2, 7)


SCHEMA = {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]}
FORMAT: dict[str, Any] = {"type": "json_schema", "name": "place", "schema": SCHEMA, "strict": True}  # Any: JSON


def test_a_format_is_a_grammar() -> None:
    source = generate({"input": "Hi", "text": {"format": FORMAT}}).grammar_source
    assert source is not None
    assert json.loads(source.text) == SCHEMA
    assert not source.lenient
    assert generate({"input": "Hi", "text": {"format": {"type": "json_object"}}}).grammar_source is not None
    assert generate({"input": "Hi", "text": {"format": {"type": "text"}}}).grammar_source is None


def test_an_error_of_a_format_has_its_path_here() -> None:
    error = restated(
        ApiError(
            "invalid_grammar", "response_format.json_schema.schema.a: no", param="response_format.json_schema.schema.a"
        )
    )
    assert (error.param, error.message) == ("text.format.schema.a", "text.format.schema.a: no")


ALLOWED: dict[str, Any] = {  # Any: JSON
    "type": "allowed_tools",
    "mode": "auto",
    "tools": [{"type": "function", "name": "stop"}],
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("look", "stop")
]


def told(request: Generate) -> list[str]:
    """The names of the functions that the model is told of."""
    (prompt,) = request.prompts
    assert isinstance(prompt, ChatPrompt)
    return [tool.name for tool in prompt.tools]


def test_tools() -> None:
    request = generate({"input": "Hi", "tools": TOOLS, "parallel_tool_calls": False})
    assert told(request) == ["look", "stop"]
    assert request.tool_use == ToolUse(choice="auto", parallel=False)
    assert request.reads_output
    without = generate({"input": "Hi", "tools": TOOLS, "tool_choice": "none"})
    assert (told(without), without.tool_use) == ([], None)


def test_only_allowed_tools_are_told() -> None:
    assert told(generate({"input": "Hi", "tools": TOOLS, "tool_choice": ALLOWED})) == ["stop"]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"input": None}, "input", "invalid_value"),
    ({"input": []}, "input", "invalid_value"),
    ({"input": [{"type": "web_search_call", "id": "w"}]}, "input[0].type", "unsupported_parameter"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "input[0].content[0].type",
        "unsupported_parameter",
    ),
    ({"input": [{"role": "user"}]}, "input[0].content", "invalid_value"),
    ({"input": [CALL | {"name": "a b"}]}, "input[0].name", "invalid_value"),
    ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]}, "input[0].encrypted_content", ""),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input", "invalid_value"),
    ({"input": [{"id": "msg_1"}]}, "input", "invalid_value"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported_parameter"),
    ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
    ({"prompt": {"id": "p"}}, "prompt", "unsupported_parameter"),
    ({"truncation": "middle"}, "truncation", ""),
    ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
    ({"max_output_tokens": 0}, "max_output_tokens", "integer_out_of_range"),
    ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation", ""),
    ({"model": "other"}, "model", "model_not_found"),
    ({"metadata": {"a": 1}}, "metadata[...]", "invalid_type"),
    ({"tools": [TOOLS[0], TOOLS[0]]}, "tools[1].name", "invalid_value"),
    ({"tools": [TOOLS[0] | {"parameters": {"type": "array"}}]}, "tools[0].parameters.type", "invalid_value"),
    ({"tools": [{"type": "function", "name": "no spaces"}]}, "tools[0].name", "invalid_value"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "run"}}, "tool_choice.name", "invalid_value"),
    ({"tools": TOOLS, "tool_choice": {"type": "web_search"}}, "tool_choice.type", "unsupported_parameter"),
    (
        {"tools": TOOLS, "tool_choice": ALLOWED | {"tools": [{"type": "function", "name": "run"}]}},
        "tool_choice.tools",
        "invalid_value",
    ),
    ({"text": {"format": FORMAT | {"schema": [1]}}}, "text.format.schema", "invalid_type"),
    ({"text": {"format": FORMAT | {"name": "a b"}}}, "text.format.name", "invalid_value"),
    ({"unknown": 1}, "unknown", "unknown_parameter"),
]


@pytest.mark.parametrize(("fields", "param", "code"), REFUSED)
def test_what_is_refused(fields: dict[str, Any], param: str, code: str) -> None:  # Any: JSON
    with pytest.raises(ApiError) as refused:
        generate({"input": "Hi"} | fields)
    assert refused.value.param == param
    assert refused.value.code == code or not code
