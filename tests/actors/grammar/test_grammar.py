"""The actor, with the real process: which requests go on to admission, which end, and in which order."""

from collections.abc import AsyncGenerator
from sys import getrefcount
from typing import NamedTuple

import pytest
import trio
import trio.testing

from triolet.actors.gateway.outbox import Outbox
from triolet.actors.grammar import compiler
from triolet.actors.grammar.grammar import run_grammar
from triolet.actors.grammar.verdicts import Verdicts
from triolet.protocol.events import Failed
from triolet.protocol.grammars import GrammarAccepted, GrammarRefused, GrammarSource, OpenCompiler
from triolet.protocol.messages import Tokenized

from ..engine_house import MODEL
from ..wiring import Wired, generate, wire

LETTERS = GrammarSource(kind="regex", text="[a-z]+", param="structured_outputs.regex")
BROKEN = GrammarSource(kind="regex", text="(", param="structured_outputs.regex")
SLOW = GrammarSource(kind="json_schema", text='{"type": "integer", "multipleOf": 99999999}', param="schema")


class GrammarDesk(NamedTuple):
    house: Wired
    inbox: trio.MemorySendChannel[Tokenized]
    admission: trio.MemoryReceiveChannel[Tokenized]

    def submit(self, source: GrammarSource, id: str = "r1", tenant: str = "", deadline: float | None = None) -> Outbox:
        request = generate(id, grammar_source=source, tenant=tenant, deadline=deadline)
        outbox = self.house.gateway.submit(request)
        self.inbox.send_nowait(Tokenized(request=request, prompts=((1, 2),)))
        return outbox


@pytest.fixture
async def desk() -> AsyncGenerator[GrammarDesk, None]:
    house = wire()
    to_actor, inbox = trio.open_memory_channel[Tokenized](100)
    to_admission, admission = trio.open_memory_channel[Tokenized](100)
    opening = OpenCompiler(model=MODEL, vocab_size=2048, eos_token_ids=(0,))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: run_grammar(inbox, to_admission, opening=opening, gateway=house.gateway))
        with trio.fail_after(60):
            yield GrammarDesk(house, to_actor, admission)
        nursery.cancel_scope.cancel()


def state_of(desk: GrammarDesk, id: str) -> bool:
    history = desk.house.gateway.history(id, "")
    assert history is not None
    return history.compiling


async def test_an_accepted_request_goes_on_with_its_grammar(desk: GrammarDesk) -> None:
    desk.submit(LETTERS)
    tokenized = await desk.admission.receive()
    assert tokenized.prompts == ((1, 2),)
    assert "[a-z]+" in tokenized.request.grammar
    assert tokenized.request.grammar_source is None
    assert state_of(desk, "r1")


async def test_a_refused_request_ends_with_an_error_that_names_the_field(desk: GrammarDesk) -> None:
    outbox = desk.submit(BROKEN)
    (event,) = await outbox.drain()
    assert isinstance(event, Failed)
    assert event.code == "invalid_grammar"
    assert event.param == "structured_outputs.regex"
    assert event.message.startswith("structured_outputs.regex: ")
    assert "unclosed group" in event.message


async def test_known_grammars_pass_while_another_is_compiled(
    desk: GrammarDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "CLOCK_SECONDS", 2.0)
    desk.submit(LETTERS, "first")
    await desk.admission.receive()
    slow = desk.submit(SLOW, "slow")
    desk.submit(LETTERS, "second")
    assert (await desk.admission.receive()).request.id == "second"
    assert desk.house.gateway.is_live("slow")
    (event,) = await slow.drain()
    assert isinstance(event, Failed)
    assert "more than" in event.message  # of CPU time, or by the clock


async def test_keys_take_turns(desk: GrammarDesk) -> None:
    """One key's grammars wait for each other, another key's waits for the one being compiled and one more."""
    for at in range(6):
        desk.submit(GrammarSource(kind="regex", text=f"flood{at}", param="p"), f"flood{at}", tenant="flood")
    desk.submit(GrammarSource(kind="regex", text="calm", param="p"), "calm", tenant="calm")
    order = [(await desk.admission.receive()).request.id for _ in range(7)]
    assert order.index("calm") <= 2
    assert sorted(order) == ["calm", *(f"flood{at}" for at in range(6))]


async def test_a_deadline_ends_what_is_compiled_and_what_waits(desk: GrammarDesk) -> None:
    soon = trio.current_time() + 0.01
    for outbox in (desk.submit(SLOW, "slow", deadline=soon), desk.submit(LETTERS, "waiting", deadline=soon)):
        (event,) = await outbox.drain()
        assert isinstance(event, Failed)
        assert event.code == "deadline_exceeded"
    desk.submit(LETTERS, "patient", deadline=trio.current_time() + 1e6)
    assert (await desk.admission.receive()).request.id == "patient"


async def test_a_cancelled_request_is_not_compiled(desk: GrammarDesk) -> None:
    desk.submit(SLOW, "slow")
    desk.house.gateway.cancel("slow")
    desk.submit(LETTERS)
    assert (await desk.admission.receive()).request.id == "r1"


async def test_cancelled_requests_that_wait_do_not_keep_their_prompts(desk: GrammarDesk) -> None:
    desk.submit(SLOW, "slow")
    prompts = (tuple(range(9)),)
    before = getrefcount(prompts)
    for at in range(300):
        request = generate(f"r{at}", grammar_source=LETTERS)
        desk.house.gateway.submit(request)
        desk.house.gateway.cancel(request.id)
        await desk.inbox.send(Tokenized(request=request, prompts=prompts))
        desk.house.tokenizer.receive_nowait()
    await trio.testing.wait_all_tasks_blocked()
    assert desk.house.gateway.is_live("slow")
    assert getrefcount(prompts) - before <= 128


def test_the_oldest_verdicts_are_forgotten() -> None:
    verdicts = Verdicts(max_bytes=10, max_verdicts=3)

    def make(text: str) -> GrammarSource:
        return GrammarSource(kind="regex", text=text, param=text)

    verdicts.keep(make("a"), GrammarAccepted(grammar="x" * 6))
    verdicts.keep(make("b"), GrammarRefused(message="no"))
    assert verdicts.get(make("a")) is not None
    verdicts.keep(make("c"), GrammarAccepted(grammar="x" * 6))
    kept = [text for text in "abc" if verdicts.get(make(text))]
    assert kept == ["c"]
    for text in "defg":
        verdicts.keep(make(text), GrammarRefused(message="no"))
    assert [text for text in "cdefg" if verdicts.get(make(text))] == ["e", "f", "g"]


def test_a_verdict_does_not_depend_on_the_field() -> None:
    verdicts = Verdicts()
    verdicts.keep(LETTERS, GrammarRefused(message="no"))
    assert verdicts.get(GrammarSource(kind="regex", text="[a-z]+", param="guided_regex")) is not None
    assert verdicts.get(GrammarSource(kind="lark", text="[a-z]+", param="structured_outputs.regex")) is None


@pytest.mark.parametrize(
    "verdict",
    [
        GrammarRefused(message="no" * 3),
        GrammarRefused(message="", place=".place"),
        GrammarAccepted(grammar="", warnings=("one", "two")),
    ],
)
def test_every_text_of_a_verdict_counts(verdict: GrammarAccepted | GrammarRefused) -> None:
    verdicts = Verdicts(max_bytes=10)
    verdicts.keep(LETTERS, verdict)
    verdicts.keep(BROKEN, verdict)
    assert verdicts.get(LETTERS) is None
    assert verdicts.get(BROKEN) is verdict
