"""The document at /openapi.json: complete, valid JSON Schema, and true of what the server accepts."""

import json
from typing import Any, cast

import msgspec
import pytest
from jsonschema_rs import Draft202012Validator, meta  # comes with schemathesis

from triolet.protocol.openai_requests import ChatBody, CompletionBody
from triolet.web.routes.openapi import describe

DOCUMENT: dict[str, Any] = json.loads(msgspec.json.encode(describe()))
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]


def test_every_reference_leads_somewhere() -> None:
    def references(node: Any) -> list[str]:  # Any: JSON
        match node:
            case dict():
                fields = cast("dict[str, Any]", node)
                own = [fields["$ref"]] if isinstance(fields.get("$ref"), str) else []
                return own + [found for value in fields.values() for found in references(value)]
            case [*values]:
                return [found for value in values for found in references(value)]
            case _:
                return []

    names = {reference.removeprefix("#/components/schemas/") for reference in references(DOCUMENT)}
    assert names <= set(SCHEMAS)


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_every_schema_is_one(name: str) -> None:
    meta.validate(SCHEMAS[name] | {"$schema": "https://json-schema.org/draft/2020-12/schema"})


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]})


FIELDS: list[tuple[dict[str, object], bool]] = [
    ({}, True),
    ({"tools": None}, True),
    ({"tools": []}, True),
    ({"tools": [{}]}, False),
    ({"response_format": {"type": "text"}}, True),
    ({"response_format": {"type": "json_object"}}, False),
    ({"temperature": 2}, True),
    ({"temperature": 2.1}, False),
    ({"n": 0}, False),
    ({"seed": 2**64 - 1}, True),
    ({"seed": 2**64}, False),
    ({"cache_salt": "a/b"}, False),
    ({"determinism": "strict"}, True),
    ({"determinism": None}, True),
    ({"determinism": "fast"}, False),
    ({"unknown": 1}, False),
    ({"messages": []}, False),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, False),
]


@pytest.mark.parametrize(
    ("fields", "valid"),
    FIELDS,
)
def test_the_schema_says_what_the_validator_does(fields: dict[str, object], valid: bool) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}]} | fields
    assert validator("ChatBody").is_valid(body) is valid


def test_every_field_of_a_body_is_described() -> None:
    for body in (ChatBody, CompletionBody):
        assert set(SCHEMAS[body.__name__]["properties"]) == {field.name for field in msgspec.structs.fields(body)}
        assert SCHEMAS[body.__name__]["additionalProperties"] is False


def test_every_path_lists_its_errors() -> None:
    for path in DOCUMENT["paths"].values():
        for operation in path.values():
            assert {"200", "400", "401", "404", "413", "429", "503"} <= set(operation["responses"])
