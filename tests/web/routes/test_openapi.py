"""The document at /openapi.json: complete, valid JSON Schema, and true of what the server accepts."""

import json
from typing import Any, cast

import msgspec
import pytest
from jsonschema_rs import Draft202012Validator, meta  # comes with schemathesis

from triolet.protocol.errors import ApiError
from triolet.protocol.openai_requests import ChatBody, CompletionBody
from triolet.protocol.stream_frames import ErrorFrame, StartedFrame, TokenFrame
from triolet.web.openai.decode import decode, refuse_unsupported
from triolet.web.openai.dialect import CHAT
from triolet.web.openai.formats import grammar_source
from triolet.web.routes.openapi import describe

DOCUMENT: dict[str, Any] = json.loads(msgspec.json.encode(describe()))
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]


def objects(node: Any) -> list[dict[str, Any]]:  # Any: JSON
    """`node` and everything in it that is a JSON object."""
    match node:
        case dict():
            fields = cast("dict[str, Any]", node)
            return [fields, *(found for value in fields.values() for found in objects(value))]
        case [*values]:
            return [found for value in values for found in objects(value)]
        case _:
            return []


def test_every_reference_leads_somewhere() -> None:
    names = {node["$ref"].removeprefix("#/components/schemas/") for node in objects(DOCUMENT) if "$ref" in node}
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
    ({"response_format": {"type": "json_object"}}, True),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}}, True),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}}, False),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": 3}}}, False),
    ({"response_format": {"type": "xml"}}, False),
    ({"structured_outputs": {"choice": ["a", "b"]}}, True),
    ({"structured_outputs": {"choice": []}}, False),
    ({"guided_json": "{}"}, True),
    ({"guided_json": 3}, False),
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
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}, True),
    ({"messages": [{"role": "user", "content": [{"text": "Hi"}]}]}, False),
    ({"messages": [{"role": "assistant", "content": [{"text": "Hi"}]}]}, False),
    ({"modalities": ["text"]}, True),
    ({"modalities": ["text", "audio"]}, False),
    ({"typical_p": 1.0}, True),
    ({"typical_p": 0.9}, False),
    ({"echo": False}, True),
    ({"echo": True}, False),
    ({"tool_choice": "auto"}, True),
    ({"tool_choice": "required"}, True),
    ({"tool_choice": "any"}, False),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, True),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}, True),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, False),
    ({"thinking": {"type": "enabled", "budget_tokens": 100}}, True),
    ({"thinking": {"type": "on"}}, False),
    ({"chat_template_kwargs": {"enable_thinking": False}}, True),
]


@pytest.mark.parametrize(
    ("fields", "valid"),
    FIELDS,
)
def test_the_schema_says_what_the_validator_does(fields: dict[str, object], valid: bool) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}]} | fields
    assert validator("ChatBody").is_valid(body) is valid
    assert accepts(body) is valid or "seed" in fields  # web/openai/request.py checks it


def accepts(body: dict[str, object]) -> bool:
    try:
        decoded = decode(msgspec.json.encode(body), CHAT.decoder)
        refuse_unsupported(decoded)
        grammar_source(decoded)
    except ApiError:
        return False
    return True


def test_every_field_of_a_body_is_described_that_may_have_a_value() -> None:
    for body in (ChatBody, CompletionBody):
        (_,), written = msgspec.json.schema_components((body,))
        fields = cast("dict[str, Any]", written[body.__name__]["properties"])
        only_null = {name for name, field in fields.items() if field.get("type") == "null"}
        assert set(SCHEMAS[body.__name__]["properties"]) == set(fields) - only_null
        assert "logits_processors" not in only_null
        assert only_null
        assert SCHEMAS[body.__name__]["additionalProperties"] is False


def test_generators_of_clients_understand_every_schema() -> None:
    for name, schema in SCHEMAS.items():
        for node in objects(schema):
            properties = cast("dict[str, Any]", node.get("properties", {}))
            assert not [field for field, its in properties.items() if "default" in its or its.get("type") == "null"], (
                name
            )
            assert "enum" not in node or node.get("type") == "string" or "properties" in node, (name, node)
            if node.get("type") == "object":
                assert {"properties", "additionalProperties"} & set(node), (name, node)


def test_fields_that_answers_always_have_are_required() -> None:
    assert set(SCHEMAS["ChatChunkChoice"]["required"]) == {"index", "delta", "logprobs", "finish_reason"}
    assert set(SCHEMAS["ErrorDetail"]["required"]) == {"message", "type", "param", "code"}
    assert {"object", "usage"} <= set(SCHEMAS["ChatCompletion"]["required"])


def test_every_operation_has_a_name_of_its_own() -> None:
    names = [operation["operationId"] for path in DOCUMENT["paths"].values() for operation in path.values()]
    assert all(name.isidentifier() for name in names)
    assert len(names) == len(set(names))
    assert DOCUMENT["info"]["license"]["identifier"] == "Apache-2.0"


def test_every_path_lists_its_errors() -> None:
    for operations in DOCUMENT["paths"].values():
        for operation in operations.values():
            success = "101" if operation["operationId"].startswith("open_") else "200"
            assert {success, "400", "401", "404", "413", "429", "503"} <= set(operation["responses"])


FRAMES: list[tuple[str, object, bool]] = [
    ("ClientFrame", {"type": "create", "id": "a", "request": {"messages": [{"role": "user", "content": "Hi"}]}}, True),
    ("ClientFrame", {"type": "create", "id": "a", "request": {"prompt": "Hi"}}, True),
    ("ClientFrame", {"type": "create", "id": "a", "request": {"prompt": 5.5}}, False),
    ("ClientFrame", {"type": "resume", "id": "a", "resume": "token"}, True),
    ("ClientFrame", {"type": "credit", "id": "a"}, False),
    ("ClientFrame", {"type": "finished", "id": "a"}, False),
    ("ServerFrame", StartedFrame(id="a", seq=0, model="m", request_id="r"), True),
    ("ServerFrame", TokenFrame(id="a", seq=1, index=0, kind="text", text="Hi", tokens=1), True),
    ("ServerFrame", ErrorFrame(error=ApiError("not_found", "Nothing is here.").detail()), True),
    ("ServerFrame", {"type": "token", "id": "a"}, False),
]


@pytest.mark.parametrize(("name", "frame", "valid"), FRAMES)
def test_frames_of_the_websocket_are_described(name: str, frame: object, valid: bool) -> None:
    assert validator(name).is_valid(json.loads(msgspec.json.encode(frame))) is valid
