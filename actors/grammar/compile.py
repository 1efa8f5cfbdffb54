"""Compiles one grammar, or says in plain words why not. It runs in the compiler's process (compiler_process.py).

An adversarial grammar may take any time or memory here; that process has limits for both.
"""

import json
import re
from collections.abc import Callable, Iterator
from time import process_time
from typing import Any, Final, assert_never, cast

import msgspec
from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from ...models.checkpoint.grammar import LIMITS
from ...protocol.grammars import GrammarAccepted, GrammarRefused, GrammarSource, spacing_of

Json = dict[str, Any]  # Any: JSON values

_OWN_OPTIONS: Final = "x-guidance"
_UNKNOWN_KEYWORDS: Final = re.compile(r"Unimplemented keys: \[(.*)\]")
_IN_SCHEMA: Final = re.compile(r"at (\d+)\(\d+\): failed to compile JSON schema: ")
_MAX_MESSAGE: Final = 500  # characters
_PLACE_SECONDS: Final = 0.3  # of CPU time to find where in a schema an error is
_DEFINITIONS: Final = ("$defs", "definitions")
_SCHEMAS_BY_NAME: Final = (*_DEFINITIONS, "properties", "patternProperties")
_SCHEMA_LISTS: Final = ("prefixItems", "anyOf", "oneOf", "allOf")
_SCHEMAS: Final = ("items", "additionalProperties", "not")


def compile_grammar(
    source: GrammarSource, tokenizer: LLTokenizer, in_use: Callable[[], int] = lambda: 0
) -> GrammarAccepted | GrammarRefused:
    """What the worker may compile and follow, as text. Its first mask has been computed.

    `in_use`: bytes of memory that this process has allocated.
    """
    try:
        grammar = _grammar_text(source)
    except RecursionError:
        return GrammarRefused(message="it is nested too deeply")
    except MemoryError:  # the process ends: it has a limit
        raise
    except IndexError:  # so the reader of GBNF says it
        return GrammarRefused(message="it ends too early")
    except Exception as error:  # the reader of GBNF raises plain ones
        return GrammarRefused(message=_plain(str(error)))
    before = in_use()
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
    if problem := matcher.get_error():
        return _refusal(problem, source)
    memory, warnings = in_use() - before, tuple(map(_plain, matcher.get_grammar_warnings()))
    return GrammarAccepted(grammar=grammar, memory=max(memory, 0), warnings=warnings)


def _grammar_text(source: GrammarSource) -> str:
    """Raises ValueError, and for GBNF any Exception."""
    match source.kind:
        case "json_schema":
            return _schema_text(msgspec.json.decode(source.text), source)
        case "regex":
            return LLMatcher.grammar_from_regex(source.text)
        case "lark":
            return LLMatcher.grammar_from_lark(source.text)
        case "grammar":
            return LLMatcher.grammar_from_lark(any_to_lark(source.text))
        case _:
            assert_never(source.kind)


def _schema_text(schema: Any, source: GrammarSource) -> str:  # Any: a JSON value
    if isinstance(schema, dict) and _OWN_OPTIONS in schema:
        raise ValueError(f"{_OWN_OPTIONS} is not supported; leave it out")
    options: Any = {**spacing_of(source.whitespace_pattern), "lenient": source.lenient}
    return LLMatcher.grammar_from_json_schema(msgspec.json.encode(schema).decode(), overrides=options)


def _refusal(problem: str, source: GrammarSource) -> GrammarRefused:
    """In a schema of the client's, with the field that it came in; the grammar around it is the server's."""
    param = ""
    if source.schemas and (found := _IN_SCHEMA.match(problem)):
        rule, _, text = source.text.split("\n")[int(found[1]) - 1].partition(": %json ")
        if rule in source.schemas:
            schema: Json = msgspec.json.decode(text)
            options: Json = schema.pop(_OWN_OPTIONS, {})
            param, lenient = source.schemas[rule], options.get("lenient", False)
            source = GrammarSource(kind="json_schema", text=json.dumps(schema), param=param, lenient=lenient)
            problem = LLMatcher.validate_grammar(_schema_text(schema, source), limits=LIMITS) or problem
    place = _place_of(problem, source)[:_MAX_MESSAGE]
    return GrammarRefused(message=_plain(problem), param=param, place=place)


def _place_of(problem: str, source: GrammarSource) -> str:
    """Where in a schema the problem is: the path of the smallest part that has the same one."""
    if source.kind != "json_schema":
        return ""
    end = process_time() + _PLACE_SECONDS
    root: Json = msgspec.json.decode(source.text)
    definitions = {name: root[name] for name in _DEFINITIONS if name in root}
    path, parts = "", _parts(root)
    while (found := next(parts, None)) and process_time() < end:
        step, part = found
        if _OWN_OPTIONS in part:
            continue
        if problem == LLMatcher.validate_grammar(_schema_text({**definitions, **part}, source), limits=LIMITS):
            path, parts = path + step, _parts(part)
    return path


def _parts(schema: Json) -> Iterator[tuple[str, Json]]:
    """The schemas directly inside one, with their paths. What is no schema, or true or false, is left out."""
    inside: list[tuple[str, object]] = [(f".{keyword}", schema.get(keyword)) for keyword in _SCHEMAS]
    for keyword in _SCHEMAS_BY_NAME:
        named: object = schema.get(keyword)
        if isinstance(named, dict):
            inside += [(f".{keyword}.{name}", part) for name, part in cast("Json", named).items()]
    for keyword in _SCHEMA_LISTS:
        listed: object = schema.get(keyword)
        if isinstance(listed, list):
            inside += [(f".{keyword}[{at}]", part) for at, part in enumerate(cast("list[object]", listed))]
    return ((path, cast("Json", part)) for path, part in inside if isinstance(part, dict))


def _plain(message: str) -> str:
    """A message of llguidance as one of ours: without its drawings of the place in a grammar or regex, and bounded."""
    if unknown := _UNKNOWN_KEYWORDS.search(message):
        return f"keywords that are not supported: {unknown[1]}"[:_MAX_MESSAGE]
    if message.startswith("NoExtension"):
        return "no text matches it"
    message = message.removesuffix("<non-verbose/>")
    first, _, reason = message.partition("\nerror: ")
    lines = [part.strip().partition("\n")[0] for part in (first, reason)]
    return " ".join(filter(None, lines))[:_MAX_MESSAGE]
