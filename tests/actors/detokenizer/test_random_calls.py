"""Random calls of every family, streamed in random pieces and token by token; garbled ones are text.

The seed is new in every run; `CALLS_SEED=N` repeats one.
"""

import json
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

from triolet.actors.detokenizer.answer_parts import AnswerReader, Calls, ReadPart
from triolet.actors.detokenizer.channel_reader import ChannelReader
from triolet.actors.detokenizer.marked_reader import MarkedReader
from triolet.actors.detokenizer.read_choice import ReadChoice, choice_of
from triolet.actors.tokenizer.output_format import output_format
from triolet.actors.tokenizer.text_tokenizer import TextTokenizer
from triolet.protocol.events import Token
from triolet.protocol.requests import ChatMessage, ChatPrompt, FunctionTool, Generate, ToolUse
from triolet.protocol.sampling import Sampling

from .test_read_choice import with_template
from .written_calls import TOOLS, WRITERS, Writer, WrittenCall, calls_of

SEED = int(os.environ.get("CALLS_SEED", "0")) or Random().randrange(1, 2**32)
ANSWERS = 34  # of each family: 510 in all, with one to three calls each
GARBLED = 14  # of each family and each of the two ways that leave no call
NOISY = 6
PROMPT = ChatPrompt(
    messages=(ChatMessage(role="user", content="Hi"),),
    tools=tuple(FunctionTool(name=name, parameters=dict(schema)) for name, schema in TOOLS.items()),
)
Said = tuple[str, tuple[tuple[str, str], ...]]  # the text, and the calls' names and arguments
each_family = pytest.mark.parametrize("family", WRITERS)


@contextmanager
def drawn(family: str) -> Generator[Random]:
    try:
        yield Random(f"{SEED} {family}")
    except BaseException as error:
        error.add_note(f"repeat it with CALLS_SEED={SEED}")
        raise


def reader(writer: Writer) -> AnswerReader:
    form = output_format(writer.template, (), takes_tools=True)
    assert form.calls is not None
    calls = Calls(TOOLS, "r/0", id_length=form.calls.id_length)
    return ChannelReader(calls) if form.channels else MarkedReader(form, calls)


def said(parts: list[ReadPart] | list[Token]) -> Said:
    """As a client puts the deltas together."""
    names = [part.starts.name for part in parts if part.starts]
    arguments = [""] * len(names)
    for part in parts:
        if part.kind == "tool":
            arguments[part.call] += part.text
    return "".join(part.text for part in parts if part.kind == "text"), tuple(zip(names, arguments, strict=True))


def read(writer: Writer, pieces: list[str]) -> Said:
    reads = reader(writer)
    return said([*(part for piece in pieces for part in reads.read(piece)), *reads.finish()])


def read_tokens(tokenizer: TextTokenizer, raw: str) -> Said:
    """Each token in a step of its own."""
    request = Generate(id="r", model="m", prompts=(PROMPT,), sampling=Sampling(), reads_output=True, tool_use=ToolUse())
    choice = choice_of(request, (), 0, tokenizer)
    assert isinstance(choice, ReadChoice)
    ids = tokenizer.tokenizer.encode(raw, add_special_tokens=False).ids
    parts = [part for id in ids for part in choice.add_tokens((id,)).parts]
    return said([*parts, *choice.add_tokens((), last=True).parts])


def pieces(random: Random, text: str) -> list[str]:
    found: list[str] = []
    while text:
        size = random.choice((1, 2, 5, 17))
        found, text = [*found, text[:size]], text[size:]
    return found


@pytest.fixture(scope="module")
def tokenizer_of(text_tokenizer: TextTokenizer) -> Callable[[Writer], TextTokenizer]:
    """A small tokenizer with the family's marks as special tokens."""

    def make(writer: Writer) -> TextTokenizer:
        form = output_format(writer.template, (), takes_tools=True)
        return with_template(text_tokenizer, writer.template, *sorted(form.marks))

    return make


@each_family
def test_calls_come_out_as_they_went_in(family: str, tokenizer_of: Callable[[Writer], TextTokenizer]) -> None:
    writer = WRITERS[family]
    tokenizer = tokenizer_of(writer)
    with drawn(family) as random:
        for _ in range(ANSWERS):
            wanted = calls_of(random, writer)
            raw = writer.write(random, wanted)
            whole = read(writer, [raw])
            assert whole[0] == "", raw
            assert [WrittenCall(name, json.loads(arguments)) for name, arguments in whole[1]] == wanted, raw
            assert read(writer, pieces(random, raw)) == whole, raw
            assert read_tokens(tokenizer, raw) == whole, raw


def without_marks(writer: Writer, raw: str) -> str:
    """What is left of an answer that has no call."""
    for mark in writer.around:
        raw = raw.replace(mark, "")
    return raw.rpartition("<|message|>")[2].removesuffix("<|call|>") if "<|channel|>" in writer.template else raw


@each_family
def test_a_call_of_no_function_or_without_its_end_is_text(
    family: str, tokenizer_of: Callable[[Writer], TextTokenizer]
) -> None:
    writer = WRITERS[family]
    tokenizer = tokenizer_of(writer)
    with drawn(family) as random:
        for number in range(2 * GARBLED):
            if number % 2:
                raw = writer.write(random, calls_of(random, writer)[:1])
                raw = raw[: random.randrange(1, raw.rindex(writer.completes) + 1)]
            else:
                call = calls_of(random, writer._replace(marks=()))[0]
                raw = writer.write(random, [call._replace(name="unknown")])
            expected = without_marks(writer, raw), ()
            for cut in ([raw], list(raw), pieces(random, raw)):
                assert read(writer, cut) == expected, raw
            assert read_tokens(tokenizer, raw)[1] == (), raw


@each_family
def test_noise_loses_nothing(family: str) -> None:
    """What is still a call is one; all else is text."""
    writer = WRITERS[family]
    with drawn(family) as random:
        for _ in range(NOISY):
            raw = writer.write(random, calls_of(random, writer))
            place = random.randrange(len(raw))
            noise = random.choice(("", "{", "}", '"', "\\", "\x00", "<", "</tool_call>", "]"))
            raw = raw[:place] + noise + raw[place + random.randrange(3) :]
            text, calls = whole = read(writer, [raw])
            assert read(writer, pieces(random, raw)) == whole, raw
            values: list[Any] = [json.loads(arguments) for _, arguments in calls]
            assert all(isinstance(value, dict) for value in values), raw
            lost = without_marks(writer, raw) != without_marks(writer, text)
            assert calls or not lost or "<|channel|>" in writer.template, raw
