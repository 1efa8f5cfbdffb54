"""What the answer of a body must be, in any of its fields, as the one `GrammarSource` that the engine compiles."""

from collections.abc import Iterator
from typing import Final, Literal, TypeGuard

import msgspec
from msgspec import Raw, UnsetType

from ...protocol.errors import ApiError
from ...protocol.grammars import MAX_GRAMMAR_BYTES, GrammarSource
from ...protocol.openai_formats import (
    ResponseFormat,
    ResponseFormatJsonObject,
    ResponseFormatJsonSchema,
    StructuredOutputs,
)
from ...protocol.openai_requests import GenerateBody

ANY_OBJECT: Final = '{"type":"object"}'


def grammar_source(body: GenerateBody) -> GrammarSource | None:
    """None: the answer may be any text. Raises ApiError (400) for two forms at once, and for too large ones."""
    sources = [*_from_format(body.response_format), *_from_vllm(body.structured_outputs), *_from_older_names(body)]
    if len(sources) > 1:
        first, second = sources[0].param, sources[1].param
        message = f"{first} and {second} both say what the answer must be; send one of them."
        raise ApiError("invalid_value", message, param=second)
    for source in sources:
        size = len(source.text.encode())
        if size > MAX_GRAMMAR_BYTES:
            message = f"{source.param} has {size} bytes; at most {MAX_GRAMMAR_BYTES} are compiled."
            raise ApiError("invalid_grammar", message, param=source.param)
    return sources[0] if sources else None


def schema_source(
    schema: Raw, param: str, *, lenient: bool = False, whitespace_pattern: str | None = None
) -> GrammarSource:
    """Of a JSON schema, given as an object or as its text. Raises ApiError (400) for anything else."""
    try:
        text = bytes(schema).decode()
        if text.startswith('"'):
            text = msgspec.json.decode(text, type=str)
            msgspec.json.decode(text, type=Raw)
    except (UnicodeDecodeError, msgspec.DecodeError) as error:  # nobody has decoded it yet
        raise ApiError("invalid_json", f"{param} is not valid JSON: {error}.", param=param) from None
    except RecursionError:
        raise ApiError("invalid_json", f"{param} is nested too deeply.", param=param) from None
    if not text.lstrip().startswith("{"):
        raise ApiError("invalid_type", f"{param}: expected a JSON schema, which is an object.", param=param)
    return GrammarSource(
        kind="json_schema", text=text, param=param, lenient=lenient, whitespace_pattern=whitespace_pattern
    )


def _from_format(format: ResponseFormat | None) -> Iterator[GrammarSource]:
    match format:
        case ResponseFormatJsonSchema(json_schema=named):
            yield schema_source(named.schema, "response_format.json_schema.schema", lenient=not named.strict)
        case ResponseFormatJsonObject(schema=schema):
            if isinstance(schema, UnsetType):
                yield GrammarSource(kind="json_schema", text=ANY_OBJECT, param="response_format")
            else:
                yield schema_source(schema, "response_format.schema")
        case _:
            pass


def _from_vllm(asked: StructuredOutputs | None) -> Iterator[GrammarSource]:
    if asked is None:
        return
    param = "structured_outputs"
    spacing = "" if asked.disable_any_whitespace else asked.whitespace_pattern
    if _given(asked.json):
        yield schema_source(asked.json, f"{param}.json", whitespace_pattern=spacing)
    if asked.json_object:
        yield GrammarSource(
            kind="json_schema", text=ANY_OBJECT, param=f"{param}.json_object", whitespace_pattern=spacing
        )
    if spacing is not None and not _given(asked.json) and not asked.json_object:
        field = "disable_any_whitespace" if asked.disable_any_whitespace else "whitespace_pattern"
        message = f"{param}.{field} needs {param}.json or {param}.json_object."
        raise ApiError("invalid_value", message, param=f"{param}.{field}")
    yield from _texts(asked.regex, asked.choice, asked.grammar, f"{param}.")


def _from_older_names(body: GenerateBody) -> Iterator[GrammarSource]:
    if _given(body.guided_json):
        yield schema_source(body.guided_json, "guided_json")
    yield from _texts(body.guided_regex, body.guided_choice, body.guided_grammar, "guided_")
    if body.grammar:  # llama.cpp's clients send an empty one for none
        yield GrammarSource(kind="grammar", text=body.grammar, param="grammar")


def _texts(regex: str | None, choice: list[str] | None, grammar: str | None, prefix: str) -> Iterator[GrammarSource]:
    kinds: tuple[tuple[Literal["regex", "lark", "grammar"], str, str | None], ...] = (
        ("regex", "regex", regex),
        ("lark", "choice", None if choice is None else _one_of(choice)),
        ("grammar", "grammar", grammar),
    )
    for kind, name, text in kinds:
        if text is not None:
            yield GrammarSource(kind=kind, text=text, param=prefix + name)


def _one_of(choice: list[str]) -> str:
    """In Lark, whose strings are JSON's."""
    return "start: " + " | ".join(msgspec.json.encode(text).decode() for text in choice)


def _given(value: Raw | UnsetType) -> TypeGuard[Raw]:
    return not isinstance(value, UnsetType) and bytes(value) != b"null"
