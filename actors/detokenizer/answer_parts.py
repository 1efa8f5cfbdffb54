"""What a model's answer consists of, as it arrives: pieces of text, thoughts and calls. Pure.

Contract of a reader: text in, pieces out, and cutting the text otherwise gives the same pieces, once adjacent ones are
joined. It holds back only what may become a mark or belongs to a call that is not complete. What is no call after all
is text; nothing raises.
"""

from hashlib import sha256
from typing import Final, Literal, NamedTuple, Protocol

from ...protocol.events import CallStart
from ..tokenizer.call_syntax import Call, Tools
from .json_extent import JsonExtent

Kind = Literal["text", "reasoning", "tool"]


class ReadPart(NamedTuple):
    """The fields of a `Token` that a reader knows; with the kind `tool`, the text is a piece of a call's arguments."""

    kind: Kind
    text: str
    call: int = 0
    starts: CallStart | None = None


class AnswerReader(Protocol):
    """Reads one choice."""

    calls: "Calls"

    @property
    def kind(self) -> Kind:
        """What the next token most likely is; a token that shows nothing counts as this."""
        ...

    @property
    def plain(self) -> bool:
        """From now on, text comes out as it goes in."""
        ...

    def read(self, text: str) -> list[ReadPart]: ...

    def finish(self) -> list[ReadPart]:
        """What is still held back, at the answer's end."""
        ...


class Calls:
    """The calls of one choice so far, and how more are made. `guided`: a grammar makes sure that each is right."""

    def __init__(self, tools: Tools, choice: str, *, guided: bool = False, parallel: bool = True, id_length: int = 0):
        """`choice` names the choice among all of this server: the calls' ids are made of it."""
        self.tools: Final = tools
        self.guided: Final = guided
        self.count = 0
        self._choice = choice
        self._parallel = parallel
        self._id_length = id_length

    @property
    def enough(self) -> bool:
        """No further call is wanted. A guided answer ends by itself."""
        return self.count > 0 and not self._parallel and not self.guided

    def whole(self, calls: list[Call]) -> list[ReadPart]:
        """The pieces of complete calls, without those beyond what is wanted."""
        pieces: list[ReadPart] = []
        for call in calls:
            if not self.enough:
                pieces += [self.begin(call.name), ReadPart("tool", call.arguments, self.count - 1)]
        return pieces

    def begin(self, name: str) -> ReadPart:
        number = self.count
        self.count += 1
        digits = sha256(f"{self._choice}/{number}".encode()).hexdigest()
        id = digits[: self._id_length] if self._id_length else f"call_{digits[:24]}"
        return ReadPart("tool", "", number, CallStart(call=number, id=id, name=name))


class GuidedCall:
    """The arguments of a call that has begun and follows a grammar: they are passed on as they come."""

    def __init__(self, call: int) -> None:
        self._call = call
        self._extent = JsonExtent()

    @property
    def in_string(self) -> bool:
        """A mark that comes now is part of an argument."""
        return self._extent.in_string

    def read(self, text: str) -> list[ReadPart]:
        taken = text[: self._extent.read(text)]
        return [ReadPart("tool", taken, self._call)] if taken else []
