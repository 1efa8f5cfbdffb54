"""The demo tokenizer and its chat template: what training wrote is what a server will send."""

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from jinja2 import Template
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from triolet.models.demo.training.corpus import conversation
from triolet.models.demo.training.tasks.tools import tool_call, tool_result
from triolet.models.demo.training.tokenizer import pieces, plain, train_tokenizer

GENERATE = "<|im_start|>assistant\n"  # what the model sees before it answers
CHECKPOINT = Path(__file__).parents[3] / "models" / "demo" / "checkpoint"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))


def raise_exception(message: str) -> None:
    raise TemplateError(message)


@cache
def template() -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    cast("dict[str, Any]", environment.globals)["raise_exception"] = raise_exception
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string((CHECKPOINT / "chat_template.jinja").read_text())


def render(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None, generate: bool = True) -> str:
    return template().render(messages=messages, tools=tools, add_generation_prompt=generate)  # Any: JSON values


def test_the_template_writes_what_training_wrote() -> None:
    chats = (conversation(2, index) for index in range(150))
    for turns in (turns for turns in chats if turns[0][0] != "text"):
        messages = [{"role": role, "content": text} for role, text in turns]
        assert render(messages, generate=False) == plain(turns)
        assert render(messages[:-1]) == plain(turns[:-1]) + GENERATE


def test_tools_are_rendered_as_the_tool_family_sees_them() -> None:
    rng = Random(4)
    for _ in range(100):
        turns = tool_call(rng, False)
        preamble, _, listed = turns[0][1].rpartition("Tools:\n")
        tools = [
            {
                "type": "function",
                "function": {
                    "name": (name := line.split(" ", 1)[0]),
                    "description": f"what {name} does",
                    "parameters": {
                        "type": "object",
                        "properties": {k: {"type": t} for k, t in json.loads(line.split(" ", 1)[1]).items()},
                    },
                },
            }
            for line in listed.splitlines()
        ]
        before = [{"role": "system", "content": preamble.strip()}] if preamble else []
        assert render([*before, {"role": "user", "content": turns[1][1]}], tools) == plain(turns[:2]) + GENERATE


@pytest.mark.parametrize("as_text", [True, False])
def test_a_tool_call_is_rendered_as_the_model_wrote_it(as_text: bool) -> None:
    system, user, (_, call_text), (_, result), (_, answer) = tool_result(Random(1), False)
    call = json.loads(call_text.removeprefix("<tool_call>").removesuffix("</tool_call>"))
    arguments = json.dumps(call["arguments"]) if as_text else call["arguments"]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": system[1]},
        {"role": "user", "content": user[1]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"type": "function", "function": {"name": call["name"], "arguments": arguments}}],
        },
        {"role": "tool", "content": result},
        {"role": "assistant", "content": answer},
    ]
    assert render(messages, generate=False) == plain(
        [system, user, ("assistant", call_text), ("tool", result), ("assistant", answer)]
    )


@pytest.mark.parametrize("role", ["developer", "root", ""])
def test_an_unknown_role_is_refused(role: str) -> None:
    with pytest.raises(TemplateError, match="Unknown role"):
        render([{"role": role, "content": "x"}])


def test_several_system_messages_are_rendered() -> None:
    """Agents send several: those at the beginning are one turn, as in training; a later one is a turn of its own."""
    first, second, late = ({"role": "system", "content": text} for text in ("Be brief.", "Be kind.", "Be loud."))
    user = {"role": "user", "content": "Hi"}
    assert render([first, second, user]) == render([{"role": "system", "content": "Be brief.\n\nBe kind."}, user])
    assert render([first, user, late]) == render([first, user]).removesuffix(GENERATE) + (
        "<|im_start|>system\nBe loud.<|im_end|>\n" + GENERATE
    )
    assert render([{"role": "system", "content": ""}, second, user]) == render([second, user])


def test_pieces_encode_as_the_whole_does(tokenizer: Tokenizer) -> None:
    for index in range(100):
        turns = conversation(2, index)
        apart = [token for text, _ in pieces(turns) for token in tokenizer.encode(text).ids]
        assert apart == tokenizer.encode(plain(turns)).ids
        assert tokenizer.decode(apart, skip_special_tokens=False) == plain(turns)


def test_digits_are_single_tokens_and_names_the_same_everywhere(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("1024").tokens == list("1024")
    name = tokenizer.encode("Quorvanna").ids
    for sentence in ("I met Quorvanna today", '{"name": "Quorvanna"}', "Quorvanna, hello"):
        ids = tokenizer.encode(sentence).ids
        assert any(ids[i : i + len(name)] == name for i in range(len(ids)))


def test_any_text_survives(tokenizer: Tokenizer) -> None:
    for text in ("naïve café — 你好 🦊", "\x00\x01\ttabs\r\n", "<|im_start", "_" * 50, "  spaces   "):
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_tool_markers_are_one_token_and_stay_in_the_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<tool_call>{}</tool_call><|im_end|>").ids
    assert [tokenizer.id_to_token(i) for i in (ids[0], ids[-2], ids[-1])] == [
        "<tool_call>",
        "</tool_call>",
        "<|im_end|>",
    ]
    assert tokenizer.decode(ids) == "<tool_call>{}</tool_call>"


def test_training_a_tokenizer_gives_the_same_special_ids() -> None:
    small = train_tokenizer((plain(conversation(1, index)) for index in range(50)), vocabulary=400)
    assert [small.token_to_id(token) for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")] == [0, 1, 2]
