"""Chat templates: Hugging Face's semantics, refusals in the template's words, and the sandbox."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from triolet.actors.errors import EngineLoadError
from triolet.actors.tokenizer.chat_template import ChatTemplate, load_chat_template
from triolet.protocol.errors import ApiError
from triolet.protocol.requests import ChatMessage, ChatPrompt, FunctionCall, ToolCall


def prompt_of(*messages: ChatMessage) -> ChatPrompt:
    return ChatPrompt(messages=messages or (ChatMessage(role="user", content="Hi"),))


def render(source: str, *messages: ChatMessage, tokens: dict[str, str] | None = None) -> str:
    return ChatTemplate(source, tokens or {}).render(prompt_of(*messages))


def test_block_tags_leave_no_lines_and_special_tokens_are_there() -> None:
    source = "{{ bos_token }}\n{% for m in messages %}\n  {% if m.role %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}"
    assert render(source, tokens={"bos_token": "<s>"}) == "<s>\nHi\n"


def test_tojson_keeps_characters_and_html() -> None:
    message = ChatMessage(role="user", content="<é&>")
    assert render("{{ messages[0].content | tojson }}", message) == '"<é&>"'


def test_loop_controls_generation_marks_and_the_date() -> None:
    loop = "{% for m in messages %}{% break %}{% endfor %}"
    source = loop + "{% generation %}x{% endgeneration %}{{ strftime_now('%Y') }}"
    assert render(source) == f"x{datetime.now():%Y}"


def test_tool_calls_have_arguments_as_objects_and_missing_fields_are_undefined() -> None:
    call = ToolCall(id="c1", function=FunctionCall(name="add", arguments='{"a": 1}'))
    source = "{{ messages[0].tool_calls[0].function.arguments.a }}{{ messages[0].name is defined }}"
    assert render(source, ChatMessage(role="assistant", tool_calls=(call,))) == "1False"
    broken = ToolCall(id="c1", function=FunctionCall(name="add", arguments="{"))
    with pytest.raises(ApiError, match="not JSON") as caught:
        render(source, ChatMessage(role="assistant", tool_calls=(broken,)))
    assert caught.value.param == "messages[0].tool_calls[0].function.arguments"


def test_a_key_hides_no_method_of_its_object() -> None:
    """As in jinja itself: attributes come first, though keys are what turns are made of."""
    call = ToolCall(id="c1", function=FunctionCall(name="add", arguments='{"items": 1, "b": 2}'))
    message = ChatMessage(role="assistant", content=None, tool_calls=(call,))
    source = "{% set a = messages[0].tool_calls[0].function.arguments %}"
    source += "{{ a.b }}{% for item in a.items() %}{{ item[0] }}{% endfor %}"
    assert render(source, message) == "2itemsb"


def test_a_templates_refusal_is_told_in_its_own_words() -> None:
    with pytest.raises(ApiError, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert (caught.value.code, caught.value.param, caught.value.status) == ("invalid_messages", "messages", 400)


@pytest.mark.parametrize(
    "source",
    ["{{ messages[0].content.missing.deeper }}", "{{ messages[0] + 1 }}", "{{ ''.__class__.__mro__ }}"],
)
def test_whatever_fails_in_a_template_is_a_refusal(source: str) -> None:
    with pytest.raises(ApiError) as caught:
        render(source)
    assert caught.value.code == "invalid_messages"


def test_the_sandbox_hides_python() -> None:
    with pytest.raises(ApiError):
        render("{{ messages.__class__.__base__.__subclasses__() }}")
    with pytest.raises(ApiError):
        render("{{ messages.append(1) }}")


def write(folder: Path, **config: object) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_template_from_the_config_one_or_named(tmp_path: Path) -> None:
    one = load_chat_template(write(tmp_path, chat_template="{{ eos_token }}", eos_token={"content": "</s>"}))
    assert one is not None
    assert one.render(prompt_of()) == "</s>"
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    several = load_chat_template(write(tmp_path, chat_template=named))
    assert several is not None
    assert several.render(prompt_of()) == "yes"


def test_a_file_of_its_own_wins_and_none_is_none(tmp_path: Path) -> None:
    assert load_chat_template(tmp_path) is None
    write(tmp_path, chat_template="config")
    (tmp_path / "chat_template.jinja").write_text("file")
    template = load_chat_template(tmp_path)
    assert template is not None
    assert template.render(prompt_of()) == "file"


@pytest.mark.parametrize("source", ["{% if %}", "{{ raise_exception('never') }}", "{{ undefined_function() }}"])
def test_a_template_that_cannot_work_is_refused_at_load(tmp_path: Path, source: str) -> None:
    with pytest.raises(EngineLoadError, match="chat template") as caught:
        load_chat_template(write(tmp_path, chat_template=source))
    assert caught.value.code == "invalid_checkpoint"


def test_a_broken_config_is_refused_at_load(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(EngineLoadError):
        load_chat_template(tmp_path)
