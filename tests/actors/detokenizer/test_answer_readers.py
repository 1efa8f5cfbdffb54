"""What readers make of answers: those of each family as they are meant, and the same however they are cut."""

import json
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.actors.detokenizer.answer_parts import AnswerReader, Calls, ReadPart
from triolet.actors.detokenizer.channel_reader import ChannelReader
from triolet.actors.detokenizer.json_extent import JsonExtent
from triolet.actors.detokenizer.marked_reader import MAX_HEAD, MarkedReader
from triolet.actors.tokenizer.call_syntax import MAX_PYTHON
from triolet.actors.tokenizer.output_format import output_format

from .families import ANSWERS, CODER, DEEPSEEK, GARBLED, HARMONY, HERMES, PYTHON_TAG, QWEN_3, TOOLS, Answer


def reader(
    template: str, *, thinks: bool = False, guided: bool = False, parallel: bool = True, calls: bool = True
) -> AnswerReader:
    form = output_format(template, (), takes_tools=True)
    assert form.calls is not None or not calls, template
    length = form.calls.id_length if form.calls else 0
    made = Calls(TOOLS, "r/0", guided=guided, parallel=parallel, id_length=length) if calls else None
    return ChannelReader(made) if form.channels else MarkedReader(form, made, in_thought=thinks)


def joined(pieces: list[ReadPart]) -> list[ReadPart]:
    """Adjacent pieces of one kind and call as one."""
    whole: list[ReadPart] = []
    for piece in pieces:
        last = whole[-1] if whole else None
        if last and piece.starts is None and (last.kind, last.call) == (piece.kind, piece.call):
            whole[-1] = last._replace(text=last.text + piece.text)
        else:
            whole.append(piece)
    return whole


def read(reader: AnswerReader, texts: list[str]) -> list[ReadPart]:
    pieces = [piece for text in texts for piece in reader.read(text)]
    return joined([*pieces, *reader.finish()])


def text_of(pieces: list[ReadPart], kind: str) -> str:
    return "".join(piece.text for piece in pieces if piece.kind == kind)


def calls_of(pieces: list[ReadPart]) -> tuple[tuple[str, str], ...]:
    return tuple((piece.starts.name, piece.text) for piece in pieces if piece.starts)


def cut(text: str, places: list[int]) -> list[str]:
    bounds = [0, *sorted({place % (len(text) + 1) for place in places}), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


NAMES = [answer.family for answer in ANSWERS]


@pytest.mark.parametrize("answer", ANSWERS, ids=NAMES)
def test_an_answer_says_what_its_family_means(answer: Answer) -> None:
    whole = read(reader(answer.template, thinks=answer.thinks, calls=bool(answer.calls)), [answer.raw])
    if answer.calls:
        assert [(name, json.loads(arguments)) for name, arguments in calls_of(whole)] == [
            (name, json.loads(arguments)) for name, arguments in answer.calls
        ]
    assert (text_of(whole, "text"), text_of(whole, "reasoning")) == (answer.text, answer.thoughts)


@pytest.mark.parametrize("answer", ANSWERS, ids=NAMES)
@settings(deadline=None)
@given(places=st.lists(st.integers(0, 400), max_size=30))
def test_cutting_an_answer_changes_nothing(answer: Answer, places: list[int]) -> None:
    form = output_format(answer.template, (), takes_tools=True)
    tools = form.calls is not None
    whole = read(reader(answer.template, thinks=answer.thinks, calls=tools), [answer.raw])
    for texts in (cut(answer.raw, places), list(answer.raw)):
        assert read(reader(answer.template, thinks=answer.thinks, calls=tools), texts) == whole


@pytest.mark.parametrize(("template", "raw"), GARBLED)
def test_a_garbled_call_is_text(template: str, raw: str) -> None:
    for texts in ([raw], list(raw)):
        pieces = read(reader(template), texts)
        assert (text_of(pieces, "text"), calls_of(pieces)) == (raw, ())


@settings(deadline=None)
@given(
    raw=st.lists(
        st.sampled_from(
            [
                "<tool_call>",
                "</tool_call>",
                "<think>",
                "</think>",
                '{"name": "now", "arguments": {}}',
                " ",
                "\n",
                "a",
                "<",
            ]
        )
    ).map("".join),
    places=st.lists(st.integers(0, 200), max_size=10),
    thinks=st.booleans(),
)
def test_marks_in_any_order_are_read_alike_however_they_are_cut(raw: str, places: list[int], thinks: bool) -> None:
    whole = read(reader(QWEN_3, thinks=thinks), [raw])
    assert read(reader(QWEN_3, thinks=thinks), cut(raw, places)) == whole
    said = re.sub(r"\s", "", text_of(whole, "text") + text_of(whole, "reasoning"))
    assert len(said) <= len(raw)
    for _, arguments in calls_of(whole):
        assert json.loads(arguments) == {}


def test_nothing_is_held_back_that_cannot_be_a_mark() -> None:
    held = reader(HERMES)
    shown = [text_of(held.read(letter), "text") for letter in "a <b<to"]
    assert shown == ["a", "", "", " <b", "", "", ""]


def test_a_reader_without_tools_becomes_plain_behind_the_thoughts() -> None:
    thinking = reader(QWEN_3, calls=False, thinks=True)
    seen = [(text, thinking.read(text), thinking.plain) for text in ("Hm", ".</think>", "\n\n", "Yes", " <tool_call>")]
    assert [plain for _, _, plain in seen] == [False, False, False, True, True]
    assert text_of(seen[-1][1], "text") == " <tool_call>"


def test_one_call_is_enough_if_they_may_not_be_parallel() -> None:
    single = reader(HERMES, parallel=False)
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    assert not single.calls.enough
    pieces = joined(single.read(call * 2))
    assert single.calls.enough
    assert calls_of(pieces) == (("now", "{}"),)


GUIDED = [
    answer for answer in ANSWERS if answer.family in ("hermes", "mistral, named", "gpt-oss", "deepseek v3", "kimi k2")
]


@pytest.mark.parametrize("answer", GUIDED, ids=[answer.family for answer in GUIDED])
def test_the_arguments_of_a_guided_call_come_as_they_are_written(answer: Answer) -> None:
    guided = reader(answer.template, guided=True)
    pieces = [piece for letter in answer.raw for piece in guided.read(letter)]
    pieces += guided.finish()
    assert calls_of(joined(pieces)) == answer.calls
    assert sum(piece.kind == "tool" for piece in pieces) > 2 * len(answer.calls)


GEMMA = "```tool_code"
MISTRAL = "[TOOL_CALLS][ARGS]"
GLM = "<tool_call><arg_key>"


@pytest.mark.parametrize(
    ("template", "raw"),
    [
        (PYTHON_TAG, '{"note": "hello"}'),
        (PYTHON_TAG, '{"name": "Bob", "parameters": {}}'),
        (PYTHON_TAG, '{"name": "get_wea'),
        (HERMES, '{"note": "use <tool_call> here"}'),
        (HERMES, '<tool_call>\n{"name": "get_weather", "argu'),
        (DEEPSEEK, "<｜tool▁call▁begin｜>now<｜tool▁s"),
    ],
)
def test_a_guided_answer_without_the_head_of_a_call_is_text(template: str, raw: str) -> None:
    for texts in ([raw], list(raw)):
        assert read(reader(template, guided=True), texts) == [ReadPart("text", raw)]


def test_a_guided_answer_that_is_no_call_is_text_as_it_comes() -> None:
    guided = reader(PYTHON_TAG, guided=True)
    assert text_of(joined(guided.read('{"note": "hel')), "text") == '{"note": "hel'


@pytest.mark.parametrize(
    ("template", "before", "mark", "after"),
    [
        (HERMES, '<tool_call>{"name": "get_weather", "arguments": ', "</tool_call>", "}</tool_call>"),
        (MISTRAL, "[TOOL_CALLS]get_weather[ARGS]", "[TOOL_CALLS]", ""),
        (HARMONY, "<|channel|>commentary to=functions.get_weather <|message|>", "<|start|>", "<|call|>"),
    ],
)
def test_a_mark_in_a_string_of_a_guided_call_is_an_argument(template: str, before: str, mark: str, after: str) -> None:
    arguments = f'{{"city": "x {mark} y"}}'
    raw = before + arguments + after
    for texts in ([raw], list(raw)):
        pieces = read(reader(template, guided=True), texts)
        assert (text_of(pieces, "text"), calls_of(pieces)) == ("", (("get_weather", arguments),))


@pytest.mark.parametrize(
    ("template", "before"),
    [
        (HERMES, '<tool_call>{"name": "get_weather", "arguments": '),
        (HARMONY, "<|channel|>commentary to=functions.get_weather <|message|>"),
    ],
)
def test_a_guided_call_that_is_cut_has_the_arguments_so_far(template: str, before: str) -> None:
    raw = before + '{"city": "Ro'
    for texts in ([raw], list(raw)):
        assert calls_of(read(reader(template, guided=True), texts)) == (("get_weather", '{"city": "Ro'),)
    for texts in ([before], list(before)):
        assert calls_of(read(reader(template, guided=True), texts)) == ()


MANY = 1 << 17


@pytest.mark.parametrize(
    ("template", "raw"),
    [
        (MISTRAL, "[TOOL_CALLS]f" + " " * MANY),
        (MISTRAL, "[TOOL_CALLS]f[CALL_ID]" + "{" * MANY),
        (HERMES, '<tool_call>{"' + '\\"' * MANY + "</tool_call>"),
        (CODER, "<tool_call>" + "<function=" * MANY),
        (CODER, "<tool_call><function=now>" + "<parameter=" * MANY + "</function>"),
        (GLM, "<tool_call>now" + "<arg_key>a</arg_key><arg_value>" * MANY),
        ("<｜tool▁call▁begin｜>```json", "<｜tool▁call▁begin｜>" + "a```json{" * MANY),
    ],
    ids=["spaces", "braces", "quotes", "functions", "parameters", "glm", "deepseek"],
)
def test_no_garbled_call_takes_time_that_grows_with_its_square(template: str, raw: str) -> None:
    """With such patterns this would take from minutes to hours."""
    assert read(reader(template), [raw]) == [ReadPart("text", raw)]


def test_json_that_is_too_long_to_be_read_as_python_is_still_a_call() -> None:
    arguments = json.dumps({"city": "x" * MAX_PYTHON})
    raw = f'```tool_code\n[{{"name": "get_weather", "arguments": {arguments}}}]\n```'
    assert calls_of(read(reader(GEMMA), [raw])) == (("get_weather", arguments),)


def test_a_call_that_is_not_guided_comes_as_a_whole() -> None:
    whole = reader(HERMES)
    pieces = [piece for letter in ANSWERS[0].raw for piece in whole.read(letter)]
    assert [(piece.kind, bool(piece.starts), piece.text) for piece in pieces] == [
        ("tool", True, ""),
        ("tool", False, '{"city": "Rome"}'),
    ]


def test_calls_have_ids_as_their_family_wants_them() -> None:
    def ids(template: str, raw: str) -> list[str]:
        return [piece.starts.id for piece in read(reader(template), [raw]) if piece.starts]

    hermes = ids(HERMES, '<tool_call>{"name": "now", "arguments": {}}</tool_call>' * 2)
    assert len(set(hermes)) == 2
    assert all(re.fullmatch(r"call_[0-9a-f]{24}", id) for id in hermes)
    (mistral,) = ids("[TOOL_CALLS]", "[TOOL_CALLS]now[ARGS]{}")
    assert re.fullmatch(r"[0-9a-zA-Z]{9}", mistral)


@settings(deadline=None)
@given(value=st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_a_json_value_ends_where_it_ends(value: object) -> None:
    text = json.dumps({"a": value})
    extent = JsonExtent()
    assert sum(extent.read(letter) for letter in text + "}] x") == len(text)
    assert extent.done


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize(("template", "before"), [(HERMES, "<tool_call>"), (PYTHON_TAG, "")])
def test_a_head_that_never_ends_is_looked_at_a_bounded_number_of_times(
    monkeypatch: pytest.MonkeyPatch, template: str, before: str, guided: bool
) -> None:
    """However long the answer is: what is looked at again with every token stays short."""
    looks: list[int] = []
    begin, wait = MarkedReader._begin_guided, MarkedReader._wait_for_call

    def begins(self: MarkedReader, body: str, pieces: list[ReadPart]) -> str:
        looks.append(len(body))
        return begin(self, body, pieces)

    def waits(self: MarkedReader, pieces: list[ReadPart]) -> str:
        looks.append(len(self._held))
        return wait(self, pieces)

    monkeypatch.setattr(MarkedReader, "_begin_guided", begins)
    monkeypatch.setattr(MarkedReader, "_wait_for_call", waits)
    made, answer = reader(template, guided=guided), before + '{"name": "' + "a" * 20 * MAX_HEAD
    pieces = [piece for character in answer for piece in made.read(character)]
    assert not pieces
    assert len(looks) <= 2 * MAX_HEAD + 2
    assert max(looks) <= MAX_HEAD + 1
    assert text_of(made.finish(), "text") == answer
