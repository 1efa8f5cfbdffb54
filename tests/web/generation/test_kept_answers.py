"""What is kept for clients that come back, and who gives up first when there is no room."""

from collections import Counter

import pytest

from triolet.protocol.reports import KeptFigures
from triolet.web.generation.kept_answers import OVERHEAD, PLACE, KeptAnswer, KeptAnswers

LIMIT = 5 * OVERHEAD


class Answer(KeptAnswer):
    """`token` names it."""

    forgotten = 0

    def on_forgotten(self) -> None:
        self.forgotten += 1


class House:
    def __init__(self) -> None:
        self.figures, self.events = KeptFigures(), Counter[str]()
        self.answers = KeptAnswers[Answer](LIMIT, self.figures, self.events)

    def keep(self, token: str, tenant: str = "a") -> Answer:
        answer = Answer(token, tenant)
        self.answers.keep(answer)
        return answer


@pytest.fixture
def house() -> House:
    return House()


def _read(answer: Answer, after: int, most: int) -> list[bytes]:
    """The frames from number `after` on, at most so many at a time."""
    read: list[bytes] = []
    while frames := answer.frames(after + len(read), most):
        assert len(frames) <= most
        read += frames
    return read


def test_frames_by_number(house: House) -> None:
    answer = house.keep("t")
    frames = [b'{"seq":0}', b"", b'{"text":"a\\nb"}']
    for frame in frames:
        house.answers.append(answer, frame)
    for after in range(5):
        assert _read(answer, after, 64) == _read(answer, after, 1) == frames[after:]
    assert answer.count == 3


def test_only_its_own_tenant_finds_it(house: House) -> None:
    answer = house.keep("t", "a")
    assert house.answers.find("t", "a") is answer
    assert house.answers.find("t", "b") is None
    assert house.answers.find("u", "a") is None
    house.answers.discard(answer)
    assert house.answers.find("t", "a") is None


def test_the_figures_are_those_of_what_is_kept(house: House) -> None:
    first, second = house.keep("1"), house.keep("2")
    house.answers.append(first, b"12345")
    assert house.figures == KeptFigures(answers=2, bytes=2 * OVERHEAD + 5 + PLACE)
    house.answers.discard(first)
    house.answers.append(first, b"what comes later")
    house.answers.discard(first)
    assert (first.forgotten, _read(first, 0, 64)) == (1, [])
    assert house.figures == KeptFigures(answers=1, bytes=OVERHEAD)
    house.answers.discard(second)
    assert (second.forgotten, house.figures, house.events) == (1, KeptFigures(), Counter())


def test_the_key_that_holds_most_gives_up_its_oldest_and_ended_ones_first(house: House) -> None:
    other = house.keep("other", "b")
    first, ended, third, fourth = (house.keep(token, "a") for token in "1234")
    ended.ended = True
    assert house.figures.bytes == LIMIT
    house.answers.append(other, b"x")
    assert [answer.kept for answer in (other, first, ended, third)] == [True, True, False, True]
    house.answers.append(other, b"x" * OVERHEAD)
    assert [answer.kept for answer in (other, first, third, fourth)] == [True, False, True, True]
    assert house.events == {"given_up": 2}


def test_one_answer_larger_than_everything_is_given_up_itself(house: House) -> None:
    answer = house.keep("t")
    house.answers.append(answer, b"x" * LIMIT)
    assert not answer.kept
    assert house.figures == KeptFigures()
