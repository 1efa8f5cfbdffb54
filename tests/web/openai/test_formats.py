"""Every field that says what an answer must be becomes the same thing; two at once are refused."""

import json
from typing import Any

import msgspec
import pytest

from triolet.protocol.errors import ApiError
from triolet.protocol.grammars import MAX_GRAMMAR_BYTES, GrammarSource
from triolet.protocol.openai_requests import ChatBody
from triolet.web.openai.decode import decode
from triolet.web.openai.formats import grammar_source

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}}
TEXT = json.dumps(SCHEMA, separators=(",", ":"))
_DECODER = msgspec.json.Decoder(ChatBody)
_HEAD = b'{"messages":[{"role":"user","content":"Hi"}]'


def source_of(**fields: Any) -> GrammarSource | None:  # Any: JSON values
    return read(json.dumps(fields, separators=(",", ":")).encode())


def read(fields: bytes) -> GrammarSource | None:
    return grammar_source(decode(_HEAD + b"," + fields[1:], _DECODER))


def response_format(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA, **fields}}


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        (
            {"response_format": response_format(strict=True, description="What it is.")},
            GrammarSource(kind="json_schema", text=TEXT, param="response_format.json_schema.schema"),
        ),
        (
            {"response_format": response_format()},
            GrammarSource(kind="json_schema", text=TEXT, param="response_format.json_schema.schema", lenient=True),
        ),
        (
            {"response_format": {"type": "json_object"}},
            GrammarSource(kind="json_schema", text='{"type":"object"}', param="response_format"),
        ),
        (
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
            GrammarSource(kind="json_schema", text=TEXT, param="response_format.schema"),
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
            GrammarSource(kind="json_schema", text=TEXT, param="structured_outputs.json", whitespace_pattern=""),
        ),
        (
            {"structured_outputs": {"json": TEXT, "whitespace_pattern": " ?", "regex": None, "disable_fallback": True}},
            GrammarSource(kind="json_schema", text=TEXT, param="structured_outputs.json", whitespace_pattern=" ?"),
        ),
        (
            {"structured_outputs": {"json_object": True}},
            GrammarSource(kind="json_schema", text='{"type":"object"}', param="structured_outputs.json_object"),
        ),
        (
            {"structured_outputs": {"regex": "[a-z]"}},
            GrammarSource(kind="regex", text="[a-z]", param="structured_outputs.regex"),
        ),
        (
            {"structured_outputs": {"choice": ['"a"\n', "ä"]}},
            GrammarSource(kind="lark", text=r'start: "\"a\"\n" | "ä"', param="structured_outputs.choice"),
        ),
        (
            {"structured_outputs": {"grammar": 'start: "a"'}},
            GrammarSource(kind="grammar", text='start: "a"', param="structured_outputs.grammar"),
        ),
        ({"guided_json": SCHEMA}, GrammarSource(kind="json_schema", text=TEXT, param="guided_json")),
        ({"guided_regex": "a"}, GrammarSource(kind="regex", text="a", param="guided_regex")),
        ({"guided_choice": ["a"]}, GrammarSource(kind="lark", text='start: "a"', param="guided_choice")),
        ({"guided_grammar": "start: A"}, GrammarSource(kind="grammar", text="start: A", param="guided_grammar")),
        ({"grammar": 'root ::= "a"'}, GrammarSource(kind="grammar", text='root ::= "a"', param="grammar")),
        ({"response_format": {"type": "text"}, "guided_json": None, "grammar": "", "structured_outputs": {}}, None),
    ],
)
def test_what_is_asked_for(fields: dict[str, Any], wanted: GrammarSource | None) -> None:
    assert source_of(**fields) == wanted


@pytest.mark.parametrize(
    ("fields", "code", "param", "words"),
    [
        (
            {"response_format": {"type": "json_object"}, "guided_regex": "a"},
            "invalid_value", "guided_regex", "response_format and guided_regex both say",
        ),
        (
            {"structured_outputs": {"regex": "a", "choice": ["a"]}},
            "invalid_value", "structured_outputs.choice", "send one of them",
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "json_object": True}},
            "invalid_value", "structured_outputs.json_object", "send one of them",
        ),
        (
            {"structured_outputs": {"regex": "a", "whitespace_pattern": ""}},
            "invalid_value", "structured_outputs.whitespace_pattern", "needs structured_outputs.json",
        ),
        ({"structured_outputs": {"structural_tag": "{}"}}, "invalid_type", "structured_outputs.structural_tag", "null"),
        ({"structured_outputs": {"xml": 1}}, "unknown_parameter", "structured_outputs.xml", "Unknown"),
        ({"structured_outputs": {"choice": []}}, "invalid_value", "structured_outputs.choice", "length >= 1"),
        ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type", "send text or json_object or"),
        ({"response_format": {"type": "json_schema"}}, "invalid_value", "response_format.json_schema", "Missing"),
        (
            {"response_format": response_format(name="two words")},
            "invalid_value", "response_format.json_schema.name", "1 to 64 letters",
        ),
        (
            {"response_format": response_format(schema=[])},
            "invalid_type", "response_format.json_schema.schema", "which is an object",
        ),
        ({"guided_json": "3"}, "invalid_type", "guided_json", "which is an object"),
        ({"guided_regex": "a" * (MAX_GRAMMAR_BYTES + 1)}, "invalid_grammar", "guided_regex", "262145 bytes"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(fields: dict[str, Any], code: str, param: str, words: str) -> None:
    with pytest.raises(ApiError, match=words) as caught:
        source_of(**fields)
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.parametrize("value", [b'{"a":"\xff"}', b'"\xff"', b'"\\ud800"', b'"{"', b'"{\\"a\\": }"'])
def test_a_schema_that_is_no_json_is_refused(value: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        read(b'{"guided_json":' + value + b"}")
    assert caught.value.code == "invalid_json"
