"""Sequence: the token log with its unread tail, and the names of its blocks."""

from typing import Any

from triolet.actors.scheduler.prefix_keys import PrefixKeys, SharedPrompt
from triolet.actors.scheduler.sequence import LiveRequest, Sequence
from triolet.protocol.sampling import Sampling

from .scheduling import admit, text


def sequence(prompt: tuple[int, ...], *, max_tokens: int = 10, index: int = 0, **fields: Any) -> Sequence:
    message = admit("a", prompt, max_tokens=max_tokens, **fields)
    live = LiveRequest(message, credit=100)
    keys = PrefixKeys(b"test")
    shared = SharedPrompt(prompt, message.request.n, keys.root("", "", "", "default"), keys)
    return Sequence(1, live, index, shared, len(prompt) + max_tokens)


def read(it: Sequence, *tokens: int) -> None:
    """They were generated."""
    it.generated += tokens
    it.total += len(tokens)


def test_unread_tokens_count_as_tokens_but_have_no_ids() -> None:
    it = sequence(text(5))
    it.computed, it.total = 5, it.total + 1
    assert (it.read, it.total, it.remaining) == (5, 6, 1)
    it.generated = [9]
    assert (it.read, it.total, it.remaining) == (6, 6, 1)


def test_the_last_token_is_not_computed() -> None:
    it = sequence(text(5), max_tokens=1)
    assert it.remaining == 5
    it.computed, it.total = 5, it.total + 1
    assert it.remaining == 0


def test_a_prompt_without_an_answer_is_computed_as_far_as_its_logprobs_need() -> None:
    assert sequence(text(5), max_tokens=0).remaining == 4


def test_keys_of_prompt_and_generated_blocks_are_those_of_the_whole_text_as_a_prompt() -> None:
    it = sequence(text(100), max_tokens=200)
    read(it, *range(500, 600))
    whole = sequence((*text(100), *range(500, 600)))
    assert [it.key(block) for block in (2, 0, 1)] == [whole.key(block) for block in (2, 0, 1)]
    assert it.tokens_between(64, 128) == whole.prompt.tokens[64:128]


def test_choices_of_one_prompt_draw_from_different_seeds() -> None:
    sampling = Sampling(seed=2**64 - 1)
    seeds = [sequence(text(3), index=index, n=2, sampling=sampling).record().sampling.seed for index in range(4)]
    assert seeds == [2**64 - 1, 0, 2**64 - 1, 0]


def test_a_record_carries_what_was_generated() -> None:
    it = sequence(text(3), n=1)
    read(it, 7, 8)
    record = it.record()
    assert (record.tokens, record.prompt_tokens) == ((1, 2, 3, 7, 8), 3)


def test_a_record_says_whether_its_request_is_strict() -> None:
    assert not sequence(text(3)).record().strict
    assert sequence(text(3), determinism="strict").record().strict


def test_of_a_strict_sequence_only_blocks_of_its_prompt_may_be_cached() -> None:
    it, strict = sequence(text(130), max_tokens=200), sequence(text(130), max_tokens=200, determinism="strict")
    for each in (it, strict):
        read(each, *range(500, 600))
    assert (it.cacheable_blocks, it.shareable_blocks) == (3, 3)
    assert (strict.cacheable_blocks, strict.shareable_blocks) == (2, 2)
    assert sequence(text(128), determinism="strict").shareable_blocks == 1  # its last token is computed anyway


def test_prompt_logprobs_are_wanted_once_and_of_prompt_rows_alone() -> None:
    it = sequence(text(10), sampling=Sampling(prompt_logprobs=1))
    assert it.wants_prompt_logprobs(0, 4)
    it.scored = 5
    assert not it.wants_prompt_logprobs(0, 4)
    assert it.wants_prompt_logprobs(0, 5)
    assert not it.wants_prompt_logprobs(9, 10)
    it.scored = 10
    assert not it.wants_prompt_logprobs(0, 10)
    assert not sequence(text(10)).wants_prompt_logprobs(0, 10)
