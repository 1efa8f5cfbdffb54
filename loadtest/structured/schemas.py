"""Random JSON schemas: nested objects, arrays, unions, references, enums, patterns and bounds. Pure.

Every schema can be satisfied, and asks only for what a grammar can enforce: no keyword here that a strict request
refuses, and no format whose real rule is more than a pattern (the 31st of February is a date by its pattern).
"""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final, cast

Schema = dict[str, Any]  # Any: JSON values

MAX_DEPTH: Final = 3
_WORDS: Final = ("name", "age", "tags", "größe", "is_open", "a b", "x-y", 'say "hi"', "items", "type", "$ref", "")
_PATTERNS: Final = (
    *("^[a-z]{2,5}$", "[0-9]+", "^(ab|cd)*$", r"^\d{3}-\d{4}$", r"^[^@]+@example\.(com|org)$", "^.{1,3}$"),
    *("^[A-Z][a-z]* [A-Z][a-z]*$", r"^(\+49)?[1-9][0-9]{1,5}$", "x.*y", "^(0|[1-9][0-9]*)$"),
)
_FORMATS: Final = ("uuid", "ipv4", "email")


def random_schema(random: Random) -> Schema:
    """One schema, an object as a rule; its definitions are in `$defs`."""
    definitions: dict[str, Schema] = {}
    if random.random() < 0.3:
        definitions["leaf"] = _scalar(random)
    if random.random() < 0.2:
        children: Schema = {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}
        definitions["node"] = _object({"value": _scalar(random), "children": children}, ["value"], closed=True)
    names = [*definitions]
    schema = _object_of(random, 0, names) if random.random() < 0.8 else _any(random, 0, names)
    return {**schema, "$defs": definitions} if definitions else schema


def keywords(schema: object) -> Iterator[str]:
    """The keywords of a schema and of those inside it."""
    if isinstance(schema, list):
        for part in cast("list[object]", schema):
            yield from keywords(part)
    elif isinstance(schema, dict):
        for name, value in cast("Schema", schema).items():
            yield name
            if name in ("properties", "$defs"):
                for part in value.values():
                    yield from keywords(part)
            elif name not in ("enum", "const", "required", "type"):
                yield from keywords(value)


def _any(random: Random, depth: int, names: list[str]) -> Schema:
    if names and random.random() < 0.25:
        return {"$ref": f"#/$defs/{random.choice(names)}"}
    if depth >= MAX_DEPTH or random.random() < 0.5:
        return _scalar(random)
    makers: tuple[Callable[[Random, int, list[str]], Schema], ...] = (_object_of, _object_of, _array, _tuple, _union)
    return random.choice(makers)(random, depth + 1, names)


def _scalar(random: Random) -> Schema:
    return random.choice((_string, _string, _integer, _number, _fixed, _short))(random)


def _short(random: Random) -> Schema:
    return {"type": random.choice(("boolean", "null", ["boolean", "null"], ["integer", "null"]))}


def _string(random: Random) -> Schema:
    schema: Schema = {"type": "string"}
    match random.randrange(4):
        case 0:
            schema["pattern"] = random.choice(_PATTERNS)
        case 1:
            schema["format"] = random.choice(_FORMATS)
        case _:
            shortest = random.choice((0, 0, 1, 5))
            schema |= {"minLength": shortest, "maxLength": shortest + random.choice((0, 1, 10, 40))}
    return schema


def _integer(random: Random) -> Schema:
    low = random.choice((-1000, -1, 0, 1, 7))
    high = low + random.choice((1, 9, 100, 12345))
    bounds = (
        {"minimum": low, "maximum": high},
        {"exclusiveMinimum": low, "maximum": high},
        {"minimum": low, "maximum": high, "multipleOf": 1},
        {"minimum": 0, "maximum": 100, "multipleOf": random.choice((2, 5, 7))},
    )
    return {"type": "integer", **random.choice(bounds)}


def _number(random: Random) -> Schema:
    low = random.choice((-2.5, -1, 0, 0.125))
    return {"type": "number", "minimum": low, random.choice(("maximum", "exclusiveMaximum")): low + 10.5}


def _fixed(random: Random) -> Schema:
    values: list[object] = ["red", "grün", 'a "quote"', "\n", 0, -1.5, True, None, [1, "x"], {"a": None}]
    if random.random() < 0.3:
        return {"const": random.choice(values)}
    return {"enum": random.sample(values, random.randrange(1, 6))}


def _object_of(random: Random, depth: int, names: list[str]) -> Schema:
    fields = random.sample(_WORDS, random.randrange(1, 5))
    properties = {name: _any(random, depth, names) for name in fields}
    required = [name for name in fields if random.random() < 0.7]
    schema = _object(properties, required, closed=random.random() < 0.7)
    if "additionalProperties" not in schema and random.random() < 0.5:
        schema["additionalProperties"] = _short(random)
    return schema


def _object(properties: dict[str, Schema], required: list[str], *, closed: bool) -> Schema:
    schema: Schema = {"type": "object", "properties": properties, "required": required}
    return {**schema, "additionalProperties": False} if closed else schema


def _array(random: Random, depth: int, names: list[str]) -> Schema:
    least = random.choice((0, 0, 1, 2))
    items = _any(random, depth, names)
    return {"type": "array", "items": items, "minItems": least, "maxItems": least + random.randrange(4)}


def _tuple(random: Random, depth: int, names: list[str]) -> Schema:
    places = [_any(random, depth, names) for _ in range(random.randrange(1, 4))]
    return {"type": "array", "prefixItems": places, "items": False, "minItems": len(places)}


def _union(random: Random, depth: int, names: list[str]) -> Schema:
    if random.random() < 0.5:  # only one of them can hold
        return {"oneOf": [_string(random), _integer(random), {"type": "null"}]}
    return {"anyOf": [_any(random, depth, names) for _ in range(random.randrange(2, 4))]}
