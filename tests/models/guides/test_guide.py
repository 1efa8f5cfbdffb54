"""Guides on the bundled model's tokenizer, without a model: tokens are drawn at random from what a mask allows."""

import json
import random

import numpy as np
import pytest

from triolet.models.guides.guide import Guide, Matcher
from triolet.models.guides.masks import MaskThread
from triolet.protocol.requests import Thinking
from triolet.protocol.sampling import Sampling
from triolet.protocol.steps import MAX_FORCED

from .bench import SCHEMA, Bench, Panic, allowed, drawn


@pytest.mark.parametrize("seed", range(25))
def test_jumps_are_tokens_that_the_masks_allow(bench: Bench, seed: int) -> None:
    """The same answer token by token: every forced token may come there, and the masks behind the rows are equal.

    So are the masks of the grammar alone, which looks at one token at a time.
    """
    guide, slow = bench.guide(1), bench.guide(1, jumps=False)
    grammar = bench.stores[False]._built[1].matcher.deep_copy()
    tokens: list[int] = []
    for row in drawn(guide, random.Random(seed), bench.eos):
        for token in row:
            assert token in (allowed(slow) or [])
            alone = grammar.compute_bitmask()[: slow.mask.nbytes]  # its last word holds no token
            assert grammar.is_stopped() or alone == slow.mask.tobytes()
            assert slow.take(token) == ()
            assert grammar.consume_token(token)
        tokens += row
        assert allowed(guide) == allowed(slow)
    found = json.loads(bench.text(tokens))
    assert list(found) == list(SCHEMA["properties"])  # type: ignore[call-overload]  # JSON


def test_a_forced_text_is_spelt_once_without_jumps_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = bench.guide(1, jumps=False)
    counted = _Counting(guide._matcher)
    guide._matcher = counted
    rows = list(drawn(guide, random.Random(3), bench.eos))
    assert counted.masks < 0.6 * len(rows)
    assert guide.mask.base is None
    guide.write_into(memory := np.zeros((2, 64), np.uint32)[1])
    guide.fill()
    assert guide.mask is memory


class _Counting:
    """A matcher that counts its masks."""

    def __init__(self, matcher: Matcher | None) -> None:
        assert matcher is not None
        self.masks = 0
        self._matcher = matcher
        self.consume_token, self.consume_tokens = matcher.consume_token, matcher.consume_tokens
        self.compute_ff_tokens, self.is_stopped = matcher.compute_ff_tokens, matcher.is_stopped
        self.is_error = matcher.is_error

    def unsafe_compute_mask_ptr(self, trg_pointer: int, trg_byte_size: int) -> None:
        self.masks += 1
        self._matcher.unsafe_compute_mask_ptr(trg_pointer, trg_byte_size)


def test_fixed_keys_take_few_rows(bench: Bench) -> None:
    rows = list(drawn(bench.guide(1), random.Random(3), bench.eos))
    assert sum(map(len, rows)) > 2 * len(rows)
    assert max(map(len, rows)) <= 1 + MAX_FORCED


@pytest.mark.parametrize("seed", range(10))
def test_a_sequence_that_comes_back_is_guided_from_where_it_was(bench: Bench, seed: int) -> None:
    guide, tokens = bench.guide(1), list[int]()
    for row in drawn(guide, random.Random(seed), bench.eos):
        tokens += row
        assert allowed(bench.guide(1, *tokens)) == allowed(guide)


def test_the_end_of_the_answer_is_forced_where_the_grammar_ends(bench: Bench) -> None:
    guide = bench.guide(2)
    (first,) = [token for token in allowed(guide) or [] if bench.text([token]) == "n"]
    row = guide.take(first)
    assert bench.text([first, *row]) == "no"
    assert row[-1] == bench.eos[0]
    assert allowed(guide) is None
    slow = bench.guide(2, *bench.ids("no"), jumps=False)
    assert allowed(slow) == [bench.eos[0]]


def test_a_token_that_the_grammar_forbids_is_noticed(bench: Bench) -> None:
    guide = bench.guide(2)
    assert guide.take(bench.ids("{")[0]) == ()
    assert guide.failed
    assert allowed(guide) is None


def test_no_jumps_where_a_forced_token_would_lack_something(bench: Bench) -> None:
    first = bench.ids("n")[0]
    for sampling in (Sampling(logprobs=0), Sampling(bad_words=((9,),)), Sampling(allowed_tokens=b"\xff" * 256)):
        assert bench.guide(2, sampling=sampling).take(first) == ()


def test_thoughts_begin_with_their_mark_or_not_at_all(bench: Bench) -> None:
    thinking = Thinking(begin=(1500,), end=(1600, 1601))
    guide = bench.guide(2, thinking=thinking)
    assert set(allowed(guide) or []) == {*(allowed(bench.guide(2)) or []), 1500}
    assert guide.take(1500) == ()
    assert set(range(2048)) - set(allowed(guide) or []) == set(bench.eos)  # the answer cannot end here
    for token in (7, 1600, 8, 1600):
        guide.take(token)
    assert guide.take(1601) == ()
    assert allowed(guide) == allowed(bench.guide(2))
    straight = bench.guide(2, thinking=thinking)
    straight.take(bench.ids("n")[0])
    assert 1500 not in (allowed(straight) or [])


@pytest.mark.parametrize("jumps", [False, True])
def test_a_spent_budget_ends_the_thoughts(bench: Bench, jumps: bool) -> None:
    thinking = Thinking(begin=(1500,), end=(1600, 1601, 1602), open=True)
    guide, tokens = bench.guide(2, thinking=thinking, budget=3, jumps=jumps), [7, 8, 1600]
    rows = [guide.take(token) for token in tokens]
    if jumps:
        assert rows == [(), (), (1601, 1602)]  # the model had begun the mark
    else:
        for token in (1601, 1602):
            assert allowed(guide) == [token]
            guide.take(token)
    assert allowed(guide) == allowed(bench.guide(2))
    assert allowed(bench.guide(2, 7, 8, 9, 1600, thinking=thinking, budget=3, jumps=False)) == [1601]


def test_a_budget_without_a_grammar_guides_the_thoughts_alone(bench: Bench) -> None:
    thinking = Thinking(begin=(1500, 1501), end=(1600,))
    guide = bench.guide(0, thinking=thinking, budget=1)
    assert allowed(guide) is None
    assert not guide.over
    assert [guide.take(token) for token in (1500, 1501, 7, 8)] == [(), (), (1600,), ()]
    assert guide.over
    assert not bench.guide(2, *bench.ids("no")).over
    assert allowed(guide) is None
    assert bench.guide(0, thinking=thinking, budget=0).take(1500) == ()  # "1500" alone may be text


def test_a_prompt_that_is_open_may_have_no_budget_at_all(bench: Bench) -> None:
    guide = bench.guide(2, thinking=Thinking(begin=(), end=(1600,), open=True), budget=0)
    assert allowed(guide) == [1600]


def test_masks_are_filled_by_another_thread_once(bench: Bench) -> None:
    thread, guides = MaskThread(), [bench.guide(1), bench.guide(2)]
    thread.begin(guides)
    thread.begin(guides)
    assert thread._under_way == 1
    thread.wait()
    assert [guide.mask.any() for guide in guides] == [True, True]
    thread.begin([object.__new__(_Broken)])
    with pytest.raises(TypeError):  # what goes wrong there is raised here
        thread.wait()


class _Broken(Guide):
    ready = False

    def fill(self) -> None:
        raise TypeError


class _RaisingMatcher:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def consume_token(self, sampled_token: int) -> bool:
        raise self.error

    def consume_tokens(self, sampled_tokens: list[int]) -> bool:
        raise self.error

    def compute_ff_tokens(self) -> list[int]:
        raise self.error

    def unsafe_compute_mask_ptr(self, trg_pointer: int, trg_byte_size: int) -> None:
        raise self.error

    def is_stopped(self) -> bool:
        return False

    def is_error(self) -> bool:
        return False


@pytest.mark.parametrize("error", [ValueError("no"), Panic()])
def test_a_matcher_that_raises_fails_its_answer_alone(bench: Bench, error: BaseException) -> None:
    def guide(*answer: int) -> Guide:
        return Guide(
            _RaisingMatcher(error), None, None, eos=bench.eos, vocab_size=2048, jumps=True, answer=answer
        )  # fmt: skip

    thread, filled, neighbour = MaskThread(), guide(), bench.guide(2)
    thread.begin([filled, neighbour])
    thread.wait()
    assert (filled.failed, filled.masked, filled.ready) == (True, False, True)
    assert not neighbour.failed
    assert neighbour.mask.any()
    taking = guide()
    assert taking.take(5) == ()
    assert taking.failed
    assert guide(5).failed
