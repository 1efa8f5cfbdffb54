"""Grammars of calls: what each family's grammar lets a model write, its reader reads; and what it does not let it."""

import json

import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer

from triolet.actors.detokenizer.answer_parts import AnswerReader, Calls
from triolet.actors.detokenizer.channel_reader import ChannelReader
from triolet.actors.detokenizer.marked_reader import MarkedReader
from triolet.actors.tokenizer.call_grammar import call_grammar, grammar_tokens
from triolet.actors.tokenizer.output_format import FAMILIES, OutputFormat, output_format
from triolet.cli.options import BUNDLED_MODEL
from triolet.protocol.errors import ApiError
from triolet.protocol.grammars import GrammarSource
from triolet.protocol.requests import FunctionTool, ToolUse

WEATHER = FunctionTool(
    name="get_weather",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    strict=True,
)
NOW = FunctionTool(name="now", strict=True)
TOOLS = (WEATHER, NOW)
MUST = ToolUse(choice="required")
HARMONY = "<|channel|><|message|>"
SOURCES = [*("".join(texts) for texts, syntax in FAMILIES if syntax.form), HARMONY]
SCHEMA = GrammarSource(kind="json_schema", text='{"type": "object"}', param="response_format.json_schema.schema")


class Model:
    """A tokenizer with the family's marks as special tokens or not, and what llguidance makes of it."""

    def __init__(self, source: str, *, special: bool) -> None:
        tokenizer = Tokenizer.from_file(str(BUNDLED_MODEL / "tokenizer.json"))
        self.form: OutputFormat = output_format(source, (), takes_tools=True)
        new = [mark for mark in sorted(self.form.marks) if tokenizer.token_to_id(mark) is None] if special else []
        added = [AddedToken(mark, special=True) for mark in new]
        tokenizer.add_tokens(added)  # pyright: ignore[reportUnknownMemberType]  # an untyped list
        self.tokenizer = tokenizer
        self.special = grammar_tokens(tokenizer)
        self._guide = LLTokenizer(tokenizer.to_str(), n_vocab=tokenizer.get_vocab_size(with_added_tokens=True))

    def accepts(self, grammar: GrammarSource | None, text: str) -> bool:
        assert grammar is not None
        matcher = LLMatcher(self._guide, LLMatcher.grammar_from_lark(grammar.text), log_level=0)
        assert not matcher.is_error(), f"{matcher.get_error()}\n{grammar.text}"
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    def reader(self) -> AnswerReader:
        calls = Calls({tool.name: tool.parameters for tool in TOOLS}, "r/0", guided=True)
        return ChannelReader(calls) if self.form.channels else MarkedReader(self.form, calls)


def written(model: Model, *calls: tuple[str, str]) -> str:
    form = model.form.calls and model.form.calls.form
    assert form
    texts = [form.before.replace("NAME", name) + arguments + form.after for name, arguments in calls]
    return (form.first + form.between.join(texts) + form.last).replace("\N{SYMBOL FOR NEWLINE}", "\n")


ROME = ("get_weather", '{"city": "Rome"}')


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("source", SOURCES)
def test_a_call_that_must_come_comes_as_its_family_writes_it(source: str, special: bool) -> None:
    model = Model(source, special=special)
    grammar = call_grammar(TOOLS, MUST, model.form, model.special)
    text = written(model, ROME)
    assert model.accepts(grammar, text)
    assert not model.accepts(grammar, "Hello")
    assert not model.accepts(grammar, written(model, ("get_weather", '{"town": "Rome"}')))
    assert not model.accepts(grammar, written(model, ("sleep", "{}")))
    reader = model.reader()
    pieces = [piece for letter in text for piece in reader.read(letter)] + reader.finish()
    assert [piece.starts.name for piece in pieces if piece.starts] == ["get_weather"]
    assert "".join(piece.text for piece in pieces if piece.kind == "tool") == ROME[1]
    assert not any(piece.text.strip() for piece in pieces if piece.kind == "text")


@pytest.mark.parametrize("source", SOURCES)
def test_several_calls_come_if_they_may(source: str) -> None:
    model = Model(source, special=True)
    assert model.form.calls
    assert model.form.calls.form
    text = written(model, ROME, ("now", "{}"))
    several = call_grammar(TOOLS, MUST, model.form, model.special)
    assert model.accepts(several, text) is model.form.calls.form.parallel
    assert not model.accepts(
        call_grammar(TOOLS, ToolUse(choice="required", parallel=False), model.form, model.special), text
    )


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("source", [source for source in SOURCES if source != HARMONY])
def test_a_strict_call_is_guided_from_where_it_begins(source: str, special: bool) -> None:
    model = Model(source, special=special)
    grammar = call_grammar(TOOLS, ToolUse(), model.form, model.special)
    bare = model.form.calls is not None and bool(model.form.calls.bare)
    assert model.accepts(grammar, "Hello, <you>.")
    assert model.accepts(grammar, ("" if bare else "I look. ") + written(model, ROME))
    assert not model.accepts(grammar, ("" if bare else "I look. ") + written(model, ("sleep", "{}")))


def test_a_named_function_is_the_only_one() -> None:
    model = Model("<tool_call>", special=False)
    grammar = call_grammar(TOOLS, ToolUse(choice="required", name="now", parallel=False), model.form, model.special)
    assert model.accepts(grammar, written(model, ("now", "{}")))
    assert not model.accepts(grammar, written(model, ROME))


def test_free_calls_need_no_grammar() -> None:
    model = Model("<tool_call>", special=False)
    assert call_grammar((FunctionTool(name="now"),), ToolUse(), model.form, model.special) is None


def test_an_answer_in_a_form_or_a_call() -> None:
    model = Model("<tool_call>", special=False)
    grammar = call_grammar((FunctionTool(name="now"),), ToolUse(), model.form, model.special, SCHEMA)
    assert model.accepts(grammar, '{"a": 1}')
    assert not model.accepts(grammar, '{"a":1}')  # as without tools
    assert model.accepts(grammar, written(model, ("now", "{}")))
    assert not model.accepts(grammar, "Hello")


def test_the_answer_keeps_its_options_beside_tools() -> None:
    text = '{"properties": {"a": {"type": "array", "uniqueItems": true}}, "required": ["a"]}'
    answer = GrammarSource(kind="json_schema", text=text, param="guided_json", lenient=True, whitespace_pattern="")
    model = Model("<tool_call>", special=False)
    grammar = call_grammar((FunctionTool(name="now"),), ToolUse(), model.form, model.special, answer)
    assert grammar is not None
    assert grammar.param == "guided_json"
    assert model.accepts(grammar, '{"a":[]}')
    assert not model.accepts(grammar, '{"a": []}')


OWN = {"type": "object", "x-guidance": {"lenient": True}}


@pytest.mark.parametrize(
    ("tool", "answer", "param"),
    [
        (FunctionTool(name="now", parameters=OWN, strict=True), None, "tools"),
        (FunctionTool(name="now"), GrammarSource(kind="json_schema", text=json.dumps(OWN), param="p"), "p"),
    ],
)
def test_options_of_the_compiler_are_refused(tool: FunctionTool, answer: GrammarSource | None, param: str) -> None:
    model = Model("<tool_call>", special=False)
    with pytest.raises(ApiError, match="x-guidance is not supported") as caught:
        call_grammar((tool,), ToolUse(), model.form, model.special, answer)
    assert (caught.value.code, caught.value.param) == ("invalid_grammar", param)


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.mark.parametrize(
    "parameters",
    [
        {"$ref": "#/$defs/City", "$defs": {"City": CITY}},
        {"anyOf": [CITY, {"type": "object", "properties": {"id": {"type": "integer"}}}]},
        {"oneOf": [CITY]},
        {"allOf": [CITY]},
    ],
)
def test_a_schema_may_be_made_of_others(parameters: dict[str, object]) -> None:
    tool = FunctionTool(name="get_weather", parameters=parameters, strict=True)
    model = Model("<tool_call>", special=False)
    assert model.accepts(call_grammar((tool,), MUST, model.form, model.special), written(model, ROME))


@pytest.mark.parametrize(
    ("source", "use", "answer", "param"),
    [
        ("", MUST, None, "tool_choice"),
        ("<function=", MUST, None, "tool_choice"),
        ("<function=", ToolUse(), None, "tools"),
        ("<function=", ToolUse(), SCHEMA, SCHEMA.param),
        ("<tool_call>", ToolUse(), GrammarSource(kind="regex", text="a", param="guided_regex"), "guided_regex"),
    ],
)
def test_what_cannot_be_guided_is_refused(source: str, use: ToolUse, answer: GrammarSource | None, param: str) -> None:
    model = Model(source, special=False)
    with pytest.raises(ApiError) as caught:
        call_grammar(TOOLS, use, model.form, model.special, answer)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_loose_schema_is_followed_as_far_as_it_can_be() -> None:
    odd = FunctionTool(name="now", parameters=json.loads('{"properties": {"a": {"not": {"const": 1}}}}'))
    model = Model("<tool_call>", special=False)
    assert model.accepts(call_grammar((odd,), MUST, model.form, model.special), written(model, ("now", '{"a": 2}')))
