"""The checkpoint's chat template: a conversation in, the model's prompt text out.

The template is a program from the model's folder and runs in jinja's sandbox; requests cannot bring one. What a
template refuses (an unknown role, a wrong order of turns) is the request's error, with the template's message.
"""

import json
import secrets
from datetime import datetime
from typing import Any, Final, NoReturn

from jinja2 import TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from ...protocol.errors import ApiError
from ...protocol.requests import ChatMessage, ChatPrompt, FunctionCall, ToolCall
from ..errors import EngineLoadError
from .control_tokens import Marks
from .template_sandbox import BoundedEnvironment
from .template_turns import SHAPES, TurnShape, tool_of, turn_of

# Variables that the server sets itself, and names by which other servers take a template from a request.
_RESERVED: Final = frozenset({"messages", "tools", "documents", "add_generation_prompt", "chat_template", "tokenize"})
_PROBE: Final = ChatPrompt(messages=(ChatMessage(role="user", content="Hello"),))


def _call_probe(arguments: str) -> ChatPrompt:
    call = ToolCall(id="call00000", function=FunctionCall(name="probe", arguments=arguments))
    return ChatPrompt(
        messages=(
            ChatMessage(role="user", content="Hello"),
            ChatMessage(role="assistant", tool_calls=(call,)),
            ChatMessage(role="tool", content="{}", tool_call_id=call.id, name="probe"),
        )
    )


_WHOLE_CALL: Final = _call_probe('{"probed": "value"}')
_CUT_CALL: Final = _call_probe('{"probed": "val')


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


class ChatTemplate:
    """A compiled template and the special tokens that it may use."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        environment = BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
        environment.filters["tojson"] = environment.bounded(_tojson)
        names: dict[str, Any] = environment.globals  # Any: its type lists jinja2's own functions and no others
        names |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        self._template = environment.from_string(source)
        self._reads: set[str] = meta.find_undeclared_variables(environment.parse(source))
        # Copied for every rendering: as jinja's chain of mappings this takes as long as all the rest.
        self._template.globals = dict(self._template.globals)
        self.special_tokens = special_tokens
        self.source = source
        self._environment = environment
        # Phi-4 has the tools as JSON text in the first system message.
        self._tools_in_system = "tools" not in self._reads and "message['tools']" in source
        self.takes_tools: bool = "tools" in self._reads or self._tools_in_system
        self._shape = self._find_shape() if self.takes_tools else TurnShape()

    def _find_shape(self) -> TurnShape:
        for shape in SHAPES:
            if '"probed": "value"' in self._probed(_WHOLE_CALL, shape).replace('":"', '": "'):
                as_text = shape._replace(cut_as_text=True)
                return as_text if "probed" in self._probed(_CUT_CALL, as_text) else shape
        return TurnShape()

    def _probed(self, prompt: ChatPrompt, shape: TurnShape) -> str:
        """How the template writes turns of this shape; nothing if it refuses them."""
        try:
            return self._render([turn_of(message, shape) for message in prompt.messages], prompt, None)
        except ApiError:
            return ""

    def render(self, prompt: ChatPrompt, marks: Marks | None = None) -> str:
        """The prompt text of a conversation, with control tokens in the client's strings broken by `marks`.

        Raises `ApiError` if the template refuses it.
        """
        self._check_variables(prompt)
        turns = [turn_of(message, self._shape) for message in prompt.messages]
        end = secrets.token_hex(16) if prompt.continue_final_message else ""
        if end:  # whatever the template writes behind the last text is cut away
            turns[-1]["content"] += end
        text = self._render(turns, prompt, marks)
        if not end:
            return text
        if text.count(end) != 1:
            message = "the model's chat template changes the last message, so that no answer can continue it"
            raise ApiError("invalid_value", message, param="continue_final_message")
        return text[: text.index(end)]

    def _check_variables(self, prompt: ChatPrompt) -> None:
        """A variable that this template does not read changes nothing, but documents must not get lost."""
        for name in prompt.template_variables:
            if name in _RESERVED or name in self.special_tokens:
                message = f"chat_template_kwargs may not set {name[:100]!r}; leave it out"
                raise ApiError("invalid_value", message, param="chat_template_kwargs")
        if prompt.documents and "documents" not in self._reads:
            message = "this model's chat template reads no documents; write their text into a message"
            raise ApiError("unsupported_parameter", message, param="documents")

    def _render(self, turns: list[dict[str, Any]], prompt: ChatPrompt, marks: Marks | None) -> str:
        variables, documents = prompt.template_variables, list(prompt.documents)
        tools = [tool_of(tool) for tool in prompt.tools] if self.takes_tools else []
        try:
            if marks is not None:
                tools = marks.broken(tools)
                turns = [marks.broken(turn, by_model=turn["role"] == "assistant") for turn in turns]
                variables, documents = marks.broken(variables), marks.broken(documents)
            if tools and self._tools_in_system:
                if turns[0]["role"] != "system":
                    turns = [{"role": "system", "content": ""}, *turns]
                turns[0]["tools"] = _tojson(tools)
            self._environment.begin(len(turns))
            return self._template.render(
                variables,
                messages=turns,
                tools=tools or None,
                documents=documents or None,
                add_generation_prompt=prompt.add_generation_prompt,
                **self.special_tokens,
            )
        except TemplateError as error:
            text = f"the model's chat template refuses: {error.message or type(error).__name__}"
        except Exception as error:  # a template is a program: it may fail in any way on unexpected turns
            text = f"the model's chat template cannot render these messages ({type(error).__name__}: {error})"
        if marks is not None and marks.mark:
            text = text.replace(marks.mark, "")
        raise ApiError("invalid_messages", text, param="messages")


def checked_template(source: str, special_tokens: dict[str, str], what: str) -> ChatTemplate:
    """A template that renders one turn. Raises EngineLoadError; `what` is named in its message."""
    try:
        template = ChatTemplate(source, special_tokens)
        template.render(_PROBE)
    except Exception as error:  # deep nesting, for example, ends in a RecursionError or a MemoryError
        problem = f"{type(error).__name__}: {error}" if not isinstance(error, ApiError | TemplateError) else error
        raise EngineLoadError("invalid_checkpoint", f"the chat template {what} does not work: {problem}") from error
    return template
