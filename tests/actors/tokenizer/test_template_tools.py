"""Tools and calls as chat templates of several families read them."""

import pytest

from triolet.actors.tokenizer.chat_template import ChatTemplate
from triolet.actors.tokenizer.output_format import (
    DEEPSEEK,
    FAMILIES,
    GLM,
    HERMES,
    LLAMA,
    MISTRAL,
    MISTRAL_LIST,
    PHI,
    QWEN_CODER,
    CallSyntax,
    output_format,
)
from triolet.cli.options import BUNDLED_MODEL
from triolet.protocol.requests import ChatMessage, ChatPrompt, FunctionCall, FunctionTool, ToolCall

WEATHER = FunctionTool(
    name="get_weather",
    description="Of a city.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}},
)
USER = ChatMessage(role="user", content="Hi")
CALLS = ToolCall(id="c1", function=FunctionCall(name="get_weather", arguments='{"city": "Rome"}'))
TURNS = (
    USER,
    ChatMessage(role="assistant", tool_calls=(CALLS,)),
    ChatMessage(role="tool", content="sunny", tool_call_id="c1"),
)
# What these families' templates do with a call, and nothing else of them.
AS_OBJECT = (
    "{{ tools }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    '<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}{% endfor %}"
)
AS_TEXT = (
    "{{ tools }}{% for m in messages %}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name + '```json' + c.function.arguments + '```' }}{% endfor %}{{ m.content or '' }}{% endfor %}"
)
BY_NULL = (
    "{{ tools }}{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}"
    "{{ m.tool_calls[0].function.name + m.tool_calls[0].function.arguments }}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("source", [AS_OBJECT, AS_TEXT, BY_NULL], ids=["object", "text", "null"])
def test_a_call_of_the_conversation_is_shown_as_the_template_expects_it(source: str) -> None:
    text = ChatTemplate(source, {}).render(ChatPrompt(messages=TURNS, tools=(WEATHER,)))
    assert '{"city": "Rome"}' in text
    assert "get_weather" in text
    assert text.endswith("sunny")


BY_ITEM = (
    "{{ tools }}{% for m in messages %}{% for c in m.tool_calls or [] %}<{{ c.function.name }}>"
    "{% for name, value in c.function.arguments.items() %}<{{ name }}>{{ value }}{% endfor %}"
    "{% endfor %}{{ m.content or '' }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("source", "written"),
    [
        (AS_OBJECT, r'"arguments": "{\"city\": \"Rome"}</tool_call>sunny'),
        (AS_TEXT, 'get_weather```json{"city": "Rome```sunny'),
        (BY_NULL, 'get_weather{"city": "Romesunny'),
        (BY_ITEM, "<get_weather>sunny"),
    ],
    ids=["object", "text", "null", "item"],
)
def test_a_call_that_a_limit_has_cut_stays_in_the_conversation(source: str, written: str) -> None:
    cut = ToolCall(id="c1", function=FunctionCall(name="get_weather", arguments='{"city": "Rome'))
    turns = (USER, ChatMessage(role="assistant", tool_calls=(cut,)), TURNS[2])
    assert ChatTemplate(source, {}).render(ChatPrompt(messages=turns, tools=(WEATHER,))).endswith(written)


def test_tools_have_all_fields_that_templates_read() -> None:
    source = "{% for t in tools %}{{ t | tojson }}{% endfor %}"
    prompt = ChatPrompt(messages=(USER,), tools=(WEATHER, FunctionTool(name="now", strict=True)))
    assert ChatTemplate(source, {}).render(prompt) == (
        '{"type": "function", "function": {"name": "get_weather", "description": "Of a city.", '
        '"parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}'
        '{"type": "function", "function": {"name": "now", "description": "", '
        '"parameters": {"type": "object", "properties": {}}}}'
    )


def test_tools_that_belong_into_the_system_message_go_there() -> None:
    source = (
        "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}"
        "{% if 'tools' in message %}<|tool|>{{ message['tools'] }}<|/tool|>{% endif %}{% endfor %}"
    )
    template = ChatTemplate(source, {})
    for turns in ((USER,), (ChatMessage(role="system", content="Be brief."), USER)):
        text = template.render(ChatPrompt(messages=turns, tools=(WEATHER,)))
        assert '<|tool|>[{"type": "function"' in text
        assert text.count("<|system|>") == 1


def test_a_template_that_reads_no_tools_takes_none() -> None:
    assert not ChatTemplate("{{ messages[0].content }}", {}).takes_tools
    assert ChatTemplate(AS_OBJECT, {}).takes_tools


def test_the_bundled_models_calls_are_read() -> None:
    template = ChatTemplate((BUNDLED_MODEL / "chat_template.jinja").read_text(), {})
    assert output_format(template.source, (), takes_tools=template.takes_tools).calls is HERMES


@pytest.mark.parametrize(
    ("source", "added", "syntax"),
    [
        ("'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + '```json'", (), DEEPSEEK),
        ("{%- set tool = '[AVAILABLE_TOOLS]' %}[TOOL_CALLS]", (), MISTRAL_LIST),
        ("{{- '[TOOL_CALLS]' + name + '[ARGS]' }}", (), MISTRAL),
        ("<tool_call>\n<function=example_function_name>", (), QWEN_CODER),
        ("<tool_call>{function-name}\n<arg_key>", (), GLM),
        ('Environment: ipython {"name": function name, "parameters": dictionary}', (), LLAMA),
        ("<|tool|>", ("<|tool_call|>", "<|/tool_call|>"), PHI),
        ("{{ messages }}", ("<tool_call>",), None),
    ],
)
def test_a_family_is_known_by_its_template(source: str, added: tuple[str, ...], syntax: CallSyntax | None) -> None:
    assert output_format(source, added, takes_tools=True).calls is syntax
    assert output_format(source, added, takes_tools=False).calls is None


def test_a_family_is_not_hidden_by_one_above_it() -> None:
    for texts, syntax in FAMILIES:
        assert output_format("".join(texts), (), takes_tools=True).calls is syntax
