"""The held-out set: instances that training never sees, half of them in wordings that it never sees.

`python -m triolet.models.demo.training.heldout FILE` writes it, one JSON object per line: family, wording (trained or
unseen), messages, check (exact or regex), expected. The corpus skips every prompt whose digest is in the set.

`--before CHARACTERS` puts so much text that has nothing to do with the task into the system message of each.
"""

import argparse
import json
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import TypedDict

from .corpus import FAMILIES, digest
from .tasks.filler import filler
from .tasks.language import Conversation
from .tasks.story import story_pattern

SEED = "held out 3"
PER_FAMILY = 80
DRAWS = 400  # candidates per family and wording


class TaskMessage(TypedDict):
    role: str
    content: str


class HeldOutTask(TypedDict):
    """One line of the set."""

    family: str
    wording: str
    messages: list[TaskMessage]
    check: str
    expected: str


def instances() -> list[HeldOutTask]:
    rows: list[HeldOutTask] = []
    wordings = ("trained", "unseen")
    for name in FAMILIES:
        groups: list[list[HeldOutTask]] = []
        for wording in wordings:
            found: dict[bytes, HeldOutTask] = {}
            for task in draws(name, wording):
                key = digest(task[:-1])
                if key not in found:
                    found[key] = row(name, wording, task)
                if len(found) == PER_FAMILY // len(wordings):
                    break
            groups.append(list(found.values()))
        # Alternating, so that the first few of a family have both kinds of wording.
        rows += [item for pair in zip_longest(*groups) for item in pair if item is not None]
    return rows


def draws(family: str, wording: str) -> Iterator[Conversation]:
    """Candidates, each from its own seed. A family with too few different prompts yields what it has."""
    for number in range(DRAWS):
        yield FAMILIES[family](Random(f"{SEED}/{family}/{wording}/{number}"), wording == "unseen")


def row(family: str, wording: str, task: Conversation) -> HeldOutTask:
    is_story = family == "story"
    return {
        "family": family,
        "wording": wording,
        "messages": [{"role": role, "content": text} for role, text in task[:-1]],
        "check": "regex" if is_story else "exact",
        "expected": story_pattern(task[0][1]) if is_story else task[-1][1],
    }


def kept_out() -> frozenset[bytes]:
    """The digests of the prompts that training must not see."""
    return frozenset(digest([(m["role"], m["content"]) for m in item["messages"]]) for item in instances())


def after_filler(item: HeldOutTask, number: int, characters: int) -> HeldOutTask:
    """The instance with `characters` of filler before its own system message."""
    text = filler(Random(f"{SEED}/filler/{number}"), characters)
    messages = item["messages"]
    if messages[0]["role"] == "system":
        text, messages = text + "\n\n" + messages[0]["content"], messages[1:]
    return {**item, "messages": [{"role": "system", "content": text}, *messages]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m triolet.models.demo.training.heldout", description=__doc__)
    parser.add_argument("file", type=Path, help="JSON-lines file to write")
    parser.add_argument("--before", type=int, default=0, metavar="CHARACTERS", help="filler before each task (0)")
    options = parser.parse_args()
    rows = instances()
    if options.before:
        rows = [after_filler(item, number, options.before) for number, item in enumerate(rows)]
    options.file.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in rows))


if __name__ == "__main__":
    main()
