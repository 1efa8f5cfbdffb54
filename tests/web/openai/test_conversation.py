"""Conversations as real clients send them: fields that libraries add, and template options."""

import json
from collections.abc import Mapping

import msgspec
import pytest

from triolet.protocol.errors import ApiError
from triolet.protocol.openai_requests import ChatBody
from triolet.protocol.requests import ChatMessage, ChatPrompt, FunctionCall, ToolCall
from triolet.web.openai.conversation import chat_prompt
from triolet.web.openai.decode import decode
from triolet.web.openai.json_depth import MAX_DEPTH

CHAT = msgspec.json.Decoder(ChatBody)
HELLO = {"role": "user", "content": "Hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def prompt_of(*messages: Mapping[str, object], **fields: object) -> ChatPrompt:
    return chat_prompt(decode(json.dumps({"messages": messages, **fields}).encode(), CHAT))


ADDED: list[dict[str, object]] = [
    {"parsed": {"answer": [1]}, "refusal": None},  # OpenAI's stream() and parse()
    {"provider_specific_fields": {"refusal": None}, "thinking_blocks": [{}], "images": []},  # LiteLLM
    {"annotations": [{"type": "url_citation"}], "audio": None, "function_call": None},
    {"cache_control": {"type": "ephemeral"}, "reasoning_details": [{}]},  # OpenRouter
]


@pytest.mark.parametrize("added", ADDED)
def test_an_assistants_own_message_comes_back(added: dict[str, object]) -> None:
    answer = {"role": "assistant", "content": "Hello", "tool_calls": None}
    assert prompt_of(HELLO, answer | added) == prompt_of(HELLO, answer)


def test_fields_that_libraries_add_to_tool_calls() -> None:
    function: dict[str, object] = {"name": "f", "arguments": "{}", "parsed_arguments": {}}
    added: dict[str, object] = {"index": 0, "provider_specific_fields": None, "extra_content": {"google": {}}}
    call: dict[str, object] = {**CALL, "function": function, **added}
    asks: dict[str, object] = {"role": "assistant", "content": None}
    assert prompt_of(HELLO, asks | {"tool_calls": [call]}) == prompt_of(HELLO, asks | {"tool_calls": [CALL]})


def test_cache_marks_stand_on_parts_and_messages() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    marked = {"role": "user", "content": [{"type": "text", "text": "Hi"} | mark]} | mark
    assert prompt_of(marked).messages == (ChatMessage(role="user", content="Hi"),)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thinking_goes_to_the_template(name: str) -> None:
    (answer,) = prompt_of({"role": "assistant", "content": "4", name: "2 + 2"}).messages
    assert answer.reasoning_content == "2 + 2"


def test_a_refusal_is_what_the_assistant_said() -> None:
    said = ChatMessage(role="assistant", content="No.")
    assert prompt_of({"role": "assistant", "content": None, "refusal": "No."}).messages == (said,)
    part = {"type": "refusal", "refusal": "No."}
    assert prompt_of({"role": "assistant", "content": [part]}).messages == (said,)


def test_functions_are_tools_of_the_older_form() -> None:
    call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    _, asked, answered = prompt_of(HELLO, call, {"role": "function", "name": "f", "content": "4"}).messages
    function = FunctionCall(name="f", arguments="{}")
    assert asked.tool_calls == (ToolCall(id="call00001", function=function),)
    assert answered == ChatMessage(role="tool", content="4", name="f", tool_call_id="call00001")


def test_names_of_all_languages() -> None:
    assert prompt_of(HELLO | {"name": "Zoë-日本"}).messages[0].name == "Zoë-日本"
    for name in ("a b", "<|im_end|>", "", "a" * 129, "a\n"):
        with pytest.raises(ApiError) as caught:
            prompt_of(HELLO | {"name": name})
        assert (caught.value.code, caught.value.param) == ("invalid_messages", "messages[0].name")


def test_template_options_arrive() -> None:
    prompt = prompt_of(HELLO, chat_template_kwargs={"enable_thinking": False}, documents=[{"text": "d"}])
    assert prompt.template_variables == {"enable_thinking": False}
    assert prompt.documents == ({"text": "d"},)
    assert prompt_of(HELLO, add_generation_prompt=False).add_generation_prompt is False


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({}, {}),
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high", "enable_thinking": True, "thinking": True}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False, "thinking": False}),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            {"reasoning_effort": "none", "enable_thinking": True, "thinking": False},
        ),
    ],
)
def test_reasoning_effort_is_a_matter_of_the_template(fields: dict[str, object], variables: dict[str, object]) -> None:
    assert prompt_of(HELLO, **fields).template_variables == variables


def test_the_answer_may_continue_the_last_message() -> None:
    prompt = prompt_of(HELLO, {"role": "assistant", "content": "The answer is"}, continue_final_message=True)
    assert (prompt.continue_final_message, prompt.add_generation_prompt) == (True, False)


@pytest.mark.parametrize(
    ("last", "fields", "param"),
    [
        (HELLO, {}, "continue_final_message"),
        ({"role": "assistant", "content": ""}, {}, "continue_final_message"),
        ({"role": "assistant", "content": "a", "tool_calls": [CALL]}, {}, "continue_final_message"),
        ({"role": "assistant", "content": "a"}, {"add_generation_prompt": True}, "add_generation_prompt"),
    ],
)
def test_what_cannot_be_continued(last: dict[str, object], fields: dict[str, object], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        prompt_of(HELLO, last, continue_final_message=True, **fields)
    assert (caught.value.code, caught.value.param) == ("invalid_value", param)


@pytest.mark.parametrize("param", ["documents", "chat_template_kwargs"])
def test_what_the_template_gets_is_not_nested_deeply(param: str) -> None:
    """It is sent between processes, whose encoder would fail for all requests."""

    def nested(levels: int) -> object:
        value = json.loads("[" * levels + "]" * levels)
        return [{"a": value}] if param == "documents" else {"a": value}

    prompt_of(HELLO, **{param: nested(MAX_DEPTH - 2)})
    with pytest.raises(ApiError, match="levels of nesting") as caught:
        prompt_of(HELLO, **{param: nested(MAX_DEPTH)})
    assert (caught.value.code, caught.value.param) == ("invalid_value", param)
