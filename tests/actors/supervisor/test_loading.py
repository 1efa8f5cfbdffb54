"""How far a load is, and how long it will take: a pure account of what the worker reports."""

import pytest

from triolet.actors.supervisor.loading import TELL_SECONDS, LoadWatch, in_words
from triolet.protocol.steps import LoadProgress


def packing(done: int) -> LoadProgress:
    return LoadProgress(stage="packing weights", done=done, total=10)


def test_nothing_is_known_of_a_first_load_until_a_stage_moves() -> None:
    watch = LoadWatch()
    begun = watch.begin(100.0)
    assert (begun.stage, begun.share, begun.seconds_left) == ("starting the worker", 0.0, None)
    entered = watch.progress(packing(0), 101.0)
    assert entered is not None
    assert (entered.share, entered.seconds_left) == (0.0, None)


def test_a_stage_goes_on_at_its_own_pace() -> None:
    watch = LoadWatch()
    watch.begin(100.0)
    watch.progress(packing(0), 101.0)
    loading = watch.progress(packing(4), 105.0)
    assert loading is not None
    assert (loading.done, loading.total, loading.share) == (4, 10, 0.4)
    assert loading.seconds_left == pytest.approx(6.0)  # four units took four seconds, six are left
    assert in_words(loading) == "packing weights, 40 %"


def test_a_second_load_takes_as_long_as_the_first() -> None:
    watch = LoadWatch()
    watch.begin(100.0)
    watch.progress(packing(9), 101.0)
    watch.end(108.0)
    assert watch.begin(200.0).seconds_left == pytest.approx(8.0)
    loading = watch.progress(packing(9), 205.0)
    assert loading is not None
    assert loading.seconds_left == pytest.approx(3.0)
    late = watch.progress(packing(10), 300.0)
    assert late is not None
    assert late.seconds_left == 0.0


def test_watchers_hear_of_every_stage_and_now_and_then_of_its_progress() -> None:
    watch = LoadWatch()
    watch.begin(0.0)
    assert watch.progress(packing(0), 0.0) is not None
    assert watch.progress(packing(1), TELL_SECONDS / 2) is None
    assert watch.progress(packing(2), TELL_SECONDS) is not None
    assert watch.progress(LoadProgress(stage="loading sampler", done=0, total=1), TELL_SECONDS) is not None
