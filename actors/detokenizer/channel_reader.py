"""Reads answers that are messages with headers: gpt-oss writes its thoughts, its calls and its answer so. Pure.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…
    <|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>

The analysis is the thoughts. A message to a function is a call. All other messages are text.
"""

import re
from typing import Final, Literal

from ..tokenizer.call_syntax import json_calls
from .answer_parts import Calls, GuidedCall, Kind, ReadPart
from .json_extent import ends_in_string
from .stop_strings import StopScanner

_CHANNEL: Final = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT: Final = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")
_BEGINS: Final = ("<|start|>", "<|channel|>")
_ENDS: Final = ("<|end|>", "<|call|>", "<|return|>")
State = Literal["between", "header", "thought", "text", "call"]
_MARKS: Final[dict[State, tuple[str, ...]]] = {
    "between": (*_BEGINS, "<|message|>", *_ENDS),
    "header": ("<|message|>",),
    "thought": (*_ENDS, "<|start|>"),
    "text": (*_ENDS, "<|start|>", "<|channel|>"),
    "call": (*_ENDS, "<|start|>"),
}


class ChannelReader:
    """Reads one choice. `calls` None: messages to functions are text. The prompt ends before a header."""

    def __init__(self, calls: Calls | None = None) -> None:
        self.calls = calls or Calls({}, "")
        self._held = ""
        self._header = ""
        self._name = ""  # the function of the message that is being read
        self._guided: GuidedCall | None = None
        self._go("between")

    @property
    def kind(self) -> Kind:
        return "reasoning" if self._state == "thought" else "text"

    @property
    def plain(self) -> bool:
        return False  # another message may follow

    def _go(self, state: State) -> None:
        self._state: State = state
        self._scanner = StopScanner(_MARKS[state])

    def read(self, text: str) -> list[ReadPart]:
        pieces: list[ReadPart] = []
        while text:
            match = self._scanner.scan(text)
            end = match.end if match else len(text)
            self._held, text = self._held + text[:end], text[end:]
            if match is not None:
                before, self._held = self._held.removesuffix(match.stop), ""
                self._pass(match.stop, before, pieces)
            elif self._state in ("between", "thought", "text"):
                cut = len(self._held) - self._scanner.held
                before, self._held = self._held[:cut], self._held[cut:]
                self._give(before, pieces)
            elif self._state == "call":
                self._held = self._begin_guided(self._held, pieces)
                if self._guided is not None:
                    cut = len(self._held) - self._scanner.held
                    before, self._held = self._held[:cut], self._held[cut:]
                    pieces += self._guided.read(before)
        return pieces

    def _pass(self, mark: str, before: str, pieces: list[ReadPart]) -> None:
        if self._state == "header":
            self._begin_message(self._header + before)
            return
        if self._state == "call":
            self._end_call(mark, before, pieces)
            if self._state == "call":
                return
        else:
            self._give(before, pieces)
        if mark in _BEGINS:
            self._header = mark
            self._go("header")
        else:
            self._go("text" if mark == "<|message|>" else "between")

    def _begin_message(self, header: str) -> None:
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        self._name = recipient[1] if recipient and recipient[1] in self.calls.tools else ""
        self._guided = None
        if self._name:
            self._go("call")
        else:
            self._go("thought" if channel and channel[1] == "analysis" else "text")

    def _begin_guided(self, body: str, pieces: list[ReadPart]) -> str:
        """Begin a guided call if its arguments begin. Returns what is not read yet."""
        if self._guided is None and self.calls.guided and (begun := body.lstrip()).startswith("{"):
            pieces.append(self.calls.begin(self._name))
            self._guided = GuidedCall(self.calls.count - 1)
            return begun
        return body

    def _end_call(self, mark: str, body: str, pieces: list[ReadPart]) -> None:
        """The message is complete, with the mark behind it; without one the answer ends."""
        body = self._begin_guided(body, pieces)
        if self._guided is not None:
            pieces += self._guided.read(body)
            if mark and self._guided.in_string:  # the mark is part of an argument
                pieces += self._guided.read(mark)
                self._go("call")
            else:
                self._state = "between"
            return
        # Without arguments and without its end, it was cut.
        arguments = body.strip() or "{}" if mark and not self.calls.guided else body
        found = json_calls(f'{{"name": "{self._name}", "arguments": {arguments}}}', self.calls.tools)
        if found is None and mark and ends_in_string(body):
            self._held = body + mark
            self._go("call")
            return
        self._state = "text"
        if found is None or len(found) != 1:
            self._give(body, pieces)
        else:
            pieces += self.calls.whole(found)

    def _give(self, text: str, pieces: list[ReadPart]) -> None:
        if text:
            pieces.append(ReadPart("reasoning" if self._state == "thought" else "text", text))

    def finish(self) -> list[ReadPart]:
        pieces: list[ReadPart] = []
        text, self._held = self._held, ""
        if self._state == "call":
            self._end_call("", text, pieces)
        elif self._state == "header":
            self._state = "text"
            self._give(self._header + text, pieces)
        else:
            self._give(text, pieces)
        return pieces
