"""What each model family writes around its thoughts and tool calls, as data; found by reading the chat template. Pure.

A new family is a row of `FAMILIES`: texts that only its templates have, and how it writes calls. `THOUGHTS` does the
same for thoughts. The detokenizer's readers, `marked_reader.py` and `channel_reader.py`, follow these descriptions.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from msgspec import Struct

from .call_syntax import (
    ReadCalls,
    Tools,
    json_calls,
    may_be_json_call,
    may_be_python_call,
    named_json,
    python_calls,
    tagged,
)

LINE: Final = "\N{SYMBOL FOR NEWLINE}"  # in a `CallForm`: a new line, or none


class ThoughtMarks(NamedTuple):
    """The texts before and behind the thoughts."""

    begin: str
    end: str


class CallForm(NamedTuple):
    """How a grammar writes calls: NAME stands for the function's name; the JSON of its arguments follows `before`."""

    before: str
    after: str
    between: str = ""  # one call and the next
    first: str = ""
    last: str = ""
    parallel: bool = True
    may_precede: str = ""  # behind thoughts, and only there


class CallSyntax(Struct, frozen=True, kw_only=True):
    """How a family writes calls: `begins`, a text that `read` understands, `ends`."""

    read: ReadCalls
    begins: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()  # without one, and in any case, the answer's end ends a call
    needs_end: bool = False  # a call that was cut looks like a shorter one
    around: tuple[str, ...] = ()  # written before the first call and behind the last; they say nothing
    inside: tuple[str, ...] = ()  # other control tokens of a call
    bare: str = ""  # an answer that begins so may be a call without a marker, as long as `plausible` says so
    plausible: Callable[[str, Tools], bool] = may_be_json_call
    head: str = ""  # pattern of what stands before a call's arguments, which are JSON; groups `name`
    form: CallForm | None = None  # None: a grammar cannot write these calls
    quotes: str = '"'  # around strings, in which a text that ends a call is part of an argument
    id_length: int = 0  # of a call's id, if templates want one; 0: `call_` and 24 digits

    @property
    def marks(self) -> frozenset[str]:
        return frozenset((*self.begins, *self.ends, *self.around, *self.inside))


class OutputFormat(Struct, frozen=True, kw_only=True):
    """How a model's answers are read. `calls` None: its chat template knows no tools."""

    thoughts: ThoughtMarks | None = None
    calls: CallSyntax | None = None
    channels: bool = False  # every part of an answer is a message with a header (gpt-oss)

    @property
    def marks(self) -> frozenset[str]:
        """Control tokens that must be seen though special tokens are not part of the text."""
        marks = self.calls.marks if self.calls else frozenset[str]()
        return marks | frozenset(self.thoughts or ()) | (CHANNEL_MARKS if self.channels else frozenset[str]())


CHANNEL_MARKS: Final = frozenset(
    {"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"}
)
_NAME_FIRST: Final = r'\s*\{\s*"name":\s*"(?P<name>[^"]+)",\s*"(?:arguments|parameters)":\s*'
_SEP: Final = "<｜tool▁sep｜>"

_ENTRY: Final = '{"name": "NAME", "arguments": '
HERMES: Final = CallSyntax(
    read=json_calls,
    begins=("<tool_call>",),
    ends=("</tool_call>",),
    head=_NAME_FIRST,
    form=CallForm(f"<tool_call>{LINE}{_ENTRY}", f"}}{LINE}</tool_call>", between=LINE),
)
QWEN_CODER: Final = CallSyntax(
    read=tagged(
        r"<function=(?P<name>[^<>\n]+)>(?P<parameters>.*?)(?:</function>|\Z)",
        r"<parameter=(?P<key>[^<>\n]+)>\n?(?P<value>.*?)\n?(?:</parameter>|\Z)",
    ),
    begins=("<tool_call>",),
    ends=("</tool_call>",),
    needs_end=True,
    quotes="",
)
GLM: Final = CallSyntax(
    read=tagged(
        r"\A\s*+(?P<name>[^\s<]++)(?P<parameters>(?:.*</arg_value>)?)\s*\Z",
        r"<arg_key>(?P<key>[^<]*)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>",
    ),
    begins=("<tool_call>",),
    ends=("</tool_call>",),
    needs_end=True,
    quotes="",
)
LLAMA: Final = CallSyntax(
    read=json_calls,
    begins=("<|python_tag|>",),
    bare="{",
    head=_NAME_FIRST,
    form=CallForm('{"name": "NAME", "parameters": ', "}", parallel=False),
)
LLAMA_4: Final = CallSyntax(
    read=python_calls,
    begins=("<|python_start|>",),
    ends=("<|python_end|>",),
    bare="[",
    plausible=may_be_python_call,
    quotes="\"'",
    form=CallForm(_ENTRY, "}", between=", ", first="[", last="]"),
)
_MISTRAL_CALL: Final = named_json(
    r"\s*(?P<name>[^\[{\s]++)\s*+(?:\[CALL_ID\][^\[{]*+)?(?:\[ARGS\])?\s*+(?P<arguments>\{.*\})\s*"
)
MISTRAL: Final = CallSyntax(
    read=_MISTRAL_CALL,
    form=CallForm("[TOOL_CALLS]NAME[ARGS]", ""),
    begins=("[TOOL_CALLS]",),
    ends=("[TOOL_CALLS]",),
    inside=("[ARGS]", "[CALL_ID]"),
    head=r"\s*(?P<name>[^\[{\s]+)(?:\[CALL_ID\][^\[]*)?\[ARGS\]\s*",
    id_length=9,
)
MISTRAL_LIST: Final = CallSyntax(
    read=_MISTRAL_CALL,
    form=CallForm(_ENTRY, "}", between=", ", first="[TOOL_CALLS][", last="]"),
    begins=("[TOOL_CALLS]",),
    ends=("[TOOL_CALLS]",),
    id_length=9,
)
PHI: Final = CallSyntax(
    read=json_calls,
    begins=("<|tool_call|>",),
    ends=("<|/tool_call|>",),
    form=CallForm(_ENTRY, "}", between=", ", first="<|tool_call|>[", last="]<|/tool_call|>"),
)
GEMMA: Final = CallSyntax(
    read=python_calls,
    begins=("```tool_code\n", "```tool_call\n"),
    ends=("```",),
    quotes="\"'",
    form=CallForm(_ENTRY, "}", between=", ", first="```tool_code\n[", last="]\n```"),
)
_DEEPSEEK_CALL: Final = named_json(
    rf"\s*(?:function{_SEP})?(?P<name>[^\s<`]++)(?:{_SEP}|\s*```json)\s*(?P<arguments>\{{.*\}})\s*(?:```\s*)?"
)


def _deepseek(before: str, after: str) -> CallSyntax:
    around = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    return CallSyntax(
        read=_DEEPSEEK_CALL,
        begins=("<｜tool▁call▁begin｜>",),
        ends=("<｜tool▁call▁end｜>",),
        around=around,
        inside=(_SEP,),
        head=rf"\s*(?:function{_SEP})?(?P<name>[^\s<]+)(?:{_SEP}|\s*```json)\s*(?=\{{)",
        form=CallForm(before, after, between="\n" if "json" in before else "", first=around[0], last=around[1]),
    )


DEEPSEEK: Final = _deepseek(f"<｜tool▁call▁begin｜>function{_SEP}NAME\n```json\n", "\n```<｜tool▁call▁end｜>")
DEEPSEEK_31: Final = _deepseek(f"<｜tool▁call▁begin｜>NAME{_SEP}", "<｜tool▁call▁end｜>")
KIMI: Final = CallSyntax(
    read=named_json(
        r"\s*(?:functions\.)?(?P<name>[^\s<]+?)(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*(?P<arguments>\{.*\})\s*"
    ),
    begins=("<|tool_call_begin|>",),
    ends=("<|tool_call_end|>",),
    around=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    inside=("<|tool_call_argument_begin|>",),
    head=r"\s*(?:functions\.)?(?P<name>[^\s<]+?)(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*",
    form=CallForm(
        "<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        first="<|tool_calls_section_begin|>",
        last="<|tool_calls_section_end|>",
        parallel=False,
    ),
)
CHANNELS: Final = CallSyntax(  # its messages have headers that name the function
    read=json_calls,
    form=CallForm(
        "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>",
        "",
        parallel=False,
        may_precede="<|start|>assistant",
    ),
)

# The patterns above take time linear in the text: a model may write anything, and a user may make it.
# Texts of the family's chat templates, and its calls. The first row that fits counts.
FAMILIES: Final[tuple[tuple[tuple[str, ...], CallSyntax], ...]] = (
    (("<｜tool▁call▁begin｜>", "```json"), DEEPSEEK),
    (("<｜tool▁call▁begin｜>",), DEEPSEEK_31),
    (("<|tool_call_begin|>",), KIMI),
    (("[TOOL_CALLS]", "[ARGS]"), MISTRAL),
    (("[TOOL_CALLS]",), MISTRAL_LIST),
    (("<|tool_call|>",), PHI),
    (("<function=",), QWEN_CODER),
    (("<arg_key>",), GLM),
    (("<tool_call>",), HERMES),
    (("<|python_start|>",), LLAMA_4),
    (("<|python_tag|>",), LLAMA),
    (("```tool_code",), GEMMA),
)
THOUGHTS: Final = (
    ThoughtMarks("<think>", "</think>"),
    ThoughtMarks("[THINK]", "[/THINK]"),
    ThoughtMarks("<seed:think>", "</seed:think>"),
    ThoughtMarks("◁think▷", "◁/think▷"),
    ThoughtMarks("<|START_THINKING|>", "<|END_THINKING|>"),
)
_LLAMA_3: Final = re.compile(r"\bipython\b.*\"parameters\"|\"parameters\".*\bipython\b", re.DOTALL)


def output_format(template: str, added: Iterable[str], *, takes_tools: bool) -> OutputFormat:
    """The format of a model, by the source of its chat template and its tokenizer's added tokens."""
    tokens = frozenset(added)
    if "<|channel|>" in template and "<|message|>" in template:
        marks = ThoughtMarks("<|channel|>analysis<|message|>", "<|end|>")
        return OutputFormat(thoughts=marks, calls=CHANNELS if takes_tools else None, channels=True)
    thoughts = next((marks for marks in THOUGHTS if marks.end in template or tokens.issuperset(marks)), None)
    calls = next((syntax for texts, syntax in FAMILIES if all(text in template for text in texts)), None)
    if calls is None and _LLAMA_3.search(template):
        calls = LLAMA
    if calls is None and "<|tool_call|>" in tokens:
        calls = PHI
    return OutputFormat(thoughts=thoughts, calls=calls if takes_tools else None)
