"""The checkpoint's chat template: a conversation in, the model's prompt text out.

The template is a program from the model's folder and runs in jinja's sandbox; requests cannot bring one. What a
template refuses (an unknown role, a wrong order of turns) is the request's error, with the template's message.
"""

import json
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NoReturn, cast

import msgspec
from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ...protocol.errors import ApiError
from ...protocol.requests import ChatMessage, ChatPrompt, ToolCall
from ..errors import EngineLoadError

_PROBE: Final = ChatPrompt(messages=(ChatMessage(role="user", content="Hello"),))


class _Generation(Extension):
    """`{% generation %}` marks the assistant's turns for training masks; for serving, only its content matters."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as a plain set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja's own filter escapes HTML, which models never saw in training."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _call(call: ToolCall, place: str) -> dict[str, Any]:  # a template's variables are untyped by nature
    """A tool call for templates: its arguments as an object, not as JSON text."""
    try:
        arguments: object = json.loads(call.function.arguments or "{}")
    except ValueError:
        raise ApiError("invalid_messages", "arguments of a tool call are not JSON", param=place) from None
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": call.type, "function": function}


def _turn(message: ChatMessage, place: str) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.name is not msgspec.UNSET:
        turn["name"] = message.name
    if message.tool_call_id is not msgspec.UNSET:
        turn["tool_call_id"] = message.tool_call_id
    if message.tool_calls is not msgspec.UNSET:
        turn["tool_calls"] = [
            _call(call, f"{place}.tool_calls[{place_of_call}].function.arguments")
            for place_of_call, call in enumerate(message.tool_calls)
        ]
    return turn


class _Environment(ImmutableSandboxedEnvironment):
    """Looks up keys first, since turns are dictionaries: an attribute look-up would raise at every `message.role`."""

    def getattr(self, obj: Any, attribute: str) -> Any:  # Any: as jinja2 declares it
        if type(obj) is dict and attribute in obj and not hasattr(dict, attribute):
            return cast("dict[str, object]", obj)[attribute]
        return super().getattr(obj, attribute)


class ChatTemplate:
    """A compiled template and the special tokens that it may use."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
        environment.filters["tojson"] = _tojson
        names: dict[str, Any] = environment.globals  # Any: its type lists jinja2's own functions and no others
        names |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        self._template = environment.from_string(source)
        # Copied for every rendering: as jinja's chain of mappings this takes as long as all the rest.
        self._template.globals = dict(self._template.globals)
        self._special_tokens = special_tokens

    def render(self, prompt: ChatPrompt) -> str:
        """The prompt text of a conversation. Raises `ApiError` if the template refuses it."""
        turns = [_turn(message, f"messages[{place}]") for place, message in enumerate(prompt.messages)]
        try:
            return self._template.render(
                messages=turns,
                tools=None,
                documents=None,
                add_generation_prompt=prompt.add_generation_prompt,
                **self._special_tokens,
            )
        except TemplateError as error:
            text = error.message or type(error).__name__
            raise ApiError("invalid_messages", f"the model's chat template refuses: {text}", param="messages") from None
        except Exception as error:  # a template is a program: it may fail in any way on unexpected turns
            text = f"the model's chat template cannot render these messages ({type(error).__name__}: {error})"
            raise ApiError("invalid_messages", text, param="messages") from None


def _text(token: object) -> str | None:
    """A special token of tokenizer_config.json: a string, or an object with flags."""
    found = cast("dict[str, object]", token).get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None


def _source(folder: Path, config: dict[str, Any]) -> str | None:
    """The template's text: from its own file, or from the config (one, or several by name)."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    entry: object = config.get("chat_template")
    if isinstance(entry, list):
        named = [cast("dict[str, object]", item) for item in cast("list[object]", entry) if isinstance(item, dict)]
        entry = {item.get("name"): item.get("template") for item in named}
    if isinstance(entry, dict):
        entry = cast("dict[object, object]", entry).get("default")
    return entry if isinstance(entry, str) else None


def load_chat_template(folder: Path) -> ChatTemplate | None:
    """The folder's template, checked by rendering one turn; None if the model has none."""
    try:
        file = folder / "tokenizer_config.json"
        config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        source = _source(folder, config)
        if source is None:
            return None
        named = {key: _text(value) for key, value in config.items() if key.endswith("_token")}
        template = ChatTemplate(source, {key: text for key, text in named.items() if text is not None})
        template.render(_PROBE)
    except (ApiError, TemplateError, ValueError, OSError) as error:
        message = f"the chat template of {folder} does not work: {error}"
        raise EngineLoadError("invalid_checkpoint", message) from error
    return template
