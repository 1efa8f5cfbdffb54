"""The detokenizer's transitions: starts, text, every kind of end, and what comes too late."""

import gc
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio
import trio.testing

from triolet.actors.detokenizer.detokenizer import Detokenizer, run_detokenizer
from triolet.actors.gateway.history import StreamRecord
from triolet.actors.gateway.outbox import Outbox
from triolet.actors.tokenizer.text_tokenizer import TextTokenizer
from triolet.protocol.events import ChoiceFinished, Failed, Finished, Started, StreamEvent, Token, TokenLogprob
from triolet.protocol.messages import (
    Cancel,
    ChoiceTokens,
    DropRequest,
    OpenChoice,
    StepTokens,
    Stop,
    ToDetokenizer,
)
from triolet.protocol.requests import Generate, TextPrompt
from triolet.protocol.sampling import Sampling

from ..wiring import Wired

Make = Callable[..., Generate]


class House:
    """A detokenizer behind a real gateway."""

    def __init__(self, wired: Wired, tokenizer: TextTokenizer) -> None:
        self.wired = wired
        self.gateway = wired.gateway
        self.tokenizer = tokenizer
        self.detokenizer = Detokenizer(tokenizer=tokenizer, gateway=self.gateway, scheduler=wired.to_scheduler)

    def open(self, request: Generate, *indices: int) -> None:
        for index in indices or (0,):
            self.detokenizer.handle([OpenChoice(request=request, index=index, prompt=self.ids("the fox"))])

    def ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.tokenizer.encode(text).ids)

    def text(self, text: str, index: int = 0, **ending: Any) -> None:
        """As the scheduler says it."""
        ids = self.ids(text)
        if index or ending or not ids:
            tokens = ChoiceTokens(id="r1", index=index, tokens=ids, **ending)
            self.detokenizer.handle([StepTokens(others=(tokens,))])
        else:
            self.detokenizer.handle([StepTokens(ids=("r1",), rows=(ids,))])


@pytest.fixture
def house(wired: Callable[[], Wired], text_tokenizer: TextTokenizer) -> House:
    return House(wired(), text_tokenizer)


def end_of(events: tuple[StreamEvent, ...]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def text_of(events: tuple[StreamEvent, ...], index: int = 0) -> str:
    return "".join(event.text for event in events if isinstance(event, Token) and event.index == index)


@pytest.mark.parametrize("ends", ["by a stop token", "by its client"])
async def test_an_ended_request_is_not_kept(house: House, generate: Make, ends: str) -> None:
    """Its record holds the prompt, perhaps megabytes; no further step may ever come."""
    house.gateway.submit(generate())
    house.open(generate())
    house.text(" jumps")
    stream = house.gateway.stream("r1")
    assert stream is not None
    address = id(stream)
    del stream
    if ends == "by a stop token":
        house.text(" over", reason="stop")
    else:
        house.gateway.cancel("r1")
        house.detokenizer.handle([DropRequest(id="r1", reason="cancelled")])
    gc.collect()
    assert not [record for record in gc.get_objects() if id(record) == address and isinstance(record, StreamRecord)]


async def test_a_stream_from_start_to_stop_token(house: House, generate: Make) -> None:
    outbox = house.gateway.submit(generate())
    house.open(generate())
    house.text(" jumps")
    house.text(" over", reason="stop", stop_reason=None)
    events = await outbox.drain()
    assert [type(event) for event in events] == [Started, Token, Token, ChoiceFinished, Finished]
    assert text_of(events) == " jumps over"
    counted = sum(event.tokens for event in events if isinstance(event, Token))
    assert end_of(events).usage.completion_tokens == counted + 1  # the stop token was generated, too


async def test_what_comes_together_is_one_event(house: House, generate: Make) -> None:
    """A detokenizer that lags behind the scheduler gives the stream one larger piece."""
    outbox = house.gateway.submit(generate())
    house.open(generate())
    steps = [StepTokens(ids=("r1",), rows=(house.ids(word),)) for word in (" the", " fox")]
    house.detokenizer.handle(steps)
    count = len(house.ids(" the")) + len(house.ids(" fox"))
    _, token = await outbox.drain()
    assert token == Token(id="r1", index=0, text=" the fox", tokens=count)


async def test_a_waiting_reader_gets_what_comes_together_in_one_write(house: House, generate: Make) -> None:
    class Written:
        def __init__(self) -> None:
            self.texts: list[str] = []

        def write(self, events: Sequence[StreamEvent], index: int, text: str, tokens: int) -> bool:
            assert not events
            self.texts.append(text)
            return True

    outbox, written = house.gateway.submit(generate()), Written()
    house.open(generate())
    await outbox.drain()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.drain, written)
        await trio.testing.wait_all_tasks_blocked()
        steps = [StepTokens(ids=("r1",), rows=(house.ids(word),)) for word in (" the", " fox", " jumps")]
        house.detokenizer.handle(steps[:2])
        house.detokenizer.handle(steps[2:])
        nursery.cancel_scope.cancel()
    assert written.texts == [" the fox", " jumps"]


async def test_text_behind_the_end_is_dropped(house: House, generate: Make) -> None:
    """A cancelled request's tokens may still come; the detokenizer hears of the end behind them."""
    outbox = house.gateway.submit(generate())
    house.open(generate())
    house.text(" the")
    house.gateway.cancel("r1")
    house.text(" fox")
    house.detokenizer.handle([DropRequest(id="r1", reason="cancelled")])
    assert text_of(await outbox.drain()) == " the"


async def test_a_stop_string_ends_the_choice_and_tells_the_scheduler(house: House, generate: Make) -> None:
    request = generate(stop=("o",))
    outbox = house.gateway.submit(request)
    house.open(request)
    kept = len(house.ids(" jumps"))
    house.text(" jumps")
    house.text(" over")
    house.text(" lazy")  # a step in flight
    events = await outbox.drain()
    assert text_of(events) == " jumps "
    assert events[-2] == ChoiceFinished(id="r1", index=0, reason="stop", stop_reason="o")
    stops = [message for message in house.wired.scheduler_messages() if isinstance(message, Stop)]
    (stop,) = stops
    assert end_of(events).usage.completion_tokens == stop.tokens_kept > kept


async def test_a_stop_string_in_the_last_tokens_needs_no_message(house: House, generate: Make) -> None:
    request = generate(stop=("v",))
    outbox = house.gateway.submit(request)
    house.open(request)
    house.text(" over", reason="length")
    events = await outbox.drain()
    assert events[-2] == ChoiceFinished(id="r1", index=0, reason="stop", stop_reason="v")
    assert not any(isinstance(message, Stop) for message in house.wired.scheduler_messages())


async def test_held_back_text_is_released_at_the_end(house: House, generate: Make) -> None:
    request = generate(stop=("jumping",))
    outbox = house.gateway.submit(request)
    house.open(request)
    house.text(" jump")
    assert text_of(await outbox.drain()) == " "
    house.text("", reason="length")
    assert text_of(await outbox.drain()) == "jump"


async def test_a_request_ends_with_its_last_choice(house: House, generate: Make) -> None:
    request = generate(n=2)
    outbox = house.gateway.submit(request)
    house.open(request, 0)
    house.text("a", 0, reason="length")
    assert not outbox.ended  # the second choice has not even begun
    house.open(request, 1)
    house.text("b", 1, reason="stop", stop_reason=7)
    events = await outbox.drain()
    assert (text_of(events, 0), text_of(events, 1)) == ("a", "b")
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "stop"
    assert [event.stop_reason for event in events if isinstance(event, ChoiceFinished)] == [None, 7]


async def test_cached_tokens_are_those_of_each_prompt_once(house: House, generate: Make) -> None:
    """All but the first choice of a prompt find it in the cache; usage counts a prompt once, and so its cached part."""
    request = generate(n=2, prompts=(TextPrompt(text="the fox"), TextPrompt(text="the fox")))
    outbox = house.gateway.submit(request)
    for index, cached in enumerate((64, 128, 128, 128)):
        message = OpenChoice(request=request, index=index, prompt=house.ids("the fox"), cached_tokens=cached)
        house.detokenizer.handle([message])
        house.text("a", index, reason="length")
    assert end_of(await outbox.drain()).usage.cached_tokens == 64 + 128


@pytest.mark.parametrize("opened", [True, False])
async def test_an_error_of_a_choice_fails_the_request(house: House, generate: Make, opened: bool) -> None:
    outbox = house.gateway.submit(generate(n=2))
    if opened:
        house.open(generate(n=2), 0)
    house.text("", 0, reason="error", error="nonfinite_logits", message="row 3")
    failed = (await outbox.drain())[-1]
    assert failed == Failed(id="r1", code="nonfinite_logits", message="row 3")
    assert house.wired.scheduler_messages() == [Cancel(id="r1", reason="error")]  # for its other choice


async def test_an_error_told_by_a_choice_that_is_complete_still_fails_the_request(house: House, generate: Make) -> None:
    """The step that failed was in flight when the stop string was found: the scheduler names its first open choice."""
    request = generate(stop=("o",), n=2)
    outbox = house.gateway.submit(request)
    house.open(request, 0, 1)
    house.text(" over", 0)
    house.text("", 0, reason="error", error="engine_error", message="the step failed")
    events = await outbox.drain()
    assert events[-1] == Failed(id="r1", code="engine_error", message="the step failed")


async def test_an_error_nobody_has_heard_of_is_an_engine_error(house: House, generate: Make) -> None:
    outbox = house.gateway.submit(generate())
    house.open(generate())
    house.text("", reason="error", error="gremlins")
    failed = (await outbox.drain())[-1]
    assert isinstance(failed, Failed)
    assert failed.code == "engine_error"


async def test_a_stalled_request_keeps_what_it_had(house: House, generate: Make) -> None:
    request = generate(stop=("jumping",), n=2)
    outbox = house.gateway.submit(request)
    house.open(request, 0, 1)
    house.text(" jump")
    house.detokenizer.handle([DropRequest(id="r1", reason="stalled")])
    events = await outbox.drain()
    assert text_of(events) == " jump"
    assert [event.reason for event in events if isinstance(event, ChoiceFinished)] == ["stalled", "stalled"]
    assert end_of(events).reason == "stalled"


@pytest.mark.parametrize("begun", [False, True])
async def test_a_deadline_before_the_first_token_is_an_error(house: House, generate: Make, begun: bool) -> None:
    outbox = house.gateway.submit(generate())
    if begun:  # its prompt is being computed
        house.open(generate())
    house.detokenizer.handle([DropRequest(id="r1", reason="deadline")])
    failed = (await outbox.drain())[-1]
    assert isinstance(failed, Failed)
    assert failed.code == "deadline_exceeded"


async def test_a_refusal_says_when_to_try_again(house: House, generate: Make) -> None:
    outbox = house.gateway.submit(generate())
    refusal = ChoiceTokens(id="r1", index=0, tokens=(), reason="error", error="deadline_unmeetable", retry_after=7)
    house.detokenizer.handle([StepTokens(others=(refusal,))])
    (failed,) = await outbox.drain()
    assert isinstance(failed, Failed)
    assert (failed.code, failed.retry_after) == ("deadline_unmeetable", 7)


async def test_after_a_cancel_nothing_more_is_said(house: House, generate: Make) -> None:
    outbox = house.gateway.submit(generate())
    house.open(generate())
    house.gateway.cancel("r1")
    await outbox.drain()
    house.text("late")
    house.open(generate())
    house.detokenizer.handle([DropRequest(id="r1", reason="cancelled")])
    with pytest.raises(trio.EndOfChannel):
        await outbox.drain()


async def test_echo_comes_first_and_costs_no_credit(house: House, generate: Make) -> None:
    outbox = house.gateway.submit(generate(echo=True))
    house.open(generate(echo=True))
    house.text(" jumps", reason="length")
    events = await outbox.drain()
    assert text_of(events) == "the fox jumps"
    echoed = events[1]
    assert isinstance(echoed, Token)
    assert (echoed.text, echoed.tokens) == ("the fox", 0)


async def test_echo_with_log_probabilities_waits_for_them(house: House, generate: Make) -> None:
    request = generate(echo=True, sampling=Sampling(logprobs=0, prompt_logprobs=0))
    outbox = house.gateway.submit(request)
    house.open(request)
    prompt = house.ids("the fox")
    scores = [TokenLogprob(token_id=id, logprob=-1.0) for id in prompt[1:]]
    house.text("", prompt_logprobs=tuple(scores[:1]))
    house.text(" j", prompt_logprobs=tuple(scores[1:]), reason="length")
    events = await outbox.drain()
    assert isinstance(events[1], Token)
    assert [logprob.token_id for logprob in events[1].logprobs] == list(prompt)
    assert events[1].logprobs[0].logprob is None


async def test_the_actor_ends_with_its_channel(
    house: House, generate: Make, wired: Callable[[], Wired], text_tokenizer: TextTokenizer
) -> None:
    other = wired()
    outbox = other.gateway.submit(generate())
    send, inbox = trio.open_memory_channel[ToDetokenizer](2)
    send.send_nowait(OpenChoice(request=generate(), index=0, prompt=(5,)))
    send.close()
    await run_detokenizer(inbox, tokenizer=text_tokenizer, gateway=other.gateway, scheduler=other.to_scheduler.clone())
    assert await outbox.drain() == (Started(id="r1", model="tiny", prompt_tokens=0),)


@pytest.mark.parametrize("seed", range(20))
async def test_rows_of_a_step_say_what_their_choices_one_by_one_would(
    wired: Callable[[], Wired], text_tokenizer: TextTokenizer, generate: Make, seed: int
) -> None:
    """Streams that come and go, of every kind; one house hears rows, the other every choice by itself."""
    rng = random.Random(seed)
    houses = [House(wired(), text_tokenizer) for _ in range(2)]
    outboxes: list[dict[str, Outbox]] = [{}, {}]
    choices: dict[str, list[int]] = {}  # unfinished, of each request
    kinds: list[dict[str, object]] = [{}, {}, {"stop": ("o",)}, {"n": 2}, {"echo": True}]
    for number in range(60):
        if rng.random() < 0.2 or not choices:
            request = generate(id=f"r{number}", **rng.choice(kinds))
            choices[request.id] = list(range(request.n))
            for house, boxes in zip(houses, outboxes, strict=True):
                boxes[request.id] = house.gateway.submit(request)
                house.open(request, *range(request.n))
        ids: list[str] = []
        rows: list[tuple[int, ...]] = []
        others: list[ChoiceTokens] = []
        for id, indices in choices.items():
            if rng.random() < 0.1:
                continue
            for index in tuple(indices):
                ends = rng.random() < 0.03
                tokens = houses[0].ids(rng.choice((" fox", " the lazy", " o")))
                if index or ends:
                    others.append(ChoiceTokens(id=id, index=index, tokens=tokens, reason="length" if ends else None))
                    if ends:
                        indices.remove(index)
                else:
                    ids.append(id)
                    rows.append(tokens)
        step = StepTokens(ids=tuple(ids), rows=tuple(rows), others=tuple(others))
        houses[0].detokenizer.handle([step])
        houses[1].detokenizer.handle([StepTokens(others=tuple(step.choices()))])
        if choices and rng.random() < 0.1:  # its tokens still come, as those of steps in flight do
            leaver = rng.choice(list(choices))
            for house in houses:
                house.gateway.cancel(leaver)
        if choices and rng.random() < 0.1:
            dropped = rng.choice(list(choices))
            for house in houses:
                house.detokenizer.handle([DropRequest(id=dropped, reason="stalled")])
            choices.pop(dropped)
        choices = {id: indices for id, indices in choices.items() if indices}
    for id in choices:
        for house in houses:
            house.detokenizer.handle([DropRequest(id=id, reason="stalled")])
    for id, outbox in outboxes[0].items():
        events, wanted = await outbox.drain(), await outboxes[1][id].drain()
        assert [text_of(events, index) for index in (0, 1)] == [text_of(wanted, index) for index in (0, 1)]
        last, same = events[-1], wanted[-1]
        assert isinstance(last, Finished)
        assert isinstance(same, Finished)
        assert (last.reason, last.usage) == (same.reason, same.usage)
