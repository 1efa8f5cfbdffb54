"""Reads answers in which marks stand around thoughts and calls, as most model families write them. Pure.

Thoughts come first in an answer, or there are none: elsewhere their mark is text. White space around thoughts and calls
belongs to the marks. A call is passed on when it is complete and fits a function; so a wrong one can still become text.
A guided call is passed on from where its arguments begin.
"""

import re
from typing import Final, Literal

from ..tokenizer.call_syntax import json_calls
from ..tokenizer.output_format import CallSyntax, OutputFormat
from .answer_parts import Calls, GuidedCall, Kind, ReadPart
from .json_extent import ends_in_string
from .stop_strings import StopScanner

_NO_CALLS: Final = CallSyntax(read=json_calls)
MAX_HEAD: Final = 1024  # characters in which a call shows what it is; behind them it is read as a whole
State = Literal["start", "thought", "text", "call"]


class MarkedReader:
    """Reads one choice. `calls` None: calls are text."""

    def __init__(self, form: OutputFormat, calls: Calls | None = None, *, in_thought: bool = False) -> None:
        self._thoughts = form.thoughts
        self._syntax = form.calls if form.calls and calls else _NO_CALLS
        self.calls = calls or Calls({}, "")
        self._held = ""  # of the state's text, what is not passed on yet
        self._late: list[str] = []  # the text behind it, of a call that is read as a whole: joined at its end
        self._whole = False  # it is such a call
        self._gap: str = ""  # white space before the call that is being read
        self._mark = ""  # that began it
        self._skips_space = in_thought  # white space at the beginning of what follows is dropped
        self._head = re.compile(self._syntax.head + r"(?=\{)") if self.calls.guided and self._syntax.head else None
        self._guided: GuidedCall | None = None  # from where the arguments begin
        self._go("thought" if in_thought else "start" if self._thoughts or self._syntax.bare else "text")

    @property
    def kind(self) -> Kind:
        return "reasoning" if self._state == "thought" else "text"

    @property
    def plain(self) -> bool:
        return self._state == "text" and self._syntax is _NO_CALLS and not self._held and not self._skips_space

    def _go(self, state: State) -> None:
        self._state: State = state
        self._whole = False
        begins = (*self._syntax.begins, *self._syntax.around)
        opening = (self._thoughts.begin,) if self._thoughts else ()
        marks = {
            "start": (*opening, *begins),
            "thought": (self._thoughts.end,) if self._thoughts else (),
            "text": begins,
            "call": self._syntax.ends,
        }
        self._scanner = StopScanner(marks[state])

    def read(self, text: str) -> list[ReadPart]:
        pieces: list[ReadPart] = []
        while text:
            match = self._scanner.scan(text)
            end = match.end if match else len(text)
            if self._whole:
                self._late.append(text[:end])
            else:
                self._held += text[:end]
            text = text[end:]
            if match is None:
                text = text if self._whole else self._wait(pieces)
            else:
                before = self._take_held().removesuffix(match.stop)
                again = self._pass(match.stop, before, pieces)
                text = again + text
        return pieces

    def _wait(self, pieces: list[ReadPart]) -> str:
        """No mark is complete: pass on what can be none. Returns text that must be read again, in another state."""
        if self._state == "call":
            return self._wait_for_call(pieces)
        sure = self._held[: len(self._held) - self._scanner.held]
        if self._state == "start":
            begun = sure.lstrip()
            if not begun:
                return ""
            text, self._held = self._held, ""
            if self._syntax.bare and begun.startswith(self._syntax.bare):
                self._gap, self._mark = text.removesuffix(rest := text.lstrip()), ""
                self._begin_call()
                return rest
            self._go("text")
            return text
        if self._syntax is not _NO_CALLS or self._state == "thought":
            sure = sure.rstrip()  # white space before a mark belongs to it
        self._held = self._held[len(sure) :]
        self._give(sure, pieces)
        return ""

    def _wait_for_call(self, pieces: list[ReadPart]) -> str:
        self._held = self._begin_guided(self._held, pieces)
        if self._guided is not None:
            sure = self._held[: len(self._held) - self._scanner.held]
            self._held = self._held[len(sure) :]
            pieces += self._guided.read(sure)
            return ""
        doubtful = not self._mark and (self._head is not None or not self.calls.guided)
        if doubtful and not self._syntax.plausible(self._held, self.calls.tools):
            text, self._held = self._gap + self._held, ""
            self._go("text")
            return text
        self._whole = (self._head is None and not doubtful) or len(self._held) > MAX_HEAD
        return ""

    def _take_held(self) -> str:
        """All that is held back; then nothing is."""
        text, self._held = self._held + "".join(self._late), ""
        self._late.clear()
        return text

    def _pass(self, mark: str, before: str, pieces: list[ReadPart]) -> str:
        """A mark is complete. Returns text that must be read again, in another state."""
        if self._state == "call":
            return self._end_call(mark, before, pieces)
        if self._state == "thought":
            self._give(before.rstrip(), pieces)
            self._skips_space = True
            self._go("text")
        elif self._thoughts and mark == self._thoughts.begin:
            if before.strip():  # they do not come first
                self._go("text")
                return before + mark
            self._skips_space = True
            self._go("thought")
        elif mark in self._syntax.around:
            text = before.rstrip()
            self._give(text, pieces)
            self._held = before[len(text) :]
            self._go("text")
        else:
            text = before.rstrip()
            self._give(text, pieces)
            self._gap, self._mark = before[len(text) :], mark
            self._begin_call()
        return ""

    def _begin_call(self) -> None:
        self._guided = None
        self._go("call")

    def _begin_guided(self, body: str, pieces: list[ReadPart]) -> str:
        """Begin a guided call if what stands before its arguments is complete. Returns what is not read yet."""
        if self._guided is None and self._head and (found := self._head.match(body)):
            name = found["name"]
            if name in self.calls.tools:
                pieces.append(self.calls.begin(name))
                self._guided = GuidedCall(self.calls.count - 1)
                return body[found.end() :]
        return body

    def _end_call(self, mark: str, body: str, pieces: list[ReadPart]) -> str:
        """The call's text is complete, with the mark behind it; without one the answer ends."""
        syntax, calls = self._syntax, self.calls
        again = mark if mark in syntax.begins else ""
        body = self._begin_guided(body, pieces)
        if self._guided is not None:
            pieces += self._guided.read(body)
            if mark and self._guided.in_string:  # the mark is part of an argument
                pieces += self._guided.read(mark)
                self._go("call")
                return ""
        else:
            found = syntax.read(body, calls.tools) if mark or not syntax.needs_end else None
            if found is None and mark and ends_in_string(body, syntax.quotes):  # the mark is part of an argument
                self._held = body + mark
                self._go("call")
                return ""
            if found is None:
                text = self._gap + self._mark + body + ("" if again else mark)
                self._go("text")
                self._give(text, pieces)
                return again
            pieces += calls.whole(found)
        self._skips_space = True
        self._go("text")
        return again

    def _give(self, text: str, pieces: list[ReadPart]) -> None:
        if self._skips_space:
            text = text.lstrip()
        if text:
            self._skips_space = False
            pieces.append(ReadPart("reasoning" if self._state == "thought" else "text", text))

    def finish(self) -> list[ReadPart]:
        pieces: list[ReadPart] = []
        text = self._take_held()
        if self._state == "call":
            self._end_call("", text, pieces)
        else:
            self._give(text, pieces)
        return pieces
