"""A request that kills workers is found at its second loss, and costs everybody else two steps and no token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from triolet.actors.scheduler.quarantine import MOST_REMEMBERED, PROBATION, REMEMBERED_SECONDS
from triolet.actors.scheduler.sequence import LiveRequest
from triolet.protocol.messages import Cancel, ChoiceTokens, StepTokens, WorkerLost
from triolet.protocol.sampling import Sampling
from triolet.protocol.steps import GrammarReady, PrepareGrammar, Step, StepFailed

from .scheduling import Bench, admit, choices_of, done, ready, text

LOST = WorkerLost(reason="segmentation fault", crashed=True)


def said(bench: Bench) -> list[ChoiceTokens]:
    return [choice for message in bench.texts() for choice in choices_of(message)]


def sequences(step: Step) -> list[int]:
    return [chunk.sequence for chunk in step.chunks]


class House:
    """Requests with numbers for names; sequence n is that of request n. What `deadly` names kills at its nth token."""

    def __init__(self, bench: Bench, deadly: dict[int, int], prompts: list[int], max_tokens: int) -> None:
        self.bench = bench
        self.deadly = deadly
        self.tokens: dict[str, int] = {}
        self.errors: dict[str, str] = {}
        self.losses = 0
        for number, length in enumerate(prompts, 1):
            bench.send(admit(str(number), text(length, 1000 * number), max_tokens=max_tokens, tenant=str(number % 2)))

    def run(self) -> None:
        state = self.bench.state
        while state.table.requests:
            suspects = set(state.table.quarantine.suspects)
            if (step := state.plan()) is None:
                assert state.in_flight, "nothing is planned for what could run"
                self._answer(next(iter(state.in_flight.values())))
                continue
            if suspects & set(sequences(step)):
                assert len(step.chunks) == 1
                assert len(state.in_flight) == 1
            if self._kills(step):
                self.losses += 1
                self.bench.send(LOST, ready())
            elif len(state.in_flight) == 2:
                self._answer(next(iter(state.in_flight.values())))
            self._listen()

    def _answer(self, step: Step) -> None:
        self.bench.send(done(step))
        self._listen()

    def _listen(self) -> None:
        for message in self.bench.texts():
            if not isinstance(message, StepTokens):
                continue
            for choice in choices_of(message):
                self.tokens[choice.id] = self.tokens.get(choice.id, 0) + len(choice.tokens)
                if choice.error:
                    self.errors[choice.id] = choice.error

    def _kills(self, step: Step) -> bool:
        table = self.bench.state.table
        return any(
            chunk.start + chunk.count >= table.sequences[chunk.sequence].prompt_tokens + self.deadly[chunk.sequence]
            for chunk in step.chunks
            if chunk.sequence in self.deadly and chunk.sequence in table.sequences
        )


@given(
    prompts=st.lists(st.one_of(st.integers(1, 200), st.integers(400, 500)), min_size=1, max_size=8),
    after=st.dictionaries(st.integers(1, 8), st.integers(0, 5), max_size=2),
    rows=st.sampled_from((1, 3, 8)),
    blocks=st.sampled_from((8, 64)),
    ahead=st.sampled_from((1, 2)),
)
def test_the_culprits_alone_fail_each_at_its_second_loss(
    prompts: list[int], after: dict[int, int], rows: int, blocks: int, ahead: int
) -> None:
    worker = ready(max_running=rows, num_blocks=blocks, max_step_tokens=64)
    deadly = {number: tokens for number, tokens in after.items() if number <= len(prompts)}
    bench = Bench(worker=worker, max_steps_in_flight=ahead)
    house = House(bench, deadly, prompts, max_tokens=8)
    house.run()
    assert set(house.errors) == {str(number) for number in deadly}
    assert set(house.errors.values()) <= {"engine_error"}
    assert house.losses <= 3 * len(deadly)  # two each, and one more where both were in one step
    assert bench.state.totals.steps < 400  # nobody takes another's blocks away in turns
    assert all(house.tokens[str(number)] == 8 for number in range(1, len(prompts) + 1) if number not in deadly)
    assert bench.state.totals.convicted == len(deadly)
    assert not bench.state.table.quarantine.suspects


def test_suspects_and_the_others_take_turns() -> None:
    bench = Bench()
    bench.send(admit("a", text(3)), admit("b", text(3, 100)))
    bench.step()
    bench.plan()
    bench.send(LOST, ready(), admit("c", text(3, 200)))
    steps = [sequences(bench.step()) for _ in range(4 * PROBATION + 1)]
    assert steps == [[1], [3], [1], [1, 3], [2], [1, 3], [2], [1, 2, 3], [1, 2, 3]]
    assert not bench.state.table.quarantine.suspects


def test_a_worker_killed_from_outside_makes_nobody_suspect_until_it_happens_again() -> None:
    bench = Bench()
    bench.send(admit("a", text(3)), admit("b", text(3, 100)))
    bench.plan()
    killed = WorkerLost(reason="SIGKILL")
    bench.send(killed, ready())
    assert not bench.state.table.quarantine.suspects
    assert sequences(bench.plan()) == [1, 2]
    bench.send(killed, ready())
    assert set(bench.state.table.quarantine.suspects) == {1, 2}
    assert sequences(bench.plan()) == [1]
    bench.send(killed, ready())  # the third: it is given up, though nobody can know
    assert [(one.id, one.error) for one in said(bench) if one.error] == [("a", "engine_error")]


def test_nothing_is_prepared_beside_a_suspects_step_nor_computed_beside_what_is_prepared() -> None:
    bench = Bench()
    bench.send(admit("a", text(3)))
    bench.plan()
    bench.send(LOST, ready(), admit("b", text(3, 100), grammar="a grammar"))
    (order,) = bench.state.take_preparations()
    assert isinstance(order, PrepareGrammar)
    assert bench.state.plan() is None
    bench.send(LOST, ready())  # of the grammar: nobody was computed
    assert not any(one.error for one in said(bench))
    (order,) = bench.state.take_preparations()
    assert isinstance(order, PrepareGrammar)
    bench.send(GrammarReady(grammar=order.grammar))
    assert sequences(bench.plan()) == [1]
    bench.send(admit("c", text(3, 200), grammar="another grammar"))
    assert bench.state.take_preparations() == []
    bench.send(LOST, ready())
    assert [(one.id, one.error) for one in said(bench) if one.error] == [("a", "engine_error")]
    assert len(bench.state.take_preparations()) == 2


def test_a_request_whose_client_leaves_and_asks_again_is_found() -> None:
    bench = Bench()
    neighbour = admit("neighbour", text(3, 100), max_tokens=1000)
    bench.send(neighbour)
    for number in range(2):
        bench.send(admit(str(number), text(3)))
        while number + 2 not in sequences(step := bench.plan()):
            bench.send(done(step))
        bench.send(Cancel(id=str(number), reason="cancelled"), LOST, ready())
    bench.send(admit("again", text(3)))
    assert [(one.id, one.error) for one in said(bench) if one.error] == [("again", "quarantined")]
    assert "neighbour" in bench.state.table.requests


def test_a_model_that_crashes_with_every_request_is_not_excused_for_ever() -> None:
    bench = Bench(max_losses=3)
    for number in range(10):
        bench.send(admit(str(number), text(3, 10 * number)))
        for _ in range(2):
            bench.plan()
            bench.send(LOST, ready())
    assert bench.state.totals.convicted == 10
    assert bench.state.totals.excused_losses == 2 * 3


def test_a_fault_that_shows_one_step_later_makes_both_steps_suspect() -> None:
    bench = Bench(max_steps_in_flight=2, worker=ready(max_step_tokens=4))
    words = Sampling(bad_words=((1, 2),))  # it waits for its tokens
    bench.send(admit("a", text(4), sampling=words), admit("b", text(4, 100)))
    first, second = bench.plan(), bench.plan()
    assert (sequences(first), sequences(second)) == ([1], [2])
    bench.send(StepFailed(step=second.step, message="an illegal address"))
    assert set(bench.state.table.quarantine.suspects) == {1, 2}


@pytest.mark.parametrize(("lengths", "blocks"), [((1900, 1990), 45), ((900, 600, 600, 600), 16)])
@pytest.mark.parametrize("scored", [False, True])
def test_suspects_and_others_do_not_take_each_others_blocks_in_turns(
    lengths: tuple[int, ...], blocks: int, scored: bool
) -> None:
    bench = Bench(worker=ready(num_blocks=blocks))
    sampling = Sampling(prompt_logprobs=1) if scored else None
    suspect, *others = lengths
    bench.send(admit("0", text(suspect), max_tokens=5, sampling=sampling))
    bench.plan()
    bench.send(LOST, ready(num_blocks=blocks))
    for number, length in enumerate(others, 1):
        bench.send(admit(str(number), text(length, 10_000 * number), max_tokens=5))
    for _ in range(200):
        if not bench.state.table.requests:
            return
        bench.step()
    pytest.fail("nobody gets on")


def test_the_same_request_is_refused_for_some_minutes() -> None:
    bench = Bench()
    for _ in range(2):
        if "a" not in bench.state.table.requests:
            bench.send(admit("a", text(3), sampling=Sampling(seed=1)))
        bench.send(StepFailed(step=bench.plan().step, message="broken"), WorkerLost(reason="exit"), ready())
    bench.texts()
    again = admit("again", text(3), sampling=Sampling(seed=2))
    bench.send(again, admit("other", text(4)))
    assert [(one.id, one.error) for one in said(bench)] == [("again", "quarantined")]
    bench.now += REMEMBERED_SECONDS + 1
    bench.send(replace(again, request=replace(again.request, id="later")))
    assert not said(bench)


def test_of_many_convicted_requests_the_oldest_are_forgotten() -> None:
    bench = Bench()
    quarantine = bench.state.table.quarantine
    lives = list[LiveRequest]()
    for number in range(MOST_REMEMBERED + 1):
        bench.send(admit(str(number), text(3, number)))
        lives.append(bench.state.table.requests[str(number)])
        quarantine.convict(lives[-1], 0.0)
    assert [quarantine.losses_of(live, 1.0) for live in (lives[0], lives[1], lives[-1])] == [0, None, None]
    assert quarantine.losses_of(lives[-1], REMEMBERED_SECONDS + 1) == 0


def test_a_suspect_whose_reader_is_behind_holds_nobody_up() -> None:
    bench = Bench(outbox_tokens=1, max_steps_in_flight=2)
    bench.send(admit("a", text(3)))
    bench.plan()
    bench.send(LOST, ready(), admit("b", text(3, 100)))
    assert sequences(bench.step()) == [1]  # its only credit
    bench.state.table.grant("b", 100)
    assert sequences(bench.step()) == [2]
    first, second = bench.plan(), bench.plan()  # two in flight again
    assert (sequences(first), sequences(second)) == ([2], [2])


@pytest.mark.parametrize("n", [1, 3])
def test_all_choices_are_cleared(n: int) -> None:
    bench = Bench()
    bench.send(admit("a", text(70), n=n, max_tokens=5))
    bench.step()
    bench.plan()
    bench.send(LOST, ready())
    while bench.state.table.requests:
        bench.step()
    assert not bench.state.table.quarantine.suspects
