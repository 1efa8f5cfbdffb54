"""Steps beside a flood: a newcomer's first token gets a step of its own, and no step is long while tenants share."""

from typing import Any

from msgspec import structs

from triolet.actors.scheduler.sharing import LEAST_TOKENS, LINGER, LONGEST_STEP, SHORT_STEP
from triolet.protocol.messages import Cancel
from triolet.protocol.steps import Step

from .scheduling import Bench, admit, computed, done, flood, newcomer, ready, text


def flooded(rows: int = 8, **limits: Any) -> Bench:
    bench = Bench(worker=ready(num_blocks=200, **({"max_running": 16} | limits)))
    bench.send(*flood(rows))
    bench.step()
    return bench


def timed(bench: Bench, step: Step, seconds: float) -> None:
    bench.send(structs.replace(done(step), duration=seconds))


def test_a_newcomers_first_token_comes_in_a_step_of_its_own() -> None:
    bench = flooded()
    bench.send(newcomer(20))
    assert computed(bench.step()) == {9: 20}
    assert computed(bench.step()) == dict.fromkeys(range(1, 10), 1)


def test_the_others_get_every_second_step_at_least() -> None:
    bench = flooded()
    for number in range(6):
        bench.send(newcomer(5, id=f"new{number}", max_tokens=1))
        assert (1 in computed(bench.step())) == bool(number % 2)


def test_who_comes_steps_later_has_one_of_its_own_again() -> None:
    bench = flooded()
    for number in range(3):
        bench.send(newcomer(5, id=f"new{number}", max_tokens=1))
        assert 1 not in computed(bench.step())
        for _ in range(3):
            assert 1 in computed(bench.step())


def test_prompts_go_on_beside_many_rows_of_a_slow_model() -> None:
    bench = Bench(worker=ready(num_blocks=200, max_running=64, max_step_tokens=512))
    bench.send(*flood(62))
    for _ in range(3):
        timed(bench, bench.plan(), 10 * LONGEST_STEP)
    bench.send(newcomer(1900))
    counts = [computed(bench.step()).get(63, 0) for _ in range(4)]
    assert min(counts) >= LEAST_TOKENS


def test_who_has_many_rows_shares_its_steps() -> None:
    bench = flooded(rows=3)  # beside one
    bench.send(newcomer(20))
    assert computed(bench.step()) == {1: 1, 2: 1, 3: 1, 4: 20}


def test_who_was_served_more_shares_its_steps() -> None:
    bench = Bench(worker=ready(num_blocks=200, max_running=16, max_step_tokens=1024))
    bench.send(newcomer(900, id="long", max_tokens=100), *flood(8))
    bench.step()
    bench.send(newcomer(20))
    assert set(computed(bench.step())) == set(range(1, 11))


def test_a_prompt_that_is_longer_than_a_step_holds_nobody_up() -> None:
    bench = flooded()
    bench.send(newcomer(400))
    assert [len(computed(bench.step())) for _ in range(3)] == [9, 9, 9]


def test_who_lacks_blocks_gets_no_empty_step() -> None:
    bench = Bench(worker=ready(num_blocks=17, max_running=16))
    bench.send(*flood(8, length=60, max_tokens=100))
    bench.step()
    bench.step()
    bench.send(newcomer(20))
    while "new" in bench.state.table.requests:
        bench.step()  # it fails without a plan


def test_on_a_gpu_fewer_rows_save_no_time() -> None:
    worker = ready(num_blocks=200, max_running=16)
    bench = Bench(worker=structs.replace(worker, ready=structs.replace(worker.ready, device="cuda")))
    bench.send(*flood(8))
    bench.step()
    bench.send(newcomer(20))
    assert len(computed(bench.step())) == 9


def test_prompts_get_what_a_short_step_has_room_for_while_tenants_share() -> None:
    bench = Bench(worker=ready(num_blocks=200, max_running=16, max_step_tokens=512))
    bench.send(*flood(1, length=1900, max_tokens=10))
    for _ in range(2):
        step = bench.plan()
        assert computed(step) == {1: 512}  # alone, steps are as long as they may be
        timed(bench, step, 4 * LONGEST_STEP)
    bench.send(newcomer(2, max_tokens=1))
    first, second = (sum(computed(bench.step()).values()) for _ in range(2))
    assert LEAST_TOKENS < first < 512 / 2
    bench.now += LINGER
    bench.send(Cancel(id="nobody"))
    assert computed(bench.step()) == {1: 1900 - 2 * 512 - (first + second - 2)}


def test_a_text_that_is_pooled_is_read_whole_all_the_same() -> None:
    bench = Bench(worker=ready(num_blocks=200, max_running=16, max_step_tokens=512))
    bench.send(*flood(1, length=512, max_tokens=1, pooled=True))
    timed(bench, bench.plan(), 4 * LONGEST_STEP)
    bench.send(*flood(1, length=512, max_tokens=1, pooled=True), newcomer(2))
    assert any(512 in computed(bench.step()).values() for _ in range(3))


def test_no_step_is_planned_behind_one_that_is_not_short() -> None:
    bench = Bench(max_steps_in_flight=2)
    bench.send(*flood(2), newcomer(max_tokens=50))
    for seconds, behind in ((2 * SHORT_STEP, False), (SHORT_STEP / 2, True)):
        timed(bench, bench.plan(), seconds)
        running = bench.plan()
        assert (bench.state.plan() is not None) == behind, seconds
        if not behind:
            bench.send(done(running))


def test_a_newcomer_without_a_reader_gets_no_step_of_its_own() -> None:
    bench = flooded()
    bench.send(admit("new", text(20, 500_000), tenant="b", arrival_time=9.0, max_tokens=1))
    bench.state.table.requests["new"].granted = 0
    assert 9 not in computed(bench.step())
