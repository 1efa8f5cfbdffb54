"""The text of one choice whose answer is split into thoughts, calls and text. Pure.

Stop strings are looked for in the text alone, after the split. Log probabilities come with the token, whatever it is
part of.
"""

from collections.abc import Sequence

import msgspec

from ...protocol.events import Token, TokenLogprob
from ...protocol.requests import ChatPrompt, Generate
from ..tokenizer.text_tokenizer import TextTokenizer
from .answer_parts import AnswerReader, Calls, ReadPart
from .channel_reader import ChannelReader
from .choice_text import ChoiceText, TextDelta
from .incremental_text import IncrementalText
from .marked_reader import MarkedReader


def choice_of(request: Generate, prompt: tuple[int, ...], index: int, tokenizer: TextTokenizer) -> ChoiceText:
    """The choice's text, split if the request wants it and there is something to split."""
    place = index // request.n
    reader = _reader(request, place, index, tokenizer) if request.reads_output else None
    if reader is None:
        return ChoiceText(request, prompt, place, tokenizer)
    return ReadChoice(request, prompt, index, tokenizer, reader)


def _reader(request: Generate, place: int, index: int, tokenizer: TextTokenizer) -> AnswerReader | None:
    form, use, prompt = tokenizer.format, request.tool_use, request.prompts[place]
    calls = None
    if use is not None and form.calls is not None and isinstance(prompt, ChatPrompt):
        calls = Calls(
            {tool.name: tool.parameters for tool in prompt.tools},
            f"{request.id}/{index}",
            guided=bool(request.grammar),
            parallel=use.parallel,
            id_length=form.calls.id_length,
        )
    if form.channels:
        return ChannelReader(calls)
    if calls is None and form.thoughts is None:
        return None
    return MarkedReader(form, calls, in_thought=request.thinking is not None and request.thinking.open)


class ReadChoice(ChoiceText):
    """The same as `ChoiceText`, but its deltas have `parts` instead of a text."""

    __slots__ = ("_hidden", "_index", "_marks", "_parts", "_reader")

    def __init__(
        self, request: Generate, prompt: tuple[int, ...], index: int, tokenizer: TextTokenizer, reader: AnswerReader
    ) -> None:
        super().__init__(request, prompt, index // request.n, tokenizer)
        self._index = index
        self._reader = reader
        self._marks = tokenizer.marks  # special tokens that the reader must see
        self._hidden = tuple(self._marks.values()) if request.skip_special_tokens else ()
        self._parts: list[Token] = []

    @property
    def plain(self) -> IncrementalText | None:
        return super().plain if self._reader.plain and not self._held else None

    @property
    def calls(self) -> int:
        return self._reader.calls.count

    def add_tokens(self, ids: Sequence[int], logprobs: Sequence[TokenLogprob] = (), *, last: bool = False) -> TextDelta:
        was_plain, kept, stop = self._reader.plain, 0, None
        for id in ids:
            scores = (self._spell(logprobs[kept], self._characters),) if kept < len(logprobs) else ()
            self._put(ReadPart(self._reader.kind, ""), 1, scores)
            kept += 1
            self.tokens += 1
            mark = self._marks.get(id)
            stop = self._give(self._reader.read(self._text.decode((id,)) if mark is None else mark))
            if stop is not None or self._reader.calls.enough:
                break
        enough = stop is None and self._reader.calls.enough
        if last and stop is None and not enough:
            stop = self._give([*self._reader.read(self._text.finish()), *self._reader.finish()])
            if stop is None and len(logprobs) > kept:
                ending = self._spell(logprobs[kept], self._characters)
                self._put(ReadPart("text", ""), 0, (msgspec.structs.replace(ending, stops=True),))
        if last or stop is not None or enough:
            self._put(ReadPart("text", self._take()))
        parts, self._parts = tuple(self._parts), []
        return TextDelta(
            text="", kept=kept, stop=stop, parts=parts, enough=enough, plain=self._reader.plain and not was_plain
        )

    def _give(self, pieces: list[ReadPart]) -> str | None:
        """Search the text for stop strings, and pass everything on. Returns a stop string that ends the answer."""
        for piece in pieces:
            text = piece.text
            if piece.kind != "text" and self._held:  # it cannot become a stop string any more
                self._put(ReadPart("text", self._take()))
                self._scanners = self._new_scanners()
            if piece.kind == "tool":
                self._put(piece)
                continue
            for mark in self._hidden:
                text = text.replace(mark, "")
            if piece.kind == "reasoning":
                self._put(ReadPart("reasoning", text if self.request.include_reasoning else ""))
                continue
            stop = self._add(text)
            if stop is not None:
                return stop
            self._put(ReadPart("text", self._take(self._keep)))
        return None

    def _put(self, piece: ReadPart, tokens: int = 0, logprobs: tuple[TokenLogprob, ...] = ()) -> None:
        """Add to the parts; what continues the last one is joined to it."""
        if not (piece.text or piece.starts or tokens or logprobs):
            return
        last = self._parts[-1] if self._parts else None
        first = piece.starts or (last and last.starts and piece.text)  # the first piece of a call has no text
        if last is not None and not first and (last.kind, last.call) == (piece.kind, piece.call):
            self._parts[-1] = msgspec.structs.replace(
                last, text=last.text + piece.text, tokens=last.tokens + tokens, logprobs=last.logprobs + logprobs
            )
            return
        self._parts.append(
            Token(
                id=self.request.id,
                index=self._index,
                text=piece.text,
                tokens=tokens,
                kind=piece.kind,
                logprobs=logprobs,
                call=piece.call,
                starts=piece.starts,
            )
        )
