"""Random schemas: what the compiler accepts, and that whatever its masks allow is valid JSON of that schema."""

import json
from collections import Counter
from random import Random

import pytest
from llguidance import LLTokenizer

from triolet.loadtest.structured.answers import drawn, fits, outcome_of
from triolet.loadtest.structured.coverage import BUNDLED, Tried, counts_by_keyword, try_schema
from triolet.loadtest.structured.schemas import keywords, random_schema
from triolet.models.checkpoint.grammar import open_grammar_tokenizer

SEEDS = range(300)  # 1,000, and other schemas: python -m triolet.loadtest.structured.coverage


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    return open_grammar_tokenizer(str(BUNDLED), 2048, (0,))


def test_every_finished_answer_to_a_random_schema_fits(tokenizer: LLTokenizer) -> None:
    tried = [try_schema(seed, random_schema(Random(seed)), tokenizer, 0, None) for seed in SEEDS]
    assert [each for each in tried if each.outcome not in ("valid", "cut")] == []
    assert Counter(each.outcome for each in tried)["valid"] > len(SEEDS) * 0.7


def test_the_schemas_hold_what_they_promise() -> None:
    found = Counter(keyword for seed in SEEDS for keyword in set(keywords(random_schema(Random(seed)))))
    wanted = {
        *("properties", "required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems", "enum"),
        *("const", "pattern", "format", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum"),
        *("exclusiveMaximum", "multipleOf", "anyOf", "oneOf", "$ref", "$defs"),
    }
    assert wanted <= set(found)


def test_an_answer_to_another_schema_does_not_fit(tokenizer: LLTokenizer) -> None:
    """What the tests above rely on: a validator that accepted everything would find nothing."""
    schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]}
    assert fits('{"a": 3}', schema)
    assert not any(fits(text, schema) for text in ('{"a": 2}', '{"b": 3}', '{"a": 3', "3"))
    assert not fits('"1.2.3"', {"type": "string", "format": "ipv4"})
    grammar = json.dumps({"grammars": [{"json_schema": {"type": "string"}}]})
    assert outcome_of(lambda: drawn(grammar, tokenizer, Random(0)), schema)[0] == "invalid"
    with pytest.raises(ValueError, match="does not exist"):
        drawn(json.dumps({"grammars": [{"json_schema": {"$ref": "#/no"}}]}), tokenizer, Random(0))


def test_the_table_counts_by_keyword() -> None:
    tried = [
        Tried(0, {"type": "object", "properties": {"enum": {"const": 1}}}, 1.0, "valid", ""),
        Tried(1, {"anyOf": [{"type": "null"}, {"enum": [{"not": 1}]}]}, 1.0, "refused", ""),
    ]
    rows = {row[0]: row[1:] for row in counts_by_keyword(tried)}
    assert rows["all"] == ["2", "1", "0", "0", "0", "1"]
    assert rows["type"] == ["2", "1", "0", "0", "0", "1"]
    assert rows["const"] == ["1", "1", "0", "0", "0", "0"]
    assert rows["enum"] == ["1", "0", "0", "0", "0", "1"]
    assert "not" not in rows
