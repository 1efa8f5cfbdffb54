"""Choices that are split: tokens in, parts out, every token counted once; and what the detokenizer makes of them."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from triolet.actors.detokenizer.choice_text import ChoiceText
from triolet.actors.detokenizer.detokenizer import Detokenizer
from triolet.actors.detokenizer.read_choice import ReadChoice, choice_of
from triolet.actors.tokenizer.chat_templates import choose_templates
from triolet.actors.tokenizer.text_tokenizer import TextTokenizer
from triolet.protocol.events import ChoiceFinished, Finished, Started, StreamEvent, Token, TokenLogprob
from triolet.protocol.messages import ChoiceTokens, OpenChoice, StepTokens, Stop
from triolet.protocol.requests import ChatMessage, ChatPrompt, FunctionTool, Generate, Thinking, ToolUse
from triolet.protocol.sampling import Sampling

from ..wiring import Wired

SPECIAL = ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]")
PROMPT = ChatPrompt(
    messages=(ChatMessage(role="user", content="Hi"),),
    tools=(FunctionTool(name="now"), FunctionTool(name="get_weather", parameters={"type": "object"})),
)
CALL = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'


def with_template(text_tokenizer: TextTokenizer, source: str, *special: str) -> TextTokenizer:
    tokenizer = Tokenizer.from_str(text_tokenizer.tokenizer.to_str())
    # The library names no type of token.
    tokenizer.add_tokens([AddedToken(text, special=True) for text in special])  # pyright: ignore[reportUnknownMemberType]  # tokenizers leaves it untyped
    return TextTokenizer(tokenizer, choose_templates({"default": "{{ tools }}{{ messages[0].content }}" + source}, {}))


@pytest.fixture(scope="module")
def hermes(text_tokenizer: TextTokenizer) -> TextTokenizer:
    return with_template(text_tokenizer, "<tool_call>")


@pytest.fixture(scope="module")
def mistral(text_tokenizer: TextTokenizer) -> TextTokenizer:
    return with_template(text_tokenizer, "".join(SPECIAL), *SPECIAL)


def request_of(**changes: Any) -> Generate:
    fields: dict[str, Any] = {"prompts": (PROMPT,), "sampling": Sampling(), "reads_output": True, "tool_use": ToolUse()}
    return Generate(id="r1", model="m", **(fields | changes))


def parts_of(tokenizer: TextTokenizer, raw: str, sizes: tuple[int, ...] = (1,), **changes: Any) -> list[Token]:
    """The answer's parts, its tokens fed in groups of these sizes."""
    ids = tokenizer.tokenizer.encode(raw, add_special_tokens=False).ids
    choice = choice_of(request_of(**changes), (), 0, tokenizer)
    assert isinstance(choice, ReadChoice)
    parts: list[Token] = []
    groups = 0
    while ids:
        size = sizes[groups % len(sizes)]
        group, ids = ids[:size], ids[size:]
        groups += 1
        parts += choice.add_tokens(group, last=not ids).parts
    return parts


def said(parts: list[Token], kind: str) -> str:
    return "".join(part.text for part in parts if part.kind == kind)


RAW = '[THINK]Let me see 漢字.[/THINK]\nI look.[TOOL_CALLS]get_weather[ARGS]{"city": "漢字"}[TOOL_CALLS]now[ARGS]{}'


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6).map(tuple))
def test_special_tokens_are_seen_and_every_token_counts_once(mistral: TextTokenizer, sizes: tuple[int, ...]) -> None:
    parts = parts_of(mistral, RAW, sizes)
    assert (said(parts, "reasoning"), said(parts, "text")) == ("Let me see 漢字.", "I look.")
    assert [(part.starts.call, part.starts.name) for part in parts if part.starts] == [(0, "get_weather"), (1, "now")]
    arguments = ["".join(part.text for part in parts if part.kind == "tool" and part.call == call) for call in (0, 1)]
    assert arguments == ['{"city": "漢字"}', "{}"]
    assert sum(part.tokens for part in parts) == len(mistral.tokenizer.encode(RAW, add_special_tokens=False).ids)
    assert all(not part.text for part in parts if part.starts)


def test_tokens_of_thoughts_are_counted_as_such(mistral: TextTokenizer) -> None:
    parts = parts_of(mistral, "[THINK]one two[/THINK]three")
    inside = len(mistral.tokenizer.encode("one two[/THINK]", add_special_tokens=False).ids)
    assert sum(part.tokens for part in parts if part.kind == "reasoning") == inside


def test_thoughts_may_be_left_out_but_count(mistral: TextTokenizer) -> None:
    shown, hidden = (parts_of(mistral, RAW, include_reasoning=include) for include in (True, False))
    assert said(hidden, "reasoning") == ""
    assert said(hidden, "text") == said(shown, "text")
    assert sum(part.tokens for part in hidden) == sum(part.tokens for part in shown)


def test_special_tokens_of_a_wrong_call_stay_out_of_the_text_unless_they_are_wanted(mistral: TextTokenizer) -> None:
    wrong = "[TOOL_CALLS]sleep[ARGS]{}"
    assert said(parts_of(mistral, wrong), "text") == "sleep{}"
    assert said(parts_of(mistral, wrong, skip_special_tokens=False), "text") == wrong


def test_a_stop_string_ends_the_text_but_neither_thoughts_nor_calls(mistral: TextTokenizer) -> None:
    raw = '[THINK]a stop[/THINK]b[TOOL_CALLS]get_weather[ARGS]{"city": "stop"}'
    assert said(parts_of(mistral, raw, stop=("stop",)), "text") == "b"
    ids = mistral.tokenizer.encode("[THINK]stop[/THINK]go stop now", add_special_tokens=False).ids
    delta = choice_of(request_of(stop=("stop",)), (), 0, mistral).add_tokens(ids)
    assert (said(list(delta.parts), "text"), delta.stop) == ("go ", "stop")
    assert delta.kept < len(ids)


def test_what_may_become_a_stop_string_is_released_before_a_call(hermes: TextTokenizer) -> None:
    parts = parts_of(hermes, "sto" + CALL + "stop", stop=("stop",))
    assert [(part.kind, part.text) for part in parts if part.text] == [("text", "sto"), ("tool", "{}")]


def test_a_prompt_that_opens_the_thoughts_begins_inside_them(text_tokenizer: TextTokenizer) -> None:
    thinks = with_template(text_tokenizer, "<think></think>{% if add_generation_prompt %}<think>\n{% endif %}")
    ids = thinks.encode(PROMPT, context_length=100, vocab_size=500)
    thinking = thinks.thinking(PROMPT, ids)
    assert thinking is not None
    assert thinking.open
    assert thinks.tokenizer.decode(list(thinking.end)) == "</think>"
    closed = ChatPrompt(messages=PROMPT.messages, add_generation_prompt=False)
    assert thinks.thinking(closed, thinks.encode(closed, context_length=100, vocab_size=500)) == Thinking(
        begin=thinking.begin, end=thinking.end
    )
    assert said(parts_of(thinks, "So.</think>Yes", thinking=thinking), "reasoning") == "So."


def test_nothing_to_split_is_not_split(text_tokenizer: TextTokenizer, hermes: TextTokenizer) -> None:
    for tokenizer, changes in ((text_tokenizer, {}), (hermes, {"tool_use": None}), (hermes, {"reads_output": False})):
        choice = choice_of(request_of(**changes), (), 0, tokenizer)
        assert type(choice) is ChoiceText
        assert choice.plain is not None


class House:
    """A detokenizer behind a real gateway, with one request."""

    def __init__(self, wired: Wired, tokenizer: TextTokenizer, request: Generate) -> None:
        self.wired = wired
        self.tokenizer = tokenizer
        self.outbox = wired.gateway.submit(request)
        self.detokenizer = Detokenizer(tokenizer=tokenizer, gateway=wired.gateway, scheduler=wired.to_scheduler)
        self.detokenizer.handle([OpenChoice(request=request, index=0, prompt=(1,))])

    def says(self, text: str, **ending: Any) -> None:
        ids = tuple(self.tokenizer.tokenizer.encode(text, add_special_tokens=False).ids)
        if ending:
            self.detokenizer.handle([StepTokens(others=(ChoiceTokens(id="r1", index=0, tokens=ids, **ending),))])
        else:
            for id in ids:
                self.detokenizer.handle([StepTokens(ids=("r1",), rows=((id,),))])

    async def events(self) -> tuple[StreamEvent, ...]:
        return await self.outbox.drain()


async def test_an_answer_with_a_call_ends_with_it(wired: Callable[[], Wired], hermes: TextTokenizer) -> None:
    house = House(wired(), hermes, request_of())
    house.says("Well. " + CALL)
    house.says("", reason="stop")
    events = await house.events()
    assert isinstance(events[0], Started)
    assert [event.reason for event in events if isinstance(event, ChoiceFinished | Finished)] == ["tool_calls"] * 2


async def test_a_cut_call_is_text_and_the_answer_ends_by_its_length(
    wired: Callable[[], Wired], hermes: TextTokenizer
) -> None:
    house = House(wired(), hermes, request_of())
    house.says(CALL[:20], reason="length")
    events = await house.events()
    assert said([event for event in events if isinstance(event, Token)], "text") == CALL[:20]
    assert [event.reason for event in events if isinstance(event, ChoiceFinished)] == ["length"]


async def test_the_second_of_two_calls_is_not_waited_for(wired: Callable[[], Wired], hermes: TextTokenizer) -> None:
    house = House(wired(), hermes, request_of(tool_use=ToolUse(parallel=False)))
    count = len(hermes.tokenizer.encode(CALL, add_special_tokens=False).ids)
    house.says(CALL + CALL)
    stops = [message for message in house.wired.scheduler_messages() if isinstance(message, Stop)]
    assert stops == [Stop(id="r1", index=0, tokens_kept=count)]
    events = await house.events()
    assert [event.reason for event in events if isinstance(event, ChoiceFinished)] == ["tool_calls"]


async def test_behind_the_thoughts_tokens_take_the_fast_path(
    wired: Callable[[], Wired], mistral: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House(wired(), mistral, request_of(tool_use=None))
    house.says("[THINK]one[/THINK]two")
    slow = False

    def add(tokens: ChoiceTokens) -> None:
        nonlocal slow
        slow = True

    monkeypatch.setattr(house.detokenizer, "_add", add)
    house.says(" three four")
    assert not slow
    tokens = [event for event in await house.events() if isinstance(event, Token)]
    assert (said(tokens, "reasoning"), said(tokens, "text")) == ("one", "two three four")


async def test_usage_has_the_tokens_of_thoughts(wired: Callable[[], Wired], mistral: TextTokenizer) -> None:
    house = House(wired(), mistral, request_of(tool_use=None))
    house.says("[THINK]one[/THINK]two")
    house.says("", reason="stop")
    end = (await house.events())[-1]
    assert isinstance(end, Finished)
    assert end.usage.reasoning_tokens == len(mistral.tokenizer.encode("one[/THINK]", add_special_tokens=False).ids)


def test_log_probabilities_come_with_their_tokens(hermes: TextTokenizer) -> None:
    ids = hermes.tokenizer.encode("a" + CALL, add_special_tokens=False).ids
    scores = [TokenLogprob(token_id=id, logprob=-1.0) for id in ids]
    delta = choice_of(request_of(), (), 0, hermes).add_tokens(ids, scores, last=True)
    assert [score.token_id for part in delta.parts for score in part.logprobs] == ids
