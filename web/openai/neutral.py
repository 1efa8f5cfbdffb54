"""Refuses parameters that are declared in the dialect but not implemented, unless their value asks for nothing."""

from typing import Annotated, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Raw, Struct, UnsetType

from ...protocol.errors import ApiError
from ...protocol.openai_requests import ChatBody, CompletionBody, StreamOptions

MAX_NEUTRAL_BYTES = 256  # the longest neutral value is `{"type": "text"}`; what is longer is not decoded

BodyType = type[ChatBody] | type[CompletionBody] | type[StreamOptions]


def refuse_unsupported(body: ChatBody | CompletionBody) -> None:
    """Raises ApiError (400 unsupported_parameter) for the first unsupported parameter that asks for something."""
    _refuse(body, _NEUTRAL[type(body)], "")
    if body.stream_options is not None:
        _refuse(body.stream_options, _NEUTRAL[StreamOptions], "stream_options.")


def _refuse(struct: Struct, neutral: dict[str, tuple[object, ...]], path: str) -> None:
    for name, values in neutral.items():
        raw: Raw | UnsetType = getattr(struct, name)
        if isinstance(raw, UnsetType) or _is_one_of(raw, values):
            continue
        accepted = " or ".join(msgspec.json.encode(value).decode() for value in values)
        raise ApiError(
            "unsupported_parameter", f"{path}{name} is not supported by this server; leave it out, or send {accepted}.",
            param=path + name,
        )  # fmt: skip


def _is_one_of(raw: Raw, values: tuple[object, ...]) -> bool:
    data = bytes(memoryview(raw)[: MAX_NEUTRAL_BYTES + 1])
    if len(data) > MAX_NEUTRAL_BYTES:
        return False
    try:
        given: object = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    # `1 == True` in Python, not in JSON.
    return any(given == value and isinstance(given, bool) == isinstance(value, bool) for value in values)


def _neutral_values(body: BodyType) -> dict[str, tuple[object, ...]]:
    """The fields of `body` whose type is a bare JSON value, with the values that their declaration accepts."""
    found: dict[str, tuple[object, ...]] = {}
    for name, hint in get_type_hints(body, include_extras=True).items():
        for member in get_args(hint):
            if get_origin(member) is Annotated and get_args(member)[0] is Raw:
                meta = get_args(member)[1]
                assert isinstance(meta, Meta), name
                assert meta.extra_json_schema is not None, name
                found[name] = tuple(meta.extra_json_schema["enum"])
    return found


_NEUTRAL = {body: _neutral_values(body) for body in (ChatBody, CompletionBody, StreamOptions)}
