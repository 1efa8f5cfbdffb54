"""A conversation as data: its turns, its system prompt, its settings, and the request they make. It does no I/O.

The model no longer sees the `left_out` oldest turns, for which its context had no room. They stay in the conversation,
and /save writes them.
"""

from typing import Any, Final, Literal, NamedTuple

import msgspec

from ..protocol.errors import ApiError
from ..protocol.openai_requests import ChatBody
from ..web.openai.decode import decode

# Of a request's fields, those that shape an answer and may change within a conversation.
SETTINGS: Final = (
    *("temperature", "top_p", "top_k", "min_p", "max_tokens", "min_tokens", "seed", "stop", "stop_token_ids"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "ignore_eos", "determinism"),
    *("reasoning_effort", "chat_template_kwargs"),
)
ANSWER_ROOM: Final = 512  # tokens kept free for an answer, but at most a quarter of the context

_CHAT: Final = msgspec.json.Decoder(ChatBody)


class ChatCommandError(Exception):
    """What the user asked for cannot be done. The message says why and what to do."""


class PlainMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str


class AnsweredQuestion(NamedTuple):
    question: str
    answer: str


class ChatConversation:
    """`question` is the last one while it has no answer: being answered, failed, or the end of a loaded file."""

    def __init__(self, system: str | None = None, settings: dict[str, Any] | None = None) -> None:
        self.system = system
        self.settings: dict[str, Any] = settings or {}  # Any: JSON values
        self.turns: list[AnsweredQuestion] = []
        self.question: str | None = None
        self.left_out = 0

    def clear(self) -> None:
        """Begin anew, with the same system prompt and settings."""
        self.turns, self.question, self.left_out = [], None, 0

    def answered(self, answer: str) -> None:
        assert self.question is not None
        self.turns.append(AnsweredQuestion(self.question, answer))
        self.question = None

    @property
    def last_question(self) -> str | None:
        return self.turns[-1].question if self.question is None and self.turns else self.question

    def take_back(self) -> None:
        """Forget the last question and its answer, if it has one."""
        if self.question is None and self.turns:
            self.turns.pop()
            self.left_out = min(self.left_out, len(self.turns))
        self.question = None

    def leave_out_oldest(self) -> bool:
        """The model sees one turn less; the system prompt and the question stay. False if no turn was left."""
        if self.left_out == len(self.turns):
            return False
        self.left_out += 1
        return True

    def messages(self, left_out: int = 0) -> list[PlainMessage]:
        """The conversation without its `left_out` oldest turns, in the form of a request."""
        system = [PlainMessage(role="system", content=self.system)] if self.system else []
        turns = [
            message
            for turn in self.turns[left_out:]
            for message in (
                PlainMessage(role="user", content=turn.question),
                PlainMessage(role="assistant", content=turn.answer),
            )
        ]
        question = [PlainMessage(role="user", content=self.question)] if self.question is not None else []
        return [*system, *turns, *question]

    def request(self, model: str, room: int) -> dict[str, Any]:
        """The body of the request for an answer of at most `room` tokens: a larger `max_tokens` would be refused."""
        limit = self.settings.get("max_tokens")
        settings = self.settings if limit is None else {**self.settings, "max_tokens": max(1, min(limit, room))}
        return {"model": model, "messages": self.messages(self.left_out), **settings}

    def wanted_room(self, context_length: int) -> int:
        """The tokens that should be free for the answer before a turn is left out for it."""
        wanted: int = self.settings.get("max_tokens") or ANSWER_ROOM
        return min(wanted, context_length // 4)

    def set(self, name: str, text: str) -> None:
        """Set a setting from what the user typed: JSON or a word; `default` is the model's own value.

        Raises ChatCommandError, in the server's words where they are about the value.
        """
        if name not in SETTINGS:
            raise ChatCommandError(f"no setting {name}; there are {', '.join(SETTINGS)}")
        if text == "default":
            self.settings.pop(name, None)
            return
        try:
            value: Any = msgspec.json.decode(text)  # Any: JSON
        except msgspec.DecodeError:
            value = text
        _checked({"messages": [PlainMessage(role="user", content="")], name: value})
        self.settings[name] = value

    def saved(self, model: str) -> bytes:
        """The conversation as the body of a chat request, which any client can send."""
        body = {"model": model, **self.settings, "messages": self.messages()}
        return msgspec.json.format(msgspec.json.encode(body), indent=2) + b"\n"

    def load(self, data: bytes) -> None:
        """Become the conversation that was saved, with its settings. Raises ChatCommandError and changes nothing."""
        body = _checked(data)
        for name in body:
            if name not in (*SETTINGS, "model", "messages"):
                raise ChatCommandError(f"{name} is no setting of a chat; remove it from the file")
        try:
            messages = msgspec.convert(body["messages"], list[PlainMessage])
        except msgspec.ValidationError as error:
            raise ChatCommandError(f"messages: {error}; a chat holds plain text of system, user, assistant") from None
        system = messages.pop(0).content if messages[0].role == "system" else None
        for at, message in enumerate(messages):
            if message.role != ("user", "assistant")[at % 2]:
                raise ChatCommandError("messages: after the system prompt, user and assistant must take turns")
        texts = [message.content for message in messages]
        self.clear()
        self.system = system
        self.settings = {name: value for name, value in body.items() if name in SETTINGS and value is not None}
        self.turns = [AnsweredQuestion(*pair) for pair in zip(texts[::2], texts[1::2], strict=False)]
        self.question = texts[-1] if len(texts) % 2 else None


def _checked(body: dict[str, Any] | bytes) -> dict[str, Any]:
    """The fields of a body that the server would accept. Raises ChatCommandError with the server's words."""
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    try:
        decode(data, _CHAT)
    except ApiError as error:
        raise ChatCommandError(error.message) from None
    fields: dict[str, Any] = msgspec.json.decode(data)
    return fields
