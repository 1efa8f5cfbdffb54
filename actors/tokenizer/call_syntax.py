"""How model families write tool calls: the text between a call's markers in, function names and arguments out. Pure.

A reader gives None for what is no call: malformed, or of a function that does not exist. It never raises. Arguments
are returned as JSON text of an object, whatever form the family writes them in.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, NoReturn, cast

MAX_PYTHON: Final = 1 << 14  # characters; Python's parser needs much more time and memory than others


class Call(NamedTuple):
    name: str
    arguments: str  # JSON text of an object


Tools = Mapping[str, Mapping[str, Any]]  # Any: JSON. The schema of the arguments by the function's name
ReadCalls = Callable[[str, Tools], list[Call] | None]


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_JSON: Final = json.JSONDecoder(parse_constant=_refuse)
_BETWEEN: Final = re.compile(r"[\s,;]*")


def json_calls(body: str, tools: Tools) -> list[Call] | None:
    """`{"name": "f", "arguments": {…}}`, or several, in a list or one behind another."""
    try:
        return [_call(entry, tools) for entry in _entries(body)] or None
    except (ValueError, RecursionError):
        return None


def _entries(body: str) -> Iterator[object]:
    place = 0
    while (place := cast("re.Match[str]", _BETWEEN.match(body, place)).end()) < len(body):
        value, place = _JSON.raw_decode(body, place)
        yield from cast("list[object]", value) if isinstance(value, list) else [value]


def _call(entry: object, tools: Tools) -> Call:
    if not isinstance(entry, dict):
        raise ValueError("a call is an object")
    call = cast("dict[str, object]", entry)
    if isinstance(call.get("function"), dict):
        call = cast("dict[str, object]", call["function"])
    name = call.get("name", call.get("function"))
    return _made(name, call.get("arguments", call.get("parameters", {})), tools)


def _made(name: object, arguments: object, tools: Tools) -> Call:
    """Raises ValueError for an unknown function, and for arguments that are no object."""
    if not isinstance(name, str) or name not in tools:
        raise ValueError("no such function")
    if isinstance(arguments, str):  # JSON in JSON
        arguments = _JSON.decode(arguments)
    if not isinstance(arguments, dict):
        raise ValueError("arguments are an object")
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which only its escape can spell
        text = json.dumps(arguments, allow_nan=False)
    return Call(name, text)


def named_json(pattern: str) -> ReadCalls:
    """A reader of one call whose name stands before its arguments: `pattern` has the groups `name` and `arguments`."""
    whole = re.compile(pattern, re.DOTALL)

    def read(body: str, tools: Tools) -> list[Call] | None:
        found = whole.fullmatch(body)
        try:
            return [_made(found["name"].strip(), found["arguments"], tools)] if found else json_calls(body, tools)
        except (ValueError, RecursionError):
            return None

    return read


def tagged(function: str, parameter: str) -> ReadCalls:
    """A reader of tags: `function` has the groups `name` and `parameters`, `parameter` has `key` and `value`.

    Values are text; the function's schema tells which of them are JSON.
    """
    calls, pairs = re.compile(function, re.DOTALL), re.compile(parameter, re.DOTALL)

    def read(body: str, tools: Tools) -> list[Call] | None:
        if calls.sub("", body).strip():
            return None
        try:
            return [_tagged_call(found, pairs, tools) for found in calls.finditer(body)] or None
        except (ValueError, RecursionError):
            return None

    return read


def _tagged_call(found: re.Match[str], pairs: re.Pattern[str], tools: Tools) -> Call:
    name = found["name"].strip()
    if pairs.sub("", found["parameters"]).strip():
        raise ValueError("text between the parameters")
    schemas = tools.get(name, {}).get("properties", {})
    given = {pair["key"].strip(): pair["value"] for pair in pairs.finditer(found["parameters"])}
    return _made(name, {key: _typed(value, schemas.get(key, {})) for key, value in given.items()}, tools)


def _typed(value: str, schema: object) -> object:
    """The value that a text means under the schema of its parameter."""
    kinds: object = cast("dict[str, object]", schema).get("type", "string") if isinstance(schema, dict) else "string"
    if isinstance(schema, dict) and "type" not in schema and ("anyOf" in schema or "enum" in schema):
        kinds = "any"
    if kinds == "string":
        return value
    try:
        return _JSON.decode(value.lower() if kinds == "boolean" else value)
    except ValueError:
        return value


def python_calls(body: str, tools: Tools) -> list[Call] | None:
    """`f(a=1)`, or a list of such calls; also inside `print(…)`. Also what `json_calls` reads."""
    if len(body) > MAX_PYTHON:
        return json_calls(body, tools)
    try:
        tree = ast.parse(body.strip(), mode="eval").body
        nodes = tree.elts if isinstance(tree, ast.List | ast.Tuple) else [tree]
        return [_python_call(node, tools) for node in nodes] or None
    except (SyntaxError, ValueError, RecursionError, MemoryError, TypeError):
        return json_calls(body, tools)


def _python_call(node: ast.expr, tools: Tools) -> Call:
    if not isinstance(node, ast.Call):
        raise ValueError("not a call")
    name = ast.unparse(node.func)
    if name == "print" and name not in tools and len(node.args) == 1:
        return _python_call(node.args[0], tools)
    if node.args:
        raise ValueError("arguments without a name")
    return _made(name, {word.arg: ast.literal_eval(word.value) for word in node.keywords if word.arg}, tools)


_FIRST_KEYS: Final = frozenset({"name", "type", "function", "arguments", "parameters", "id"})
_KEY: Final = re.compile(r'[\[\s]*\{\s*"(?P<key>[^"]*)"(?:\s*:\s*"(?P<value>[^"\\]*)")?')
_BEFORE_KEY: Final = re.compile(r'[\[\s]*(?:\{\s*(?:"[^"]*)?)?')
_PYTHON: Final = re.compile(r"\[\s*(?P<name>[\w.]*)(?P<rest>\(?)")


def may_be_json_call(body: str, tools: Tools) -> bool:
    """Whether a text that has no marker may become a call, judged by how it begins."""
    found = _KEY.match(body)
    if found is None:
        return _BEFORE_KEY.fullmatch(body) is not None
    return found["key"] in _FIRST_KEYS and (found["key"] != "name" or found["value"] is None or found["value"] in tools)


def may_be_python_call(body: str, tools: Tools) -> bool:
    """The same for a list of calls in Python."""
    found = _PYTHON.match(body)
    if found is None:
        return False
    return found["name"] in tools if found["rest"] else found.end() == len(body)
