"""Structured output: a finished answer has the form that was asked for. A cut one says `length`."""

import re
from typing import Any, Final

from .check import CheckGroup, NotOffered, expect
from .expectations import CHAT, ask_for, content, expect_error, parsed, question, streamed
from .server import ExaminedServer, RawReply

SCHEMA: Final = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
FORMAT: Final = {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA, "strict": True}}
QUESTION: Final = "Describe a pet as JSON with name, age and kind."


def _expect_pet(reply: RawReply, text: str) -> None:
    expect(reply.status == 200, reply.refusal)
    pet = parsed(text, "the answer")
    expect(set(pet) == {"name", "age", "kind"}, f"its fields are {pet!r:.80}")
    expect(isinstance(pet["name"], str) and len(pet["name"]) <= 12, f"name is {pet['name']!r}")
    expect(type(pet["age"]) is int and 0 <= pet["age"] <= 150, f"age is {pet['age']!r}")
    expect(pet["kind"] in ("cat", "dog"), f"kind is {pet['kind']!r}")


async def a_json_object(server: ExaminedServer) -> None:
    """json_object: the answer is a JSON object"""
    reply = await ask_for(server, CHAT, question(QUESTION, response_format={"type": "json_object"}, max_tokens=400))
    if reply["choices"][0]["finish_reason"] != "length":
        parsed(content(reply), "the answer")


async def a_schema_is_kept(server: ExaminedServer) -> None:
    """json_schema: the answer validates, at temperature 1 too"""
    body: dict[str, Any] = question(QUESTION, response_format=FORMAT, max_tokens=300)  # Any: JSON
    for temperature in (0, 1):
        reply = await ask_for(server, CHAT, body, temperature=temperature)
        _expect_pet(reply, content(reply))


async def a_schema_is_kept_in_a_stream(server: ExaminedServer) -> None:
    """json_schema, streamed"""
    reply = await ask_for(server, CHAT, question(QUESTION, response_format=FORMAT, max_tokens=300, stream=True))
    _expect_pet(reply, streamed(reply))


async def a_choice_is_kept(server: ExaminedServer) -> None:
    """structured_outputs.choice: one of the given texts"""
    reply = await ask_for(server, CHAT, question("Yes or no?", structured_outputs={"choice": ["maybe", "never"]}))
    expect(content(reply) in ("maybe", "never"), f"it is {content(reply)!r}")


async def an_expression_is_kept(server: ExaminedServer) -> None:
    """structured_outputs.regex: the whole answer matches"""
    reply = await ask_for(server, CHAT, question("A date, please.", structured_outputs={"regex": r"\d{4}-\d\d-\d\d"}))
    expect(re.fullmatch(r"\d{4}-\d\d-\d\d", content(reply)), f"it is {content(reply)!r}")


async def a_bad_schema_is_refused(server: ExaminedServer) -> None:
    """A schema that is none: 400"""
    if (await server.post(CHAT, question(QUESTION, response_format=FORMAT))).status != 200:
        raise NotOffered("no json_schema")
    broken = {"type": "json_schema", "json_schema": {"name": "pet", "schema": {"type": "no such type"}, "strict": True}}
    expect_error(await server.post(CHAT, question(QUESTION, response_format=broken)), 400, 422)


GROUP: Final = CheckGroup(
    "structured output",
    (
        a_json_object,
        a_schema_is_kept,
        a_schema_is_kept_in_a_stream,
        a_choice_is_kept,
        an_expression_is_kept,
        a_bad_schema_is_refused,
    ),
)
