"""Requests whose answers must match a grammar: what they wait for, and rows that bring several tokens."""

from math import inf
from typing import Any

from triolet.actors.scheduler.grammars import KEPT, MOST_MEMORY
from triolet.protocol.messages import Admit, Cancel, Credit, WorkerLost
from triolet.protocol.requests import Thinking
from triolet.protocol.steps import GrammarFailed, GrammarReady, Preparation, PrepareGrammar, Row, Step, StepDone

from .scheduling import EOS, Bench, admit, choices_of, computed, done, ready, text


def order(number: int, grammar: str, *forget: int) -> PrepareGrammar:
    return PrepareGrammar(grammar=number, text=grammar, forget=forget)


def answered(step: Step, *tokens: int, computed: int | None = None) -> StepDone:
    """The answer to a step of one sequence."""
    (chunk,) = step.chunks
    row = Row(sequence=chunk.sequence, tokens=tokens, computed=computed)
    return StepDone(step=step.step, rows=(row,), duration=0.01, model_duration=0.005)


def test_a_request_waits_for_its_grammar_and_others_go_before_it() -> None:
    bench = Bench()
    thinking = Thinking(begin=(7,), end=(8,), open=True)
    bench.send(admit("a", text(3), grammar="x", thinking=thinking, reasoning_budget=9), admit("b", text(4, 50)))
    assert bench.state.take_preparations() == [order(1, "x")]
    assert computed(bench.step()) == {2: 4}
    assert bench.whereabouts("a") == {0: "grammar"}
    standing = bench.state.standing("a", 0.0)
    assert standing is not None
    assert standing.blocked_on is not None
    assert standing.blocked_on.kind == "grammar"
    bench.send(GrammarReady(grammar=1))
    (record,) = bench.step().new
    assert (record.grammar, record.thinking, record.reasoning_budget) == (1, thinking, 9)


def test_one_text_is_built_once_and_kept_for_the_next_request() -> None:
    bench = Bench()
    bench.send(admit("a", text(3), grammar="x"), admit("b", text(3), grammar="x"))
    assert bench.state.take_preparations() == [order(1, "x")]
    bench.send(GrammarReady(grammar=1), Cancel(id="a"), Cancel(id="b"), admit("c", text(3), grammar="x"))
    assert not bench.state.take_preparations()
    assert bench.step().new[0].grammar == 1


def test_a_grammar_that_cannot_be_built_fails_its_requests_alone() -> None:
    bench = Bench()
    bench.send(admit("a", text(3), grammar="x"), admit("b", text(3), grammar="y"))
    bench.state.take_preparations()
    bench.send(GrammarFailed(grammar=1, message="It is too large."), GrammarReady(grammar=2))
    (failed,) = [choice for message in bench.texts() for choice in choices_of(message)]
    assert (failed.id, failed.error, failed.message) == ("a", "grammar_failed", "It is too large.")
    assert computed(bench.step()) == {2: 3}
    bench.send(admit("again", text(3), grammar="x"))
    assert bench.state.take_preparations() == [order(3, "x", 1)]


def test_a_new_worker_builds_again_what_is_in_use() -> None:
    bench = Bench()
    bench.send(admit("a", text(3), grammar="x"), admit("b", text(3), grammar="y"))
    bench.state.take_preparations()
    bench.send(GrammarReady(grammar=1), GrammarReady(grammar=2))
    bench.step()
    bench.send(Cancel(id="a"), WorkerLost(reason="test"))
    assert not bench.state.take_preparations()
    bench.send(ready(), GrammarReady(grammar=2))  # an answer that nobody asked this worker for
    assert bench.state.take_preparations() == [order(2, "y")]
    assert bench.state.plan() is None
    bench.send(GrammarReady(grammar=2))
    assert bench.step().new[0].tokens == (*text(3), 5)


def test_a_grammar_that_kills_every_worker_ends_its_request() -> None:
    bench = Bench(max_losses=2)
    bench.send(admit("a", text(3), grammar="x"), admit("b", text(3, 50)))
    for _ in range(2):
        bench.state.take_preparations()
        bench.step()
        bench.send(WorkerLost(reason="test"), ready())
    failed = [choice.id for message in bench.texts() for choice in choices_of(message) if choice.error]
    assert failed == ["a"]


def orders(bench: Bench) -> list[Preparation]:
    """What the worker must build now; it does so at once."""
    orders = bench.state.take_preparations()
    bench.send(*(GrammarReady(grammar=made.grammar) for made in orders if isinstance(made, PrepareGrammar)))
    return orders


def test_unused_grammars_are_forgotten_the_longest_unused_first() -> None:
    bench, made = Bench(), list[Preparation]()
    for number in range(1, KEPT + 3):
        bench.send(admit("a", text(3), grammar=str(number)))
        made += orders(bench)
        bench.send(Cancel(id="a"))
    bench.send(admit("b", text(3), grammar="new"), admit("c", text(3), grammar="5"))
    assert made[-1] == order(KEPT + 2, str(KEPT + 2), 1)
    assert orders(bench) == [order(KEPT + 3, "new", 2)]  # 5 is still built


LARGE = MOST_MEMORY // 4


def guided(grammar: str, memory: int = LARGE, **fields: Any) -> Admit:
    """A request that has its grammar's name; nothing is shared."""
    return admit(grammar, text(3, 1000 * ord(grammar[-1])), grammar=grammar, grammar_memory=memory, **fields)


def test_built_grammars_have_bounded_memory_and_those_behind_wait_in_turn() -> None:
    bench = Bench()
    bench.send(guided("unused"))
    orders(bench)
    bench.send(Cancel(id="unused"), guided("a"), guided("b"), guided("c"))
    assert orders(bench) == [order(2, "a"), order(3, "b"), order(4, "c")]  # all four fit
    bench.send(guided("d"), guided("e"), guided("small", 1))
    assert orders(bench) == [order(5, "d", 1)]  # the unused one has gone
    assert not orders(bench)  # "e" finds no room, nor does what is behind it
    bench.send(Cancel(id="a"))
    assert orders(bench) == [order(6, "e", 2)]
    bench.send(Cancel(id="b"))
    assert orders(bench) == [order(7, "small", 3)]


def test_a_small_grammar_that_finds_room_passes_a_large_one_that_waits() -> None:
    bench = Bench()
    bench.send(guided("a"), guided("b"), guided("c"), guided("d", LARGE - 10), guided("large"), guided("s", 10))
    assert [made.text for made in orders(bench) if isinstance(made, PrepareGrammar)] == ["a", "b", "c", "d", "s"]


def test_every_grammar_has_its_turn_however_long_the_others_are_used() -> None:
    bench = Bench()
    bench.send(*(guided(name) for name in "abcd"))
    orders(bench)
    bench.send(guided("twice", 2 * LARGE))
    assert not orders(bench)
    bench.step()  # before, they would have been built for nothing
    bench.send(admit("a2", text(3), grammar="a", grammar_memory=LARGE))
    assert not orders(bench)
    bench.step()
    assert bench.whereabouts("a2") == {0: "grammar"}
    bench.send(Cancel(id="a"), guided("small", 1))
    assert not orders(bench)  # "twice" needs the room of another one, too, and "small" must not take this
    bench.send(Cancel(id="b"))
    assert orders(bench) == [order(5, "twice", 2, 1)]
    bench.step()
    bench.send(Cancel(id="twice"))
    assert orders(bench) == [order(6, "small", 5), order(1, "a")]


def test_slow_readers_of_one_key_do_not_keep_anothers_grammar_waiting() -> None:
    bench = Bench(outbox_tokens=2)
    bench.send(*(guided(name, tenant="x") for name in "abcde"))
    orders(bench)
    while step := bench.state.plan():
        bench.send(done(step))
    bench.send(guided("mine", 1000, tenant="y"))
    first, second = orders(bench)
    assert (first, second) == (order(6, "mine", 1), order(5, "e", 2))  # of the key that holds nothing first
    assert {sequence.live.id for sequence in bench.state.table.sequences.values() if sequence.known} == {"c", "d"}
    assert bench.state.statistics().totals.preemptions == 2
    bench.send(Credit(id="a", tokens=9))
    assert orders(bench) == [order(1, "a", 3)]  # and it goes on
    while step := bench.state.plan():
        bench.send(done(step))
    assert len(bench.state.table.sequences[1].generated) == 11


def test_a_key_gives_up_a_grammar_only_to_one_that_holds_less() -> None:
    bench = Bench()
    bench.send(*(guided(name, tenant="x") for name in "abc"), guided("d", tenant="y"))
    orders(bench)
    bench.step()
    bench.send(Cancel(id="b"), guided("e", tenant="x"), guided("f", tenant="x"), guided("g", tenant="y"))
    assert orders(bench) == [order(7, "g", 2)]
    bench.step()
    bench.send(Cancel(id="d"), guided("d", tenant="y"))  # it is used again, and y now has as much as x
    assert not orders(bench)
    assert bench.whereabouts("d") == {0: "step"}
    bench.send(Cancel(id="a"))
    assert orders(bench) == [order(5, "e", 1)]


def test_the_grammars_of_lines_give_way_to_that_of_a_request() -> None:
    bench = Bench()
    bench.send(*(guided(name, max_tokens=5, background=True) for name in "abcd"))
    orders(bench)
    bench.send(guided("e", max_tokens=5, background=True, tenant="x"))  # nor does this one go first
    bench.step()
    bench.send(guided("mine", 1000, max_tokens=5))
    assert orders(bench) == [order(6, "mine", 1)]
    assert not orders(bench)
    while bench.state.table.requests:
        bench.step()
        orders(bench)
    assert bench.state.statistics().totals.preemptions == 1


def test_the_worker_computes_forced_tokens_with_the_step_that_is_under_way() -> None:
    bench = Bench(max_steps_in_flight=2, outbox_tokens=100)
    bench.send(admit("a", text(10)))
    first, second = bench.plan(), bench.plan()
    bench.send(answered(first, 5, 6, 7))
    (chunk,) = bench.plan().chunks  # behind 6 and 7, which the second step will compute
    assert (chunk.start, chunk.count, chunk.sample) == (13, 1, True)
    bench.send(answered(second, 8, computed=3))
    (sequence,) = bench.state.table.sequences.values()
    assert (sequence.generated, sequence.computed, sequence.unread) == ([5, 6, 7, 8], 14, 1)


def test_a_step_that_may_not_reach_the_forced_tokens_is_awaited() -> None:
    bench = Bench(max_steps_in_flight=2, outbox_tokens=100)
    bench.send(admit("a", text(62)))
    first, _ = bench.plan(), bench.plan()
    bench.send(answered(first, 5, 6, 7))
    assert bench.state.plan() is None  # its block has room for two of three


def test_a_choice_that_has_ended_may_take_tokens_of_the_step_that_is_under_way() -> None:
    for count, planned in ((7, True), (8, False)):  # 38 tokens to spare, of which the first may have 32
        bench = Bench(worker=ready(max_step_tokens=40), max_steps_in_flight=2, outbox_tokens=100)
        bench.send(admit("a", text(10)), admit("b", text(10)))
        bench.step()
        first, _ = bench.plan(), bench.plan()
        rows = (Row(sequence=1, tokens=(5, EOS, 7)), Row(sequence=2, tokens=tuple(range(5, 5 + count))))
        bench.send(StepDone(step=first.step, rows=rows, duration=0.01, model_duration=0.005))
        assert (bench.state.plan() is not None) == planned


def test_what_the_worker_could_not_compute_is_planned() -> None:
    bench = Bench(max_steps_in_flight=2, outbox_tokens=100)
    bench.send(admit("a", text(62)))
    first, second = bench.plan(), bench.plan()
    bench.send(answered(first, 5, 6, 7, 8), answered(second, computed=2))
    (sequence,) = bench.state.table.sequences.values()
    assert (sequence.generated, sequence.computed, sequence.unread) == ([5, 6, 7, 8], 64, 0)
    assert sequence.live.credit == 96
    third = bench.plan()
    assert [(chunk.start, chunk.count, chunk.sample) for chunk in third.chunks] == [(64, 2, True)]
    bench.send(answered(third, 9))
    assert sequence.generated == [5, 6, 7, 8, 9]


def test_forced_tokens_end_a_choice_like_others() -> None:
    for tokens, max_tokens, kept, reason in (((5, 6, 0, 9), 50, (5, 6), "stop"), ((5, 6, 7), 2, (5, 6), "length")):
        bench = Bench(max_steps_in_flight=2)
        bench.send(admit("a", text(10), max_tokens=max_tokens))
        first, second = bench.plan(), bench.plan()
        bench.send(answered(first, *tokens), answered(second, 9, computed=3))
        (choice,) = [choice for message in bench.texts() for choice in choices_of(message)]
        assert (choice.tokens, choice.reason) == (kept, reason)
        assert bench.state.statistics().blocks.owned == 0


def test_a_reader_without_credit_is_timed_even_if_its_last_row_brought_nothing() -> None:
    bench = Bench(max_steps_in_flight=2, outbox_tokens=3, stall_timeout=10.0)
    bench.send(admit("a", text(63)))
    first, second = bench.plan(), bench.plan()
    bench.send(answered(first, 5, 6, 7), answered(second, computed=1))
    assert bench.state.table.timers.next_due() == 10.0
    bench.send(done(first))  # an answer that came before is no step any more


def test_a_reader_without_credit_is_timed_even_if_the_worker_was_lost_meanwhile() -> None:
    bench = Bench(max_steps_in_flight=2, outbox_tokens=3, stall_timeout=10.0)
    bench.send(admit("a", text(10)))
    first = bench.plan()
    bench.plan()
    bench.send(answered(first, 5, 6, 7, 8), WorkerLost(reason="planned"))  # with the second step's token
    assert bench.state.table.timers.next_due() == 10.0
    bench.send(Credit(id="a", tokens=2))
    assert bench.state.table.timers.next_due() == inf
