"""Random calls, written as each model family writes them, whole and garbled."""

import json
from collections.abc import Callable
from random import Random
from typing import Any, Final, NamedTuple

from triolet.actors.tokenizer.call_syntax import Tools

PROPERTIES: Final[dict[str, Any]] = {  # Any: JSON
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "ratio": {"type": "number"},
    "sure": {"type": "boolean"},
    "tags": {"type": "array"},
    "detail": {"type": "object"},
}
FLAT: Final = ("text", "count", "ratio", "sure")
KINDS: Final = (*PROPERTIES, "none")
TOOLS: Final[Tools] = {
    "write_file": {"type": "object", "properties": PROPERTIES},
    "now": {"type": "object", "properties": PROPERTIES},
    "a.b-c": {"type": "object", "properties": PROPERTIES},
}
PYTHON_NAMES: Final = ("write_file", "now")
PIECES: Final = (
    "a", "Rome", " ", "\n", "\t", "\\", '"', "'", "{", "}", "[", "]", "}}", '": {', ", ", "ü", "漢字", "🙂", "\u2028",
    "\x7f", "\\n", "\\u00e9", "```", "<", ">", "</", "<b>", "&amp;", "http://a/b?c=d", "print(1)", "null", "NaN", "🇮🇹",
    "e\u0301",
)  # fmt: skip


class WrittenCall(NamedTuple):
    name: str
    arguments: dict[str, Any]  # Any: JSON


class Writer(NamedTuple):
    """`template`: a text of the family's chat template. `write` gives the calls as the model would."""

    template: str
    write: Callable[[Random, list[WrittenCall]], str]
    marks: tuple[str, ...] = ()  # what a model may well write inside a string
    parallel: bool = True
    names: tuple[str, ...] = tuple(TOOLS)
    completes: str = "}"  # without the last of these, a call is cut
    around: tuple[str, ...] = ()  # marks that say nothing


def text_of(random: Random, extra: tuple[str, ...] = ()) -> str:
    return "".join(random.choices((*PIECES, *extra), k=random.choice((0, 1, 3, 8))))


def value_of(random: Random, kind: str, depth: int, extra: tuple[str, ...]) -> Any:  # JSON
    """A value of the kind, nested at most so deep."""

    def inside() -> Any:
        return value_of(random, random.choice(KINDS if depth > 1 else FLAT), depth - 1, extra)

    match kind:
        case "text":
            return text_of(random, extra)
        case "count":
            return random.choice((0, -1, 7, 2**53, -(10**20)))
        case "ratio":
            return random.choice((0.5, -1.25e-9, 1e300))
        case "sure":
            return random.random() < 0.5
        case "tags":
            return [inside() for _ in range(random.randrange(4))]
        case "detail":
            return {text_of(random, extra): inside() for _ in range(random.randrange(4))}
        case _:
            return None


def arguments_of(random: Random, writer: Writer) -> dict[str, Any]:
    extra = writer.marks
    keys = random.sample(KINDS[:-1], random.randrange(len(KINDS)))
    return {key: value_of(random, key, 3, extra) for key in keys}


def calls_of(random: Random, writer: Writer) -> list[WrittenCall]:
    count = random.choice((1, 1, 2, 3)) if writer.parallel else 1
    return [WrittenCall(random.choice(writer.names), arguments_of(random, writer)) for _ in range(count)]


def spelt(random: Random, value: object) -> str:
    """JSON as models write it: with or without spaces, new lines and escapes."""
    separators = random.choice(((",", ":"), (", ", ": "), (" , ", " : ")))
    indent = random.choice((None, None, 2))
    return json.dumps(value, ensure_ascii=random.random() < 0.5, separators=separators, indent=indent)


def entry(random: Random, call: WrittenCall, key: str = "arguments") -> str:
    return spelt(random, {"name": call.name, key: call.arguments})


def between(random: Random) -> str:
    return random.choice(("", "\n", " "))


def hermes(random: Random, calls: list[WrittenCall]) -> str:
    space = between(random)
    return "\n".join(f"<tool_call>{space}{entry(random, call)}{space}</tool_call>" for call in calls)


def llama(random: Random, calls: list[WrittenCall]) -> str:
    return random.choice(("", "<|python_tag|>")) + "; ".join(entry(random, call, "parameters") for call in calls)


def listed(before: str, after: str) -> Callable[[Random, list[WrittenCall]], str]:
    def write(random: Random, calls: list[WrittenCall]) -> str:
        return before + "[" + ", ".join(entry(random, call) for call in calls) + "]" + after

    return write


def named(before: str, middle: str, after: str, first: str = "", last: str = "") -> Callable[..., str]:
    def write(random: Random, calls: list[WrittenCall]) -> str:
        written = [before + call.name + middle + spelt(random, call.arguments) + after for call in calls]
        return first + "".join(written) + last

    return write


def pythonic(before: str, after: str) -> Callable[[Random, list[WrittenCall]], str]:
    def write(random: Random, calls: list[WrittenCall]) -> str:
        written = [
            f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})" for call in calls
        ]
        return f"{before}[{', '.join(written)}]{after}"

    return write


def tagged_value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def coder(random: Random, calls: list[WrittenCall]) -> str:
    return "\n".join(
        f"<tool_call>\n<function={call.name}>\n"
        + "".join(f"<parameter={key}>\n{tagged_value(value)}\n</parameter>\n" for key, value in call.arguments.items())
        + "</function>\n</tool_call>"
        for call in calls
    )


def glm(random: Random, calls: list[WrittenCall]) -> str:
    return "\n".join(
        f"<tool_call>{call.name}\n"
        + "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{tagged_value(value)}</arg_value>\n"
            for key, value in call.arguments.items()
        )
        + "</tool_call>"
        for call in calls
    )


def harmony(random: Random, calls: list[WrittenCall]) -> str:
    head = "<|channel|>commentary to=functions."
    return "<|start|>assistant".join(
        f"{head}{call.name} <|constrain|>json<|message|>{spelt(random, call.arguments)}<|call|>" for call in calls
    )


_SEP: Final = "<｜tool▁sep｜>"
_DEEP: Final = ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_KIMI: Final = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
WRITERS: Final = {
    "hermes": Writer("<tool_call>", hermes, marks=("</tool_call>", "<tool_call>", "<think>")),
    "coder": Writer("<tool_call><function=", coder, completes="</tool_call>"),
    "glm": Writer("<tool_call><arg_key>", glm, completes="</tool_call>"),
    "llama 3": Writer("<|python_tag|>", llama, marks=("</tool_call>",)),
    "llama 4": Writer("<|python_start|>", pythonic("", ""), names=PYTHON_NAMES, completes=")"),
    "llama 4, marked": Writer(
        "<|python_start|>", pythonic("<|python_start|>", "<|python_end|>"), names=PYTHON_NAMES, completes=")"
    ),
    "mistral, a list": Writer("[TOOL_CALLS]", listed("[TOOL_CALLS]", ""), marks=("[TOOL_CALLS]",)),
    "mistral": Writer("[TOOL_CALLS][ARGS]", named("[TOOL_CALLS]", "[ARGS]", ""), marks=("[TOOL_CALLS]", "[ARGS]")),
    "phi": Writer("<|tool_call|>", listed("<|tool_call|>", "<|/tool_call|>"), marks=("<|/tool_call|>",)),
    "gemma, JSON": Writer("```tool_code", listed("```tool_code\n", "\n```"), marks=("```",)),
    "gemma": Writer("```tool_code", pythonic("```tool_code\n", "\n```"), names=PYTHON_NAMES, completes=")"),
    "deepseek v3": Writer(
        "<｜tool▁call▁begin｜></think>```json",
        named(f"{_DEEP[0]}function{_SEP}", "\n```json\n", f"\n```{_DEEP[1]}", _DEEP[2], _DEEP[3]),
        marks=("```", _DEEP[1]),
        around=_DEEP[2:],
    ),
    "deepseek v3.1": Writer(
        "<｜tool▁call▁begin｜></think>",
        named(_DEEP[0], _SEP, _DEEP[1], _DEEP[2], _DEEP[3]),
        marks=(_DEEP[1],),
        around=_DEEP[2:],
    ),
    "kimi": Writer(
        "<|tool_call_begin|>",
        named("<|tool_call_begin|>functions.", ":0<|tool_call_argument_begin|>", "<|tool_call_end|>", *_KIMI),
        marks=("<|tool_call_end|>",),
        around=_KIMI,
    ),
    "gpt-oss": Writer("<|channel|><|message|>", harmony, marks=("<|end|>", "<|call|>", "<|start|>")),
}
