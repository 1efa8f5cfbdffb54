"""From an Ollama body to the program's own request."""

import json
from typing import Any, Final

import pytest

from triolet.protocol.errors import ApiError
from triolet.protocol.grammars import GrammarSource
from triolet.protocol.ollama_responses import OllamaAnswer
from triolet.protocol.requests import ChatMessage, FunctionCall, FunctionTool, Generate, TextPrompt, ToolCall, ToolUse
from triolet.web.generation.asked import Asked, Pieces, Whole
from triolet.web.ollama.ollama import read_chat, read_generate

from ..openai.test_request import ORIGIN, SERVED, prompt_of

HELLO = {"role": "user", "content": "Hi"}


def read(**fields: object) -> Asked | OllamaAnswer:
    given = json.dumps({} if fields.keys() & {"prompt", "messages"} else {"messages": [HELLO]})
    data = json.dumps(json.loads(given) | fields).encode()
    return (read_generate if "prompt" in fields else read_chat)(SERVED, ORIGIN, data)


def ask(**fields: object) -> Generate:
    asked = read(**fields)
    assert isinstance(asked, Asked)
    return asked.request


def said(role: str, content: str) -> ChatMessage:
    return ChatMessage(role=role, content=content)


def test_options_have_ollamas_names() -> None:
    options = {"num_predict": 7, "temperature": 0, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "seed": 5, "stop": ["END"]}
    penalties = {"repeat_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.25}
    for request in (ask(options=options | penalties), ask(prompt="Hi", raw=True, options=options | penalties)):
        sampling = request.sampling
        assert (request.max_tokens, request.stop, sampling.seed) == (7, ("END",), 5)
        assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0, 3, 0.5, 0.1)
        assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.5, 0.5, 0.25)


def test_the_models_defaults_hold_where_nothing_is_said() -> None:
    for request in (ask(), ask(prompt="Hi"), ask(prompt="Hi", raw=True), ask(options={"num_predict": -1})):
        assert (request.max_tokens, request.sampling.temperature, request.sampling.top_k) == (None, 0.6, 20)


def test_how_ollama_would_load_the_model_changes_nothing() -> None:
    notes = dict.fromkeys(("num_ctx", "num_keep", "num_gpu", "use_mmap", "num_thread", "draft_num_predict"), 1)
    same = {"mirostat": 0, "tfs_z": 1, "typical_p": 1, "repeat_last_n": 64, "penalize_newline": True}
    for choice in (True, False):
        request = ask(options=notes | same, keep_alive="5m", truncate=choice, shift=choice)
        assert prompt_of(request) == prompt_of(ask())


def test_it_streams_unless_told_not_to() -> None:
    for fields, form in (({}, Pieces), ({"stream": True}, Pieces), ({"stream": False}, Whole)):
        for more in ({}, {"prompt": "Hi"}):
            asked = read(**fields, **more)
            assert isinstance(asked, Asked)
            assert isinstance(asked.answer, form)


@pytest.mark.parametrize(
    "fields", [{"messages": []}, {"messages": None}, {"prompt": ""}, {"prompt": "", "keep_alive": 0}]
)
def test_nothing_asked_says_that_the_model_is_loaded(fields: dict[str, object]) -> None:
    answer = read(**fields)
    assert isinstance(answer, OllamaAnswer)
    assert (answer.model, answer.done, answer.done_reason) == ("tiny", True, "load")


@pytest.mark.parametrize("name", ["tiny", "tiny:latest"])
def test_the_answer_repeats_the_models_name(name: str) -> None:
    answer = read(messages=[], model=name)
    assert isinstance(answer, OllamaAnswer)
    assert answer.model == name
    assert ask(model=name).model == "tiny"


def test_the_answer_names_the_fallback_that_made_it() -> None:
    data = json.dumps({"model": "large", "messages": []}).encode()
    answer = read_chat(SERVED, ORIGIN._replace(fallbacks=("larger", "tiny")), data)
    assert isinstance(answer, OllamaAnswer)
    assert answer.model == "tiny"


def test_a_generation_is_a_chat_of_one_turn_unless_it_is_raw() -> None:
    assert prompt_of(ask(prompt="Hi", system="Be kind")).messages == (said("system", "Be kind"), said("user", "Hi"))
    (raw,) = ask(prompt="<s>Hi", raw=True).prompts
    assert raw == TextPrompt(text="<s>Hi", add_special_tokens=False)
    (gap,) = ask(prompt="def f", suffix="return x").prompts
    assert gap == TextPrompt(text="def f", suffix="return x")


def test_tools_thoughts_and_results_of_earlier_turns() -> None:
    def call(name: str, id: str | None = None) -> dict[str, Any]:  # Any: JSON
        return {"function": {"name": name, "arguments": {"a": 1}}} | ({} if id is None else {"id": id})

    asked = {
        "role": "assistant",
        "content": "",
        "thinking": "Hm",
        "tool_calls": [call("f"), call("g"), call("h", "mine")],
    }
    results = [
        {"role": "tool", "content": "of g", "tool_name": "g"},
        {"role": "tool", "content": "of f"},
        {"role": "tool", "content": "of h", "tool_call_id": "mine"},
    ]
    turns = prompt_of(ask(messages=[HELLO, asked, *results])).messages
    assert turns[1].reasoning_content == "Hm"
    assert turns[1].tool_calls == tuple(
        ToolCall(id=id, function=FunctionCall(name=name, arguments='{"a":1}'))
        for name, id in (("f", "call00100"), ("g", "call00101"), ("h", "mine"))
    )
    assert [(turn.tool_call_id, turn.content) for turn in turns[2:]] == [
        ("call00101", "of g"), ("call00100", "of f"), ("mine", "of h"),
    ]  # fmt: skip


def test_the_answer_continues_a_last_turn_of_the_assistant() -> None:
    assert prompt_of(ask(messages=[HELLO, {"role": "assistant", "content": "Hel"}])).continue_final_message


def test_an_empty_last_turn_of_the_assistant_is_left_out() -> None:
    empty = {"role": "assistant", "content": ""}
    assert prompt_of(ask(messages=[HELLO, empty, empty])) == prompt_of(ask(messages=[HELLO]))


@pytest.mark.parametrize(
    ("think", "variables", "shown"),
    [
        (None, {}, True),
        (True, {"enable_thinking": True, "thinking": True}, True),
        (False, {"enable_thinking": False, "thinking": False}, False),
        ("low", {"enable_thinking": True, "thinking": True, "reasoning_effort": "low"}, True),
    ],
)
def test_thinking_is_the_templates_matter(think: object, variables: dict[str, Any], shown: bool) -> None:
    for request in (ask(think=think), ask(think=think, prompt="Hi")):
        assert prompt_of(request).template_variables == variables
        assert request.include_reasoning is shown


def test_log_probabilities() -> None:
    for more in ({}, {"prompt": "Hi"}, {"prompt": "Hi", "raw": True}):
        assert ask(logprobs=True, top_logprobs=2, **more).sampling.logprobs == 2
        assert ask(logprobs=True, **more).sampling.logprobs == 0
        assert ask(**more).sampling.logprobs is None


def test_tools_are_those_of_a_chat() -> None:
    function: dict[str, Any] = {
        "name": "weather",
        "description": "of a city",
        "parameters": {"type": "object", "properties": {}},
    }
    request = ask(tools=[{"type": "function", "function": function}])
    assert prompt_of(request).tools == (FunctionTool(**function),)
    assert request.tool_use == ToolUse()


def test_the_answer_may_have_to_be_json() -> None:
    for more in ({}, {"prompt": "Hi"}, {"prompt": "Hi", "raw": True}):
        assert ask(format="", **more).grammar_source is None
        anything = GrammarSource(kind="json_schema", text='{"type":"object"}', param="format")
        assert ask(format="json", **more).grammar_source == anything
        schema = {"type": "object", "required": ["a"]}
        source = GrammarSource(
            kind="json_schema", text='{"type":"object","required":["a"]}', param="format", lenient=True
        )
        assert ask(format=schema, **more).grammar_source == source


def turn(**fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "Hi"} | fields]}


REFUSED: Final[list[tuple[dict[str, object], str, str]]] = [
    ({"model": "other"}, "model_not_found", "model"),
    ({"options": {"top_a": 1}}, "unknown_parameter", "options.top_a"),
    ({"options": {"temperature": 3}}, "invalid_value", "options.temperature"),
    ({"options": {"num_predict": 0}}, "integer_out_of_range", "options.num_predict"),
    ({"options": {"num_predict": -3}}, "integer_out_of_range", "options.num_predict"),
    ({"options": {"mirostat": 1}}, "unsupported_parameter", "options.mirostat"),
    ({"options": {"repeat_last_n": 5}}, "unsupported_parameter", "options.repeat_last_n"),
    ({"options": {"stop": ["a"] * 5}}, "invalid_stop", "options.stop"),
    ({"think": "a lot"}, "invalid_value", "think"),
    ({"top_logprobs": 2}, "invalid_value", "top_logprobs"),
    (turn(images=["aaaa"]), "unsupported_parameter", "messages[0].images"),
    (turn(thinking="Hm"), "invalid_messages", "messages[0].thinking"),
    (turn(role="tool"), "invalid_messages", "messages[0]"),
    (turn(role="judge"), "invalid_value", "messages[0].role"),
    ({"prompt": "Hi", "suffix": "there", "system": "Be brief"}, "invalid_value", "system"),
    ({"prompt": "Hi", "images": ["aaaa"]}, "unsupported_parameter", "images"),
    ({"prompt": "Hi", "context": [1]}, "unsupported_parameter", "context"),
    ({"prompt": "Hi", "template": "{{ .Prompt }}"}, "unsupported_parameter", "template"),
    ({"prompt": "Hi", "raw": True, "system": "Be kind"}, "invalid_value", "system"),
    ({"prompt": "Hi", "raw": True, "think": True}, "invalid_value", "think"),
]


@pytest.mark.parametrize("turn", [{"content": ""}, {"content": "", "thinking": "Hm"}])
def test_turns_without_text_are_no_conversation(turn: dict[str, str]) -> None:
    with pytest.raises(ApiError) as refused:
        ask(messages=[{"role": "assistant"} | turn])
    assert (refused.value.code, refused.value.param) == ("invalid_messages", "messages")


@pytest.mark.parametrize(("fields", "code", "param"), REFUSED)
def test_what_is_refused_names_its_field(fields: dict[str, object], code: str, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        ask(**fields)
    assert (refused.value.code, refused.value.param) == (code, param)
    assert param in refused.value.message or code == "model_not_found"
