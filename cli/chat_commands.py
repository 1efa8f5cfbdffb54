"""The commands of `triolet chat` that change or show the conversation. Those that ask the model: chat_session.py."""

import os
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from .chat_conversation import ChatCommandError, ChatConversation


class Command(NamedTuple):
    argument: str
    help: str


COMMANDS: Final = {
    "/retry": Command("", "ask the last question again"),
    "/edit": Command("", "change the last question and ask it again; Ctrl-X Ctrl-E opens $EDITOR"),
    "/clear": Command("", "begin a new conversation; system prompt and settings stay"),
    "/system": Command("[TEXT]", "show or change the system prompt; `/system off` removes it"),
    "/set": Command("[NAME VALUE]", "show or change the sampling settings; the VALUE `default` removes one"),
    "/save": Command("FILE", "write the conversation to a new file, as the body of a chat request"),
    "/load": Command("FILE", "continue a conversation that was saved"),
    "/stats": Command("", "tokens, times, and how full the context is"),
    "/help": Command("", "this list"),
    "/exit": Command("", "leave; so does Ctrl-D"),
}


def explain_commands() -> str:
    width = max(len(f"{name} {command.argument}") for name, command in COMMANDS.items())
    rows = [f"{f'{name} {command.argument}':{width}}  {command.help}" for name, command in COMMANDS.items()]
    return "\n".join(rows)


def change_system(conversation: ChatConversation, text: str) -> str:
    """Returns what to tell the user, as do all below."""
    if text:
        conversation.system = None if text == "off" else text
    return f"system prompt: {conversation.system}" if conversation.system else "no system prompt"


def change_setting(conversation: ChatConversation, text: str) -> str:
    """Raises ChatCommandError."""
    name, _, value = text.partition(" ")
    if value.strip():
        conversation.set(name, value.strip())
    elif name:
        raise ChatCommandError(f"/set {name} needs a value; `/set {name} default` takes the model's own")
    settings = [f"{name} {msgspec.json.encode(value).decode()}" for name, value in conversation.settings.items()]
    return "\n".join(settings) or "all settings are the model's own"


def save(conversation: ChatConversation, file: str, model: str) -> str:
    """Write a file that only the user may read. Raises ChatCommandError, also if there is one."""
    path = _path("/save", file)
    try:
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as sink:
            sink.write(conversation.saved(model))
    except FileExistsError:
        raise ChatCommandError(f"{path} exists; save to another file, or remove it") from None
    except OSError as error:
        raise ChatCommandError(f"cannot write {path}: {error.strerror}") from None
    return f"saved {_count(conversation)} to {path}"


def load(conversation: ChatConversation, file: str) -> str:
    """Raises ChatCommandError and changes nothing, if the file is no conversation."""
    path = _path("/load", file)
    try:
        conversation.load(path.read_bytes())
    except OSError as error:
        raise ChatCommandError(f"cannot read {path}: {error.strerror}") from None
    except ChatCommandError as error:
        raise ChatCommandError(f"{path} is no conversation: {error}") from None
    waiting = "; the last question has no answer yet: /retry" if conversation.question is not None else ""
    return f"loaded {_count(conversation)} from {path}{waiting}"


def _count(conversation: ChatConversation) -> str:
    count = len(conversation.messages())
    return f"{count} message{'' if count == 1 else 's'}"


def _path(command: str, file: str) -> Path:
    if not file:
        raise ChatCommandError(f"{command} needs the name of a file")
    return Path(file).expanduser()
