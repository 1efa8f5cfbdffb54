"""What is compiled and what is refused, and whether a refusal says where and why. The library itself, no process."""

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from triolet.actors.grammar.compile import compile_grammar
from triolet.models.checkpoint.grammar import open_grammar_tokenizer
from triolet.protocol.grammars import GrammarAccepted, GrammarRefused, GrammarSource

from ..engine_house import MODEL


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    return open_grammar_tokenizer(MODEL, 2048, (0,))


def schema(value: Any, **fields: Any) -> GrammarSource:  # Any: a JSON value; fields of GrammarSource
    return GrammarSource(kind="json_schema", text=json.dumps(value), param="schema", **fields)


def source(kind: Any, text: str) -> GrammarSource:  # Any: a literal
    return GrammarSource(kind=kind, text=text, param="p")


def accepts(verdict: GrammarAccepted | GrammarRefused, tokenizer: LLTokenizer, text: str) -> bool:
    """Whether the whole text may be an answer."""
    assert isinstance(verdict, GrammarAccepted), verdict
    matcher = LLMatcher(tokenizer, verdict.grammar, log_level=0)
    tokens = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        (schema(PERSON), '{"name": "Ann", "age": 3}', '{"name": "Ann", "age": "3"}'),
        (schema(PERSON), '{"name": "Ann", "age": 3}', '{"name":"Ann","age":3}'),
        (schema(PERSON, whitespace_pattern="[ ]?"), '{"name":"Ann" , "age":3}', '{"name":"Ann",  "age":3}'),
        (schema(PERSON, whitespace_pattern=""), '{"name":"Ann","age":3}', '{"name": "Ann", "age": 3}'),
        (schema(PERSON, whitespace_pattern=r"\n?[ ]*"), '{\n  "name": "Ann", "age": 3}', '{\t"name": "Ann", "age": 3}'),
        (schema({"$ref": "#/$defs/a", "$defs": {"a": {"enum": ["x", 1]}}}), '"x"', '"y"'),
        (source("regex", r"\d{4}/[a-z]+"), "2026/nov", "2026/Nov"),
        (source("lark", 'start: "a" | "b" "c"+'), "bcc", "ab"),
        (source("grammar", 'start: "a" | "b" "c"+'), "bcc", "ab"),
        (source("grammar", 'root ::= "a" | "b" [c-d]+'), "bdc", "ab"),
    ],
)
def test_an_accepted_grammar_is_followed(
    tokenizer: LLTokenizer, grammar: GrammarSource, right: str, wrong: str
) -> None:
    verdict = compile_grammar(grammar, tokenizer)
    assert accepts(verdict, tokenizer, right)
    assert not accepts(verdict, tokenizer, wrong)


TAGS = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}


@pytest.mark.parametrize(
    ("value", "place", "words"),
    [
        ({"type": "object", "properties": {"tags": TAGS}}, ".properties.tags", '"uniqueItems"'),
        ({"type": "array", "items": {"anyOf": [{"type": "null"}, TAGS]}}, ".items.anyOf[1]", '"uniqueItems"'),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"format": "colour", "type": "string"}}}, ".$defs.a", "colour"),
        ({"properties": {"a": {"type": "text"}}}, ".properties.a", "Invalid type: text"),
        ({"properties": {"a": {"type": "string", "pattern": "a(?=b)"}}}, ".properties.a", "look-around"),
        ({"type": "integer", "minimum": 3, "maximum": 1}, "", "minimum (3) is greater than maximum (1)"),
        ({"$ref": "#/$defs/missing"}, "", "does not exist"),
        ({"$ref": "https://example.com/schema.json"}, "", "does not fetch"),
        ({"$ref": "#"}, "", "no text matches it"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "", "no text"),
        ({"enum": []}, "", "empty"),
        ({"type": "object", "x-guidance": {"key_separator": "="}}, "", "x-guidance is not supported"),
        ({"properties": {"a": {"x-guidance": {}, "uniqueItems": True}}}, "", '"uniqueItems"'),
        ({"properties": []}, "", "properties"),
        ({"prefixItems": 5}, "", "prefixItems"),
        ({"anyOf": None}, "", "anyOf"),
        ({"items": [], "anyOf": 5}, "", "array"),
        ({"$defs": [1], "uniqueItems": True}, "", '"uniqueItems"'),
        ({"patternProperties": [1]}, "", "patternProperties"),
    ],
)
def test_a_refused_schema_says_where_and_why(tokenizer: LLTokenizer, value: Any, place: str, words: str) -> None:
    verdict = compile_grammar(schema(value), tokenizer)
    assert isinstance(verdict, GrammarRefused)
    assert words in verdict.message
    assert verdict.place == place


@pytest.mark.parametrize(
    ("field", "place", "words"),
    [
        ({"type": "string", "format": "zz"}, ".properties.a", "Unknown format: zz"),
        (TAGS, ".properties.a", 'keywords that are not supported: "uniqueItems"'),
        ({"type": "string", "pattern": "a(?=b)"}, ".properties.a", "regex parse error: look-around, including"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "", "Unsatisfiable schema: required"),
    ],
)
def test_a_schema_in_a_grammar_of_the_servers_is_named_and_nothing_else_shown(
    tokenizer: LLTokenizer, field: Any, place: str, words: str
) -> None:
    tools = [{"type": "object", "properties": {"a": part}, "required": ["a"]} for part in ({"type": "null"}, field)]
    rules = [f"args_{at}: %json {json.dumps({**tool, 'x-guidance': {}})}" for at, tool in enumerate(tools)]
    text = "\n".join(['start: "x" (args_0 | args_1)', *rules])
    schemas = {"args_0": "tools[0].p", "args_1": "tools[1].p"}
    verdict = compile_grammar(GrammarSource(kind="lark", text=text, param="tools", schemas=schemas), tokenizer)
    assert isinstance(verdict, GrammarRefused)
    assert (verdict.param, verdict.place) == ("tools[1].p", place)
    assert verdict.message.startswith(words)
    assert "args" not in verdict.message


def test_a_clients_grammar_is_not_shown_to_it(tokenizer: LLTokenizer) -> None:
    verdict = compile_grammar(source("lark", 'start: a\na: missing\nb: "b"'), tokenizer)
    assert isinstance(verdict, GrammarRefused)
    assert "\n" not in verdict.message


def test_a_lenient_schema_warns_of_what_it_leaves_out(tokenizer: LLTokenizer) -> None:
    verdict = compile_grammar(schema(TAGS, lenient=True), tokenizer)
    assert accepts(verdict, tokenizer, '["a", "a"]')
    assert isinstance(verdict, GrammarAccepted)
    assert verdict.warnings == ('keywords that are not supported: "uniqueItems"',)


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("json_schema", "[" * 2000 + "]" * 2000, "nested"),
        ("json_schema", "3", "object"),
        ("regex", "a(b", "unclosed group"),
        ("regex", r"(a)\1", "backreference"),
        ("lark", "start: b", "unknown name"),
        ("lark", "", "Empty grammar"),
        ("grammar", 'root ::= ("a"', "Expected ')'"),
        ("grammar", 'root ::= "\\', "ends too early"),
        ("grammar", "root ::= a", "Rule 'a' not found"),
        ("grammar", "root ::= " + "(" * 900 + '"a"' + ")" * 900, "nested"),
    ],
)
def test_other_grammars_are_refused_in_words(tokenizer: LLTokenizer, kind: Any, text: str, words: str) -> None:
    verdict = compile_grammar(source(kind, text), tokenizer)
    assert isinstance(verdict, GrammarRefused)
    assert words in verdict.message
    assert len(verdict.message) <= 500


def test_no_part_of_a_refusal_is_longer_than_500_characters(tokenizer: LLTokenizer) -> None:
    long = "k" * 2000
    verdict = compile_grammar(schema({"properties": {long: {"uniqueItems": True}}}), tokenizer)
    assert isinstance(verdict, GrammarRefused)
    assert len(verdict.message) <= 500
    assert verdict.place == f".properties.{long}"[:500]
