"""The demo corpus: deterministic, its answers are right, and nothing held out is ever trained on."""

import json
import re
from pathlib import Path
from random import Random

import pytest

from triolet.models.demo.training.corpus import FAMILIES, MIX, conversation, digest
from triolet.models.demo.training.heldout import instances, kept_out
from triolet.models.demo.training.tasks.arithmetic import difference_text, sum_text
from triolet.models.demo.training.tasks.language import Wordings, expand
from triolet.models.demo.training.tasks.story import story, story_pattern

HELD_OUT = Path(__file__).parents[3] / "loadtest" / "data" / "demo_heldout.jsonl"


def test_a_conversation_depends_on_seed_and_index_alone() -> None:
    first = [conversation(3, index) for index in range(50)]
    assert first == [conversation(3, index) for index in reversed(range(50))][::-1]
    assert first != [conversation(4, index) for index in range(50)]


def test_a_story_that_only_begins_is_gone_on_with() -> None:
    chats = [conversation(3, index) for index in range(500)]
    texts = [turns for turns in chats if turns[0][0] == "text"]
    asked = [turns for turns in chats if turns[0][1].lower().startswith("once upon a time") and len(turns) == 2]
    assert texts
    assert asked
    assert all(turns[-1][1].startswith("Once upon a time there was a ") for turns in texts + asked)


def test_every_pattern_expands() -> None:
    rng = Random(0)
    for family in FAMILIES.values():
        for _ in range(150):
            for unseen in (False, True):
                turns = family(rng, unseen)
                assert turns[-1][0] == "assistant"
                assert not re.search(r"[\[\]|]", "".join(text for role, text in turns if role == "user"))


def test_alternatives_nest_and_slots_are_not_patterns() -> None:
    assert expand(Random(1), "[a [b|b]|a b] {x}", x="[c|d]") == "a b [c|d]"


@pytest.mark.parametrize("unseen", [False, True])
@pytest.mark.parametrize(("family", "sign"), [("add", 1), ("subtract", -1)])
def test_sums_and_differences_are_worked_out_right(family: str, sign: int, unseen: bool) -> None:
    rng = Random(5)
    for _ in range(300):
        question, answer = (text for _, text in FAMILIES[family](rng, unseen))
        a, b = (int(n) for n in re.findall(r"\d+", answer)[:2])
        assert sorted(int(n) for n in re.findall(r"\d+", question)) == sorted((a, b))
        assert int(re.findall(r"\d+", answer)[-1]) == a + sign * b
        for left, right in re.findall(r"([\d +-]+) = (\d+)", answer):
            assert sum(int(term) for term in left.replace("- ", "+ -").split("+")) == int(right)


def test_columns_carry_and_borrow() -> None:
    assert sum_text(165, 49) == "165 + 49: 5 + 9 = 14, 6 + 4 + 1 = 11, 1 + 0 + 1 = 2. The sum is 214."
    assert difference_text(702, 54) == "702 - 54: 12 - 4 = 8, 10 - 5 - 1 = 4, 7 - 0 - 1 = 6. The difference is 648."
    assert sum_text(3, 4) == "3 + 4 = 7."


def test_sorted_and_reversed_lists_are_right() -> None:
    rng = Random(6)
    for _ in range(300):
        question, answer = (text for _, text in FAMILIES["sort"](rng, False))
        given, told = ([int(n) for n in re.findall(r"\d+", text)] for text in (question, answer))
        down = re.search(r"descend|decreas|fall|largest to|large to|high to", question, re.IGNORECASE) is not None
        assert told == sorted(given, reverse=down)
        question, answer = (text for _, text in FAMILIES["reverse"](rng, False))
        items = answer.removeprefix("In reverse: ").removesuffix(".").split(", ")
        assert ", ".join(reversed(items)) in question


def test_extracted_values_stand_in_the_text() -> None:
    rng = Random(7)
    for _ in range(300):
        turns = FAMILIES["extract"](rng, False)
        for (_, question), (_, answer) in zip(turns[::2], turns[1::2], strict=True):
            for key, value in json.loads(answer).items():
                assert key in question
                assert str(value) in turns[0][1]


def test_a_called_tool_is_in_the_list_with_its_parameters() -> None:
    rng = Random(8)
    calls = 0
    for _ in range(300):
        system, _, (_, answer), *_ = FAMILIES["tool call"](rng, False)
        if answer.startswith("<tool_call>"):
            call = json.loads(answer.removeprefix("<tool_call>").removesuffix("</tool_call>"))
            listed = dict(line.split(" ", 1) for line in system[1].split("Tools:\n")[1].splitlines())
            assert list(json.loads(listed[call["name"]])) == list(call["arguments"])
            calls += 1
    assert calls > 200


def test_a_story_matches_its_grammar_and_a_wrong_one_does_not() -> None:
    rng = Random(9)
    for _ in range(200):
        (_, request), (_, text) = story(rng, False)
        pattern = story_pattern(request)
        assert re.fullmatch(pattern, text)
        hero = re.search(r"called (\w+) who", text)
        assert hero is not None
        assert re.fullmatch(pattern, text.replace(hero[1], "Nobodyelse")) is None  # another hero
        assert re.fullmatch(pattern, text.replace(hero[1], "Nobodyelse", 1)) is None  # a hero who changes its name
        assert re.fullmatch(pattern, text.rsplit(".", 2)[0] + ".") is None  # no end


def test_nothing_held_out_is_trained_on() -> None:
    held = kept_out()
    for index in range(3000):
        turns = conversation(1, index, held)
        bare = [turn for turn in turns if turn[0] != "system"]
        for start in range(len(bare)):
            for end in range(start + 1, min(len(bare), start + 12) + 1):
                # A chat may hold an instance's whole prompt only if it is not the beginning of a task.
                if (
                    bare[end - 1][0] == "user"
                    and bare[start][0] == "user"
                    and end == start + 1
                    and digest(bare[start:end]) in held
                ):
                    pytest.fail(f"held out, yet trained on: {bare[start:end]}")


def test_the_mix_names_every_family() -> None:
    assert set(MIX) == set(FAMILIES)


def test_the_overlap_test_can_fail() -> None:
    prompt = next(turns for turns in (conversation(1, i) for i in range(100)) if len(turns) == 2)
    key = digest(prompt[:-1])
    index = next(i for i in range(100) if conversation(1, i) == prompt)
    assert conversation(1, index, frozenset([key])) != prompt


def test_held_out_wordings_differ_from_trained_ones() -> None:
    for wordings in _all_wordings():
        assert not set(wordings.trained) & set(wordings.unseen)


def _all_wordings() -> list[Wordings]:
    from triolet.models.demo.training.tasks import arithmetic, extract, facts, lists, story, units

    modules = (arithmetic, extract, facts, lists, story, units)
    return [value for module in modules for value in vars(module).values() if isinstance(value, Wordings)]


def test_the_committed_set_is_the_one_the_corpus_avoids() -> None:
    assert [json.loads(line) for line in HELD_OUT.read_text().splitlines()] == instances()


def test_every_family_is_held_out_in_trained_and_in_unseen_wordings() -> None:
    for family in FAMILIES:
        wordings = {item["wording"] for item in instances() if item["family"] == family}
        assert wordings == {"trained", "unseen"}
