"""Chat templates: Hugging Face's semantics, refusals in the template's words, and the sandbox."""

import json
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from triolet.actors.errors import EngineLoadError
from triolet.actors.tokenizer.chat_template import ChatTemplate
from triolet.actors.tokenizer.chat_templates import ChatTemplates, choose_templates
from triolet.models.checkpoint.text.chat_templates import MAX_TEMPLATE_BYTES, read_templates
from triolet.models.checkpoint.text.folder import read_config
from triolet.models.errors import CheckpointError
from triolet.protocol.errors import ApiError
from triolet.protocol.requests import ChatMessage, ChatPrompt, FunctionCall, FunctionTool, ToolCall


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


@pytest.mark.parametrize("text", ["{", "[" * 5000 + "]" * 5000], ids=["cut", "deep"])
def test_arguments_that_are_no_json_are_none(text: str) -> None:
    call = ToolCall(id="c1", function=FunctionCall(name="add", arguments=text))
    source = "{{ messages[0].tool_calls[0].function.arguments }}"
    assert render(source, ChatMessage(role="assistant", tool_calls=(call,))) == "{}"


def test_variables_and_documents_of_the_request() -> None:
    source = "{{ enable_thinking }} {{ documents[0].text }} {{ messages[0].reasoning_content }}"
    prompt = ChatPrompt(
        messages=(ChatMessage(role="assistant", content="x", reasoning_content="why"),),
        documents=({"text": "d"},),
        template_variables={"enable_thinking": False, "unread": [1]},
    )
    assert ChatTemplate(source, {}).render(prompt) == "False d why"


@pytest.mark.parametrize("name", ["messages", "tools", "bos_token", "chat_template"])
def test_a_request_sets_no_variable_of_the_servers(name: str) -> None:
    prompt = ChatPrompt(messages=prompt_of().messages, template_variables={name: "x"})
    with pytest.raises(ApiError, match=name) as caught:
        ChatTemplate("x", {"bos_token": "<s>"}).render(prompt)
    assert (caught.value.code, caught.value.param) == ("invalid_value", "chat_template_kwargs")


def test_documents_do_not_get_lost() -> None:
    prompt = ChatPrompt(messages=prompt_of().messages, documents=({"text": "d"},))
    with pytest.raises(ApiError, match="reads no documents") as caught:
        ChatTemplate("{{ messages }}", {}).render(prompt)
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "documents")


def test_the_last_message_may_stay_open() -> None:
    turns = (ChatMessage(role="user", content="Hi"), ChatMessage(role="assistant", content="So, "))
    source = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}<end>{% endfor %}"
    prompt = ChatPrompt(messages=turns, add_generation_prompt=False, continue_final_message=True)
    assert ChatTemplate(source, {}).render(prompt) == "[user]Hi<end>[assistant]So, "
    for twice in ("{{ messages[1].content }}" * 2, "{{ messages[0].content }}"):
        with pytest.raises(ApiError) as caught:
            ChatTemplate(twice, {}).render(prompt)
        assert caught.value.param == "continue_final_message"


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


@pytest.mark.parametrize(
    "expression",
    [
        "messages.__class__.__base__.__subclasses__()",
        "messages.append(1)",
        "ns.__class__.__mro__[1]",
        "ns._Namespace__attrs.a",
        "loop.__init__.__globals__['sys'].path",
        "loop._iterator.missing",
        "loop.cycle.__func__.__globals__['sys'].path",
    ],
)
def test_the_sandbox_hides_python(expression: str) -> None:
    source = "{%% set ns = namespace(a=1) %%}{%% for message in messages %%}{{ %s }}{%% endfor %%}"
    with pytest.raises(ApiError):
        render(source % expression)


def load_chat_templates(folder: Path, wanted: str | None = None) -> ChatTemplates | None:
    config = read_config(folder)
    return choose_templates(read_templates(folder, config), {"eos_token": "</s>"}, wanted)


def write(folder: Path, **config: object) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


TOOLS = msgspec.structs.replace(prompt_of(), tools=(FunctionTool(name="f"),))


def said(folder: Path, *, tools: bool = False, wanted: str | None = None) -> str:
    templates = load_chat_templates(folder, wanted)
    assert templates is not None
    return templates.of(TOOLS if tools else prompt_of()).render(prompt_of())


def test_template_from_the_config_one_or_named(tmp_path: Path) -> None:
    assert said(write(tmp_path, chat_template="{{ eos_token }}")) == "</s>"
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    assert said(write(tmp_path, chat_template=named)) == "yes"


def test_a_file_of_its_own_wins_and_none_is_none(tmp_path: Path) -> None:
    assert load_chat_templates(tmp_path) is None
    write(tmp_path, chat_template="config")
    (tmp_path / "chat_template.jinja").write_text("file")
    assert said(tmp_path) == "file"


def test_of_several_by_name_tools_choose_theirs_and_a_wanted_one_is_for_all(tmp_path: Path) -> None:
    write(tmp_path, chat_template=[{"name": name, "template": name} for name in ("default", "tool_use", "rag")])
    extra = tmp_path / "additional_chat_templates"
    extra.mkdir()
    (extra / "rag.jinja").write_text("rag of the folder")
    (tmp_path / "own.jinja").write_text("own")
    assert said(tmp_path) == "default"
    assert said(tmp_path, tools=True) == "tool_use"
    assert said(tmp_path, tools=True, wanted="rag") == said(tmp_path, wanted="rag") == "rag of the folder"
    assert said(tmp_path, wanted=str(tmp_path / "own.jinja")) == "own"
    with pytest.raises(EngineLoadError, match="no template of this name, and no such file; the model has default, rag"):
        load_chat_templates(tmp_path, "rga")


def test_several_templates_without_a_default_need_a_choice(tmp_path: Path) -> None:
    write(tmp_path, chat_template=[{"name": "rag", "template": "rag"}])
    with pytest.raises(EngineLoadError, match="choose one with --chat-template"):
        load_chat_templates(tmp_path)
    assert said(tmp_path, wanted="rag") == "rag"


def test_a_further_template_may_not_link_out_of_the_checkpoint(tmp_path: Path) -> None:
    model = tmp_path / "model"
    (model / "additional_chat_templates").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (model / "additional_chat_templates" / "x.jinja").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match="links to a place outside"):
        load_chat_templates(model)


@pytest.mark.parametrize("source", ["{% if %}", "{{ raise_exception('never') }}", "{{ undefined_function() }}"])
def test_a_template_that_cannot_work_is_refused_at_load(tmp_path: Path, source: str) -> None:
    with pytest.raises(EngineLoadError, match="chat template") as caught:
        load_chat_templates(write(tmp_path, chat_template=source))
    assert caught.value.code == "invalid_checkpoint"


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000])
def test_a_broken_config_is_refused_at_load(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json.* is not a valid JSON object"):
        load_chat_templates(tmp_path)


def test_a_template_nested_too_deeply_is_refused_at_load(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{% if true %}" * 3000 + "{% endif %}" * 3000)
    with pytest.raises(EngineLoadError, match="does not work: RecursionError"):
        load_chat_templates(tmp_path)


def test_a_template_has_a_greatest_size(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("x" * (MAX_TEMPLATE_BYTES + 1))
    with pytest.raises(CheckpointError, match="is larger than"):
        load_chat_templates(tmp_path)
