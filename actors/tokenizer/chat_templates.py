"""Which of a model's chat templates a conversation gets: the one that the operator chose, or as transformers chooses.

A model may have several by name. Without a choice, "tool_use" is for conversations with tools, if there is one, and
"default" for all others.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from ...models.checkpoint.text.chat_templates import MAX_TEMPLATE_BYTES
from ...protocol.requests import ChatPrompt
from ..errors import EngineLoadError
from .chat_template import ChatTemplate, checked_template

DEFAULT: Final = "default"
TOOL_USE: Final = "tool_use"


class ChatTemplates(NamedTuple):
    """One for conversations without tools and one for those with them; often the same."""

    plain: ChatTemplate
    with_tools: ChatTemplate

    def of(self, prompt: ChatPrompt) -> ChatTemplate:
        return self.with_tools if prompt.tools else self.plain

    @property
    def source(self) -> str:
        """The text of both, in which the marks of a model's answers are looked for."""
        return self.plain.source if self.with_tools is self.plain else self.plain.source + self.with_tools.source

    @property
    def takes_tools(self) -> bool:
        return self.with_tools.takes_tools


def choose_templates(
    sources: Mapping[str, str], special_tokens: dict[str, str], wanted: str | None = None
) -> ChatTemplates | None:
    """`wanted`: the name of a template, or a file with one. None if the model has no template and none is wanted.

    Raises EngineLoadError for a name that there is not, and for a template that does not work.
    """
    if wanted is not None:
        source = sources[wanted] if wanted in sources else _of_file(wanted, sources)
        chosen = checked_template(source, special_tokens, wanted)
        return ChatTemplates(chosen, chosen)
    if not sources:
        return None
    if DEFAULT not in sources:
        names = ", ".join(sorted(sources))
        message = f"the model has the chat templates {names} and no default: choose one with --chat-template"
        raise EngineLoadError("invalid_checkpoint", message)
    plain = checked_template(sources[DEFAULT], special_tokens, DEFAULT)
    tools = checked_template(sources[TOOL_USE], special_tokens, TOOL_USE) if TOOL_USE in sources else plain
    return ChatTemplates(plain, tools)


def _of_file(wanted: str, sources: Mapping[str, str]) -> str:
    names = f"the model has {', '.join(sorted(sources))}" if sources else "the model has none"
    try:
        with Path(wanted).open("rb") as file:
            data = file.read(MAX_TEMPLATE_BYTES + 1)
        if len(data) > MAX_TEMPLATE_BYTES:
            raise ValueError(f"is larger than {MAX_TEMPLATE_BYTES} bytes")
        return data.decode()
    except FileNotFoundError:
        message = f"--chat-template {wanted}: there is no template of this name, and no such file; {names}"
    except (OSError, ValueError) as error:
        message = f"--chat-template {wanted}: {error}"
    raise EngineLoadError("invalid_checkpoint", message)
