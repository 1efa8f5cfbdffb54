"""A choice's text: whatever the tokens and stop strings, the deltas are the naive decode, cut."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.actors.detokenizer.choice_text import ChoiceText, TextDelta
from triolet.actors.tokenizer.text_tokenizer import TextTokenizer
from triolet.protocol.events import TokenLogprob, TopLogprob
from triolet.protocol.requests import Generate, TextPrompt, TokenPrompt
from triolet.protocol.sampling import Sampling


def token_of(tokenizer: TextTokenizer, piece: str) -> int:
    found = tokenizer.tokenizer.token_to_id(piece)
    assert found is not None
    return found


def request_of(**changes: Any) -> Generate:
    fields: dict[str, Any] = {"prompts": (TokenPrompt(token_ids=(5,)),), "sampling": Sampling()}
    return Generate(id="r", model="m", **(fields | changes))


def naive_cut(text: str, stops: tuple[str, ...], include: bool) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def feed_all(choice: ChoiceText, ids: list[int], sizes: list[int]) -> list[TextDelta]:
    """Feed in groups of the given sizes, ending with `last`."""
    deltas: list[TextDelta] = []
    place = 0
    while place < len(ids) or not deltas:
        size = sizes[len(deltas) % len(sizes)] if sizes else 1
        group = ids[place : place + size]
        place += size
        deltas.append(choice.add_tokens(group, last=place >= len(ids)))
        if deltas[-1].stop is not None:
            break
    return deltas


@given(data=st.data())
def test_stream_equals_decode_everything_then_cut(text_tokenizer: TextTokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, 399), max_size=40), "ids")
    whole = text_tokenizer.tokenizer.decode(ids, skip_special_tokens=True)

    def piece(start: int, size: int) -> str:
        return whole[start : start + size]

    # Half of the stop strings are drawn from the text itself, so that they match, across token borders too.
    inside = st.builds(piece, st.integers(0, max(len(whole) - 1, 0)), st.integers(1, 6)).filter(bool)
    stop = st.one_of(inside, st.text(min_size=1, max_size=3)) if whole else st.text(min_size=1, max_size=3)
    stops = tuple(data.draw(st.lists(stop, max_size=3, unique=True), "stops"))
    include = data.draw(st.booleans(), "include")
    sizes = data.draw(st.lists(st.integers(1, 5), max_size=6), "sizes")
    choice = ChoiceText(request_of(stop=stops, include_stop=include), (), 0, text_tokenizer)
    deltas = feed_all(choice, ids, sizes)
    expected, matched = naive_cut(whole, stops, include)
    assert "".join(delta.text for delta in deltas) == expected
    assert deltas[-1].stop == matched
    assert sum(delta.kept for delta in deltas) == choice.tokens
    if matched is None:
        assert choice.tokens == len(ids)


def test_only_a_possible_stop_is_held_back(text_tokenizer: TextTokenizer) -> None:
    choice = ChoiceText(request_of(stop=("END",)), (), 0, text_tokenizer)
    ids = {letter: token_of(text_tokenizer, letter) for letter in "aEND"}
    assert [choice.add_tokens([ids[letter]]).text for letter in "aEaENa"] == ["a", "", "Ea", "", "", "ENa"]
    assert choice.add_tokens([ids["E"]], last=True).text == "E"


def test_stop_counts_the_token_that_completes_it_and_none_behind(text_tokenizer: TextTokenizer) -> None:
    choice = ChoiceText(request_of(stop=("ND",)), (), 0, text_tokenizer)
    ids = [token_of(text_tokenizer, letter) for letter in "aENDaa"]
    delta = choice.add_tokens(ids)
    assert (delta.text, delta.kept, delta.stop) == ("aE", 4, "ND")


def test_stop_strings_wait_for_min_tokens(text_tokenizer: TextTokenizer) -> None:
    choice = ChoiceText(request_of(stop=("a",), sampling=Sampling(min_tokens=2)), (), 0, text_tokenizer)
    letter = token_of(text_tokenizer, "a")
    assert choice.add_tokens([letter, letter]).text == "aa"
    assert choice.add_tokens([letter]).stop == "a"


def test_logprobs_are_spelt_and_placed(text_tokenizer: TextTokenizer) -> None:
    ids = text_tokenizer.tokenizer.encode("the fox 漢").ids
    choice = ChoiceText(request_of(), (), 0, text_tokenizer)
    scores = [TokenLogprob(token_id=id, logprob=-1.0, top=(TopLogprob(id, -1.0),)) for id in ids]
    delta = choice.add_tokens(ids, scores, last=True)
    text = text_tokenizer.tokenizer.decode(ids)
    assert b"".join(logprob.text for logprob in delta.logprobs) == text.encode()
    assert all(logprob.top[0].text == logprob.text for logprob in delta.logprobs)
    for logprob in delta.logprobs:
        assert text[: logprob.text_offset].encode() == text.encode()[: len(text[: logprob.text_offset].encode())]
    assert [logprob.text_offset for logprob in delta.logprobs[:2]] == [0, 3]


def test_tokens_of_logprobs_may_be_spelt_as_their_ids(text_tokenizer: TextTokenizer) -> None:
    ids = text_tokenizer.tokenizer.encode("the fox").ids
    choice = ChoiceText(request_of(tokens_as_ids=True), (), 0, text_tokenizer)
    scores = [TokenLogprob(token_id=id, logprob=-1.0, top=(TopLogprob(7, -2.0),)) for id in ids]
    delta = choice.add_tokens(ids, scores, last=True)
    assert delta.text == "the fox"
    assert [score.text for score in delta.logprobs] == [f"token_id:{id}".encode() for id in ids]
    assert delta.logprobs[0].top[0].text == b"token_id:7"


@pytest.mark.parametrize("first_included", [False, True])
def test_echo_gives_the_prompt_with_its_log_probabilities(
    text_tokenizer: TextTokenizer, first_included: bool, generate: Callable[..., Generate]
) -> None:
    prompt = tuple(text_tokenizer.tokenizer.encode("the fox").ids)
    request = generate(
        prompts=(TextPrompt(text="the fox"),), echo=True, sampling=Sampling(logprobs=0, prompt_logprobs=0)
    )
    choice = ChoiceText(request, prompt, 0, text_tokenizer)
    assert choice.wants_prompt_logprobs
    scores = [TokenLogprob(token_id=id, logprob=-0.5) for id in prompt]
    choice.add_prompt_logprobs(scores if first_included else scores[1:])
    echo = choice.echo()
    assert echo.text == "the fox"
    assert echo.kept == 0
    assert [logprob.token_id for logprob in echo.logprobs] == list(prompt)
    assert echo.logprobs[0].logprob is (None if not first_included else -0.5)
    following = choice.add_tokens(prompt[:1], scores[:1])
    assert following.logprobs[0].text_offset == len("the fox")


@pytest.mark.parametrize("skip_special", [True, False])
def test_offsets_of_an_echo_point_into_the_text_that_was_sent(
    text_tokenizer: TextTokenizer, skip_special: bool, generate: Callable[..., Generate]
) -> None:
    """The echo is the prompt as it came: special tokens that it spells are in it, one put in front of it is not."""
    sent = "<|start|>user\nhi<|end|>"
    front = token_of(text_tokenizer, "<|end|>")
    prompt = (front, *text_tokenizer.tokenizer.encode(sent).ids)
    request = generate(
        prompts=(TextPrompt(text=sent),),
        echo=True,
        skip_special_tokens=skip_special,
        sampling=Sampling(logprobs=0, prompt_logprobs=0),
    )
    choice = ChoiceText(request, prompt, 0, text_tokenizer)
    choice.add_prompt_logprobs([TokenLogprob(token_id=id, logprob=-0.5) for id in prompt[1:]])
    echo = choice.echo()
    assert echo.text == sent
    assert echo.logprobs[0].text_offset == 0
    for logprob in echo.logprobs[1:]:
        assert sent.startswith(logprob.text.decode(), logprob.text_offset)
    following = choice.add_tokens(prompt[1:2], [TokenLogprob(token_id=prompt[1], logprob=-0.5)])
    assert following.logprobs[0].text_offset == len(sent)


def test_a_stop_tokens_log_probability_is_the_last(text_tokenizer: TextTokenizer) -> None:
    choice = ChoiceText(request_of(sampling=Sampling(logprobs=0)), (5,), 0, text_tokenizer)
    fox, end = token_of(text_tokenizer, "f"), token_of(text_tokenizer, "<|end|>")
    scores = tuple(TokenLogprob(token_id=id, logprob=-1.0) for id in (fox, end))
    delta = choice.add_tokens((fox,), scores, last=True)
    assert (delta.text, delta.kept) == ("f", 1)
    assert [(score.text, score.text_offset, score.stops) for score in delta.logprobs] == [
        (b"f", 0, False),
        (b"<|end|>", 1, True),
    ]
