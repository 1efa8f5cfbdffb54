from random import Random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from triolet.loadtest.serve.bodies import body_of
from triolet.loadtest.serve.lengths import Uniform
from triolet.loadtest.serve.mix import MixShare
from triolet.loadtest.serve.settings import LoadSettings
from triolet.loadtest.serve.traces import TracedRequest
from triolet.loadtest.serve.words import TokensPerWord, from_probes, text_of
from triolet.loadtest.serve.workload import Workload

SETTINGS = LoadSettings(
    url="http://x", prompt_tokens=Uniform(10, 50), output_tokens=Uniform(1, 9), turns=Uniform(1, 4),
    shared_prefix=MixShare(0.5, 30),
)  # fmt: skip


@given(st.integers(0, 10_000))
def test_a_conversation_depends_on_the_seed_and_its_number_alone(number: int) -> None:
    fresh, used = Workload(SETTINGS), Workload(SETTINGS)
    for other in range(3):
        used.conversation(other)
    assert fresh.conversation(number) == used.conversation(number)


def test_other_seeds_and_numbers_ask_for_something_else() -> None:
    workload = Workload(SETTINGS)
    texts = {workload.conversation(number).turns[0].text for number in range(100)}
    assert len(texts) == 100
    other = Workload(msgspec.structs.replace(SETTINGS, seed=2))
    assert workload.conversation(0) != other.conversation(0)


def test_a_share_of_the_conversations_begins_with_the_same_words() -> None:
    words = TokensPerWord(slope=1.0)
    workload = Workload(SETTINGS, words)
    plans = [workload.conversation(number) for number in range(400)]
    beginnings = [" ".join(plan.turns[0].text.split()[:30]) for plan in plans if len(plan.turns[0].text.split()) > 30]
    prefix = max(set(beginnings), key=beginnings.count)
    sharing = [plan for plan in plans if plan.turns[0].text.startswith(prefix)]
    assert abs(len(sharing) - 200) < 4 * 10
    assert all(plan.turns[0].prompt_tokens >= 40 for plan in sharing)
    assert not any(turn.text.startswith(prefix) for plan in plans for turn in plan.turns[1:])


def test_a_trace_gives_the_lengths() -> None:
    workload = Workload(LoadSettings(url="http://x"), TokensPerWord(1.0), [TracedRequest(0.0, 7, 3)])
    (turn,) = workload.conversation(5).turns
    assert (turn.prompt_tokens, turn.output_tokens, len(turn.text.split())) == (7, 3, 7)


def test_words_are_learned_from_two_probes() -> None:
    learned = from_probes((20, 35), (80, 125))
    assert (learned.slope, learned.overhead) == (1.5, 5.0)
    assert learned.words_for(95) == 60
    assert learned.words_for(1) == 1
    assert from_probes((20, None), (80, None)) == TokensPerWord()
    assert len(text_of(12, Random(1)).split()) == 12


def test_bodies_are_what_each_api_wants() -> None:
    said = [("one", "two"), ("three", "")]
    chat = msgspec.json.decode(body_of(SETTINGS, "m", said, 9, 4))
    assert chat["messages"] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    assert (chat["max_tokens"], chat["model"], chat["priority"], chat["stream"]) == (9, "m", 4, True)
    assert chat["ignore_eos"] is True
    assert chat["stream_options"] == {"include_usage": True}
    plain = msgspec.structs.replace(
        SETTINGS, api="completions", ignore_eos=False, temperature=0.5, extra_body={"top_k": 3, "max_tokens": 1}
    )
    text = msgspec.json.decode(body_of(plain, None, said, 9, None))
    assert text["prompt"] == "one\ntwo\nthree"
    assert text.keys() == {"prompt", "max_tokens", "stream", "stream_options", "temperature", "top_k"}
    assert text["max_tokens"] == 1  # --extra-body has the last word
    socket = msgspec.json.decode(body_of(msgspec.structs.replace(SETTINGS, api="websocket"), "m", said, 9, None))
    assert "stream" not in socket
