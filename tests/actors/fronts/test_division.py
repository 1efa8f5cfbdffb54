"""What goes to which front: nothing is lost, doubled or put in another order; the parts of the places are the whole."""

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from triolet.actors.fronts.division import divide, keys_of, owner, part_of
from triolet.protocol.fronts import ChoiceOpened
from triolet.protocol.messages import ChoiceTokens, DropRequest, OpenChoice, StepTokens, ToDetokenizer
from triolet.protocol.settings import KeySettings, LimitSettings

from ..wiring import generate

IDS: st.SearchStrategy[str] = st.builds("{}-{:x}".format, st.sampled_from(["1aw1", "1aw2", "1aw3"]), st.integers(1, 20))


def choice(id: str, token: int) -> ChoiceTokens:
    return ChoiceTokens(id=id, index=0, tokens=(token,))


CHOICE = st.builds(choice, IDS, st.integers(0, 9))


def step(ids: list[str], others: list[ChoiceTokens]) -> StepTokens:
    """Each row tells which it is."""
    return StepTokens(ids=tuple(ids), rows=tuple((place,) for place in range(len(ids))), others=tuple(others))


TEXTS: st.SearchStrategy[list[ToDetokenizer]] = st.lists(
    st.one_of(
        st.builds(step, st.lists(IDS, max_size=6, unique=True), st.lists(CHOICE, max_size=6)),
        IDS.map(lambda id: DropRequest(id=id, reason="cancelled")),
        IDS.map(lambda id: OpenChoice(request=generate(id), index=0, prompt=(1, 2), cached_tokens=1)),
    ),
    max_size=8,
)
Said = tuple[str, object]


def spoken(text: object) -> list[Said]:
    """Every single thing in a message, by the request it is about."""
    if isinstance(text, StepTokens):
        return [(choice.id, choice.tokens) for choice in text.choices()]
    if isinstance(text, OpenChoice):
        return [(text.request.id, "opened")]
    assert isinstance(text, ChoiceOpened | DropRequest)
    return [(text.id, "opened" if isinstance(text, ChoiceOpened) else text.reason)]


@given(TEXTS)
def test_every_front_hears_what_is_its_own_in_order(texts: list[ToDetokenizer]) -> None:
    everything = [said for text in texts for said in spoken(text)]
    shares = divide(texts)
    assert set(shares) == {owner(id) for id, _ in everything}
    for name, share in shares.items():
        assert [said for text in share for said in spoken(text)] == [
            said for said in everything if owner(said[0]) == name
        ]


def test_a_step_of_one_front_is_passed_on_as_it_is() -> None:
    text = step(["aw1-1", "aw1-2"], [])
    assert divide([text]) == {"aw1": [text]}


def test_a_front_hears_of_a_step_once() -> None:
    """Rows and others in two messages would make its detokenizer look up every row again at every step."""
    shares = divide([step(["aw1-1", "aw2-1"], [choice("aw1-2", 5), choice("aw3-1", 6)])])
    assert shares["aw1"] == [StepTokens(ids=("aw1-1",), rows=((0,),), others=(choice("aw1-2", 5),))]
    assert shares["aw3"] == [StepTokens(others=(choice("aw3-1", 6),))]


def test_the_ids_of_a_front_are_one_object_while_the_same_requests_go_on() -> None:
    shares = [divide([step(["aw1-1", "aw2-1", "aw1-2"], [])])["aw1"][0] for _ in range(2)]
    first, second = cast("list[StepTokens]", shares)
    assert first.ids == ("aw1-1", "aw1-2")
    assert first.ids is second.ids


@given(st.integers(1, 12), st.integers(0, 5000))
def test_the_parts_are_the_whole_and_nearly_equal(fronts: int, more: int) -> None:
    limits = LimitSettings(max_requests=fronts + more)
    parts = [part_of(limits, number, fronts).max_requests for number in range(fronts)]
    assert sum(parts) == limits.max_requests
    assert max(parts) - min(parts) <= 1
    assert min(parts) >= 1


@given(st.integers(2, 12), st.integers(0, 500), st.integers(0, 5000))
def test_the_parts_of_a_keys_limits_are_the_whole(fronts: int, requests: int, tokens: int) -> None:
    """The scheduler's process has a part of the tokens, for batches' lines."""
    key = KeySettings(
        sha256="0" * 64,
        name="alice",
        weight=2,
        requests_per_minute=fronts + requests,
        concurrent=fronts,
        tokens_per_minute=fronts + 1 + tokens,
    )
    parts = [keys_of((key, KeySettings(sha256="1" * 64)), number, fronts) for number in range(fronts + 1)]
    assert sum(part.requests_per_minute or 0 for part, _ in parts[:fronts]) == key.requests_per_minute
    assert [part.concurrent for part, _ in parts[:fronts]] == [1] * fronts
    assert sum(part.tokens_per_minute or 0 for part, _ in parts) == key.tokens_per_minute
    assert min(part.tokens_per_minute or 0 for part, _ in parts) >= 1
    assert {(part.name, part.weight, part.sha256) for part, _ in parts} == {("alice", 2, key.sha256)}
    assert {free for _, free in parts} == {KeySettings(sha256="1" * 64)}
