"""Decodes a client's JSON to a Struct, or raises an ApiError that names the field. No other module decodes their JSON.

It handles everything that msgspec can raise on outside input: malformed JSON, invalid UTF-8 (a UnicodeDecodeError), too
deep nesting (a RecursionError), wrong types and violated bounds. All other code sees valid Structs.
`refuse_unsupported` refuses parameters that are declared but not implemented, unless their value asks for nothing.
"""

import re
from functools import cache
from typing import Annotated, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Raw, Struct, UnsetType

from ...protocol.errors import ApiError, ErrorCode
from ...protocol.openai_tools import ReasoningEffort, ToolChoiceWord
from ...protocol.requests import Determinism
from ..exchange import TIMEOUT_HEADER

T = TypeVar("T")

MAX_QUOTED = 200  # characters of the client's own text that an error message repeats
MAX_NEUTRAL_BYTES = 256  # the longest neutral value is `{"type": "text"}`; anything longer is not decoded

_PLACE = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>.*)`$", re.DOTALL)
_FLOAT_FOR_INT = re.compile(r"^Expected `int.*, got `float`")
_WHOLE_FLOAT = re.compile(rb"(-?[0-9]{1,18})\.0+")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*)`$", re.DOTALL)
_PART_TYPE = re.compile(r"^messages\[\d+\]\.content\[\d+\]\.type$")
_MEDIA_PARTS = ("image_url", "input_audio", "audio_url", "video_url", "file", "refusal", "image", "document")

# Parameters with one code for every violation.
_CODE_OF_PARAM: dict[str, ErrorCode] = {
    "seed": "invalid_value",
    "top_k": "invalid_value",
    "cache_salt": "invalid_cache_salt",
    "stop": "invalid_stop",
    "stop_token_ids": "invalid_token_id",
    "tokens": "invalid_token_id",
}

# Parameters that accept only a few words. msgspec does not list these in its errors.
_WORDS_OF_PARAM: dict[str, tuple[str, ...]] = {
    "determinism": get_args(Determinism),
    "response_format.type": ("text", "json_object", "json_schema"),
    "reasoning_effort": get_args(ReasoningEffort),
    "tool_choice": get_args(ToolChoiceWord),
    "truncation_side": ("left", "right"),
}


# What llama.cpp, Ollama, TGI and SGLang call parameters of OpenAI's and vLLM's names.
_SAME_AS = {
    "max_new_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "stop_sequences": "stop",
    "timeout": f"the header {TIMEOUT_HEADER}",
}


class Neutral(NamedTuple):
    """The values of an unsupported parameter that ask for nothing, and what to send instead of others."""

    values: tuple[object, ...]
    instead: str


def decode(data: bytes | str | msgspec.Raw, decoder: "msgspec.json.Decoder[T]") -> T:
    """The body as `decoder`'s type. Raises ApiError (400) with the field's dotted path as `param`."""
    try:
        try:
            return decoder.decode(data)
        except msgspec.ValidationError as error:
            if not _FLOAT_FOR_INT.match(str(error)) and not _UNKNOWN.match(_PLACE.sub("", str(error))):
                raise
            return decoder.decode(_restated(data))
    except msgspec.ValidationError as error:
        raise _invalid_field(str(error)) from None
    except msgspec.DecodeError as error:
        raise ApiError("invalid_json", f"The body is not valid JSON: {error}.") from None
    except UnicodeDecodeError:
        raise ApiError("invalid_json", "The body is not valid UTF-8.") from None
    except RecursionError:
        raise ApiError("invalid_json", "The body is nested too deeply.") from None


def _restated(data: bytes | str | Raw) -> bytes:
    """The same body as other clients write it: without nulls, which mean "not given", and with `16` for `16.0`.

    Both only in the body itself; nulls also in the messages, where clients send every field that their library knows.
    """
    body = _without_nulls(msgspec.json.decode(data, type=dict[str, Raw]))
    for name, value in body.items():
        if whole := _WHOLE_FLOAT.fullmatch(memoryview(value)):
            body[name] = Raw(whole[1])
    if _head(body.get("messages", Raw())).startswith(b"["):
        turns = msgspec.json.decode(body["messages"], type=list[dict[str, Raw]])
        body["messages"] = Raw(msgspec.json.encode([_without_nulls(turn) for turn in turns]))
    return msgspec.json.encode(body)


def _without_nulls(fields: dict[str, Raw]) -> dict[str, Raw]:
    return {name: value for name, value in fields.items() if _head(value) != b"null"}


def _head(value: Raw) -> bytes:
    """The first five bytes: enough to tell `null`, and megabytes are not copied."""
    return bytes(memoryview(value)[:5])


def _invalid_field(text: str) -> ApiError:
    place = _PLACE.search(text)
    problem = text[: place.start()] if place else text
    path = place["path"] if place else ""
    unknown, missing = _UNKNOWN.match(problem), _MISSING.match(problem)
    if unknown:
        known = _SAME_AS.get(unknown["name"])
        remedy = f"; send {known}" if known else ""
        return _refusal("unknown_parameter", f"Unknown parameter: {{param}}{remedy}.", _join(path, unknown["name"]))
    if missing:
        param = _join(path, missing["name"])
        code: ErrorCode = "invalid_messages" if param.endswith("tool_call_id") else "invalid_value"
        return _refusal(code, "Missing required parameter: {param}.", param)
    if not path:
        return ApiError("invalid_json", f"The body must be a JSON object. {problem}.")
    if _PART_TYPE.match(path) and problem.endswith(tuple(f"'{name}'" for name in _MEDIA_PARTS)):
        return _refusal("unsupported_parameter", "{param}: only text content is supported.", path)
    remedy = f"; send {' or '.join(_WORDS_OF_PARAM[path])}" if path in _WORDS_OF_PARAM else ""
    if problem.startswith("Expected `str` matching regex") and path == "response_format.json_schema.name":
        problem, remedy = "is not a name", "; send 1 to 64 letters, digits, _ or -"
    elif problem.startswith("Expected `str` matching regex") and path.startswith(("tools[", "tool_choice")):
        problem, remedy = "is not a name", "; send 1 to 128 letters, digits, _, . or -"
    elif problem.startswith("Expected `str` matching regex") and path.endswith(".name"):
        problem, remedy = "is not a name", "; send 1 to 128 characters without spaces and without < | \\ /"
    message = f"{path[:MAX_QUOTED]}: {problem[:MAX_QUOTED]}{remedy}."
    return ApiError(_code(problem, path), message, param=path[:MAX_QUOTED])


def _code(problem: str, path: str) -> ErrorCode:
    root = re.split(r"[.\[]", path, maxsplit=1)[0]
    if root in _CODE_OF_PARAM:
        return _CODE_OF_PARAM[root]
    if path.startswith("prompt[") or (root == "logit_bias" and problem.startswith("Expected `int`")):
        return "invalid_token_id"
    if path == "messages" and " of length " in problem:
        return "invalid_messages"
    if root == "messages" and path.endswith((".name", ".tool_call_id")):
        return "invalid_messages"
    if problem.startswith(
        ("Expected `int` <", "Expected `int` >", "Integer value out of range", "Number out of range")
    ):
        return "integer_out_of_range"
    if ", got `" in problem or problem == "Expected `str`":
        return "invalid_type"
    return "invalid_value"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _refusal(code: ErrorCode, message: str, param: str) -> ApiError:
    param = param[:MAX_QUOTED]
    return ApiError(code, message.format(param=param), param=param)


def refuse_unsupported(body: Struct, path: str = "") -> None:
    """Raises ApiError (400 unsupported_parameter) for the first unsupported parameter whose value is not neutral."""
    _refuse(body, neutral_values(type(body)), path)
    options: Struct | UnsetType | None = getattr(body, "stream_options", None)
    if isinstance(options, Struct):
        _refuse(options, neutral_values(type(options)), "stream_options.")


def _refuse(struct: Struct, neutral: dict[str, Neutral], path: str) -> None:
    for name, (values, instead) in neutral.items():
        raw: Raw | UnsetType = getattr(struct, name)
        if isinstance(raw, UnsetType) or _is_one_of(raw, values):
            continue
        accepted = " or ".join(msgspec.json.encode(value).decode() for value in values)
        problem = f"{path}{name} is not supported by this server; leave it out, or send {accepted}"
        raise ApiError(
            "unsupported_parameter", f"{problem}; {instead}." if instead else f"{problem}.", param=path + name
        )


def _is_one_of(raw: Raw, values: tuple[object, ...]) -> bool:
    data = bytes(memoryview(raw)[: MAX_NEUTRAL_BYTES + 1])
    if len(data) > MAX_NEUTRAL_BYTES:
        return False
    try:
        given: object = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    # `1 == True` in Python, but not in JSON.
    return any(given == value and isinstance(given, bool) == isinstance(value, bool) for value in values)


@cache
def neutral_values(body: type[Struct]) -> dict[str, Neutral]:
    """The fields of `body` that are declared `neutral(…)`."""
    found: dict[str, Neutral] = {}
    for name, hint in get_type_hints(body, include_extras=True).items():
        for member in get_args(hint):
            if get_origin(member) is Annotated and get_args(member)[0] is Raw:
                meta = get_args(member)[1]
                assert isinstance(meta, Meta), name
                if meta.extra is not None:  # otherwise it is a Hint
                    found[name] = Neutral(meta.extra["neutral"], meta.extra["instead"])
    return found
