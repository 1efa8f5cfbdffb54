"""The grammar of an answer that must call a function, or may call it only as its schema says. Pure.

It is Lark as llguidance reads it, made of the family's own form of calls. With `tool_choice: auto` the answer is free
text until a call begins; from there the call is guided.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tokenizers import Tokenizer

from ...protocol.errors import ApiError
from ...protocol.grammars import GrammarSource, spacing_of
from ...protocol.requests import FunctionTool, ToolUse
from .output_format import LINE, CallForm, CallSyntax, OutputFormat

MAX_CALLS: Final = 32  # of one answer, in parallel
_SPACE: Final = "/[ \\n]{1,2}/?"
# A regex for each gap in the arguments of a call: families differ, and each writes as it was taught.
_SPACING: Final = "[ ]?"
_COMBINED: Final = frozenset(("$ref", "anyOf", "oneOf", "allOf"))

Json = dict[str, Any]  # Any: JSON values


def grammar_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """The ids of the tokens that llguidance takes for special ones, by text: in a grammar they stand for themselves."""
    added = tokenizer.get_added_tokens_decoder().items()
    return {
        token.content: id
        for id, token in added
        if token.special or (token.content.startswith("<") and token.content.endswith(">"))
    }


def call_grammar(
    tools: tuple[FunctionTool, ...],
    use: ToolUse,
    output: OutputFormat,
    special: Mapping[str, int],
    answer: GrammarSource | None = None,
) -> GrammarSource | None:
    """The grammar that the calls need; None if they need none. `special` is what `grammar_tokens` says.

    `answer` is what the client wants the answer to be if nothing is called. Raises ApiError (400) if this model's calls
    cannot be guided, or not together with that.
    """
    must = use.choice == "required"
    if not must and answer is None and not any(tool.strict for tool in tools):
        return None
    syntax = output.calls
    if syntax is None and not must:  # there will be no calls
        return None
    if syntax is None or syntax.form is None:
        raise _unguided(syntax, answer, must=must)
    if answer is not None and not must and answer.kind != "json_schema":
        problem = f"{answer.param} does not go together with tools; send tool_choice none or required."
        raise ApiError("unsupported_parameter", problem, param=answer.param)
    named = {number: tool for number, tool in enumerate(tools) if use.name in ("", tool.name)}
    writer = _Writer(syntax.form, special, named)
    many = use.parallel and syntax.form.parallel
    begin = _SPACE if output.thoughts is not None and not output.channels else ""
    if output.channels and syntax.form.may_precede:
        begin = f"({writer.text(syntax.form.may_precede)})?"
    calls = f"{begin} {writer.calls('call', '', many=many)}"
    if must:
        start = calls
    elif answer is not None:
        writer.lines.append(f"answer: %json {_answer(answer)}")
        start = f"{begin} answer | {calls}"
    else:
        start = _after_text(writer, syntax, calls, many=many)
    schemas = {f"args_{number}": f"tools[{number}].{use.schema_field}" for number in named}
    param = "tools"
    if answer is not None and not must:
        schemas["answer"] = param = answer.param
    return GrammarSource(kind="lark", text="\n".join([f"start: {start}", *writer.lines]), param=param, schemas=schemas)


def _after_text(writer: "_Writer", syntax: CallSyntax, calls: str, *, many: bool) -> str:
    """Free text, or free text and calls behind it. It ends where the mark that begins a call ends."""
    form = writer.form
    written = form.first + form.before
    mark = next((mark for mark in (*syntax.around, *syntax.begins) if written.startswith(mark)), "")
    if mark in writer.special:  # free text has no special tokens
        writer.lines.append("TEXT: /(?s:.*)/")
        return f"TEXT | TEXT? {calls}"
    if not mark:  # the whole answer is text or a call, as its first character says
        first = re.escape(written[0])
        writer.lines.append(f"TEXT: /(?s:[^{first}\\s].*)/")
        return f"TEXT | {calls}"
    quoted = re.escape(mark).replace("\\\n", "\\n").replace("/", "\\/")
    writer.lines.append(f"TEXT: /(?s:.*)/ & ~/(?s:.*){quoted}(?s:.*)/")
    writer.lines.append(f"lead[suffix={json.dumps(mark)}]: /(?s:.*)/")
    return f"TEXT | lead {writer.calls('first', mark, many=many)}"


class _Writer:
    """Writes rules of calls, numbered like the tools. `lines` are those so far, without the first."""

    def __init__(self, form: CallForm, special: Mapping[str, int], tools: Mapping[int, FunctionTool]) -> None:
        self.form = form
        self.special = special
        self.lines: list[str] = []
        self._names = {number: tool.name for number, tool in tools.items()}
        self._pattern = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)")
        self._rule("call", form.before)
        for number, tool in tools.items():
            self.lines.append(f"args_{number}: %json {_schema(tool)}")

    def calls(self, first: str, without: str, *, many: bool) -> str:
        """One call or several, the first by the rule `first`, from behind the text `without`."""
        form = self.form
        opening = form.first.removeprefix(without)
        if first != "call":
            self._rule(first, form.before if form.first else form.before.removeprefix(without))
        more = f"({self.text(form.between)} call){{0,{MAX_CALLS - 1}}}" if many else ""
        return " ".join(part for part in (self.text(opening), first, more, self.text(form.last)) if part)

    def _rule(self, rule: str, before: str) -> None:
        self.lines.append(f"{rule}: {' | '.join(f'{rule}_{number}' for number in self._names)}")
        for number, name in self._names.items():
            parts = self.text(before.replace("NAME", name)), f"args_{number}", self.text(self.form.after)
            self.lines.append(f"{rule}_{number}: {' '.join(filter(None, parts))}")

    def text(self, text: str) -> str:
        """A fixed text; control tokens in it are tokens, not their letters."""
        return " ".join(self._parts(text))

    def _parts(self, text: str) -> Iterable[str]:
        done = 0
        for found in self._pattern.finditer(text):
            yield from _literal(text[done : found.start()])
            yield f"<[{self.special[found[0]]}]>"
            done = found.end()
        yield from _literal(text[done:])


def _literal(text: str) -> Iterable[str]:
    for place, part in enumerate(text.split(LINE)):
        if place:
            yield '"\\n"?'
        if part:
            yield json.dumps(part, ensure_ascii=False)


def _schema(tool: FunctionTool) -> str:
    """The schema of its arguments: an object, without arguments that it does not name unless it says so.

    One that is made of other schemas says it in them: closed here, it would allow none of their arguments.
    """
    closed: Json = {} if _COMBINED & tool.parameters.keys() else {"properties": {}, "additionalProperties": False}
    schema: Json = {"type": "object", **closed, **tool.parameters}
    return _with_options(schema, "tools", spacing_of(_SPACING), lenient=not tool.strict)


def _answer(answer: GrammarSource) -> str:
    spacing = spacing_of(answer.whitespace_pattern)  # as without tools
    return _with_options(json.loads(answer.text), answer.param, spacing, lenient=answer.lenient)


def _with_options(schema: Json, param: str, spacing: Json, *, lenient: bool) -> str:
    """Raises ApiError (400) if the schema has options of the compiler's already."""
    if "x-guidance" in schema:
        raise ApiError("invalid_grammar", f"{param}: x-guidance is not supported; leave it out.", param=param)
    return json.dumps({**schema, "x-guidance": {**spacing, "lenient": lenient}})


def _unguided(syntax: CallSyntax | None, answer: GrammarSource | None, *, must: bool) -> ApiError:
    why = "its chat template knows no tools" if syntax is None else "the form of its calls cannot be guided"
    if must:
        return ApiError("unsupported_parameter", f"This model cannot be made to call: {why}.", param="tool_choice")
    if answer is not None:
        problem = f"{answer.param} does not go together with this model's tools ({why}); send tool_choice none."
        return ApiError("unsupported_parameter", problem, param=answer.param)
    return ApiError("unsupported_parameter", f"This model's calls cannot be strict: {why}.", param="tools")
