"""The held-out set: instances that training never sees, half of them in wordings that it never sees either.

`python -m triolet.models.demo.heldout FILE` writes it, one JSON object per line: family, wording (trained or unseen),
messages, check (exact or regex), expected. The corpus skips every prompt whose digest is in the set.
"""

import json
import sys
from pathlib import Path
from random import Random
from typing import TypedDict

from .corpus import FAMILIES, digest
from .tasks.language import Conversation
from .tasks.story import story_pattern

SEED = "held out 1"
PER_FAMILY = 80
# Their prompts are few: holding out trained phrasings would take those from the corpus, so all are unseen wordings.
FEW_PROMPTS = frozenset({"facts", "small talk", "cannot"})


class Message(TypedDict):
    role: str
    content: str


class Instance(TypedDict):
    """One line of the set."""

    family: str
    wording: str
    messages: list[Message]
    check: str
    expected: str


def instances() -> list[Instance]:
    rows: list[Instance] = []
    for name, family in FAMILIES.items():
        rng = Random(f"{SEED}/{name}")
        found: set[bytes] = set()
        while len(found) < PER_FAMILY:
            unseen = name in FEW_PROMPTS or len(found) % 2 == 1
            task = family(rng, unseen)
            if (key := digest(task[:-1])) in found:
                if name in FEW_PROMPTS and rng.random() < 0.02:
                    break  # the unseen wordings of a small family may be fewer than asked for
                continue
            found.add(key)
            rows.append(row(name, "unseen" if unseen else "trained", task))
    return rows


def row(family: str, wording: str, task: Conversation) -> Instance:
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


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m triolet.models.demo.heldout FILE.jsonl")
    Path(sys.argv[1]).write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in instances()))


if __name__ == "__main__":
    main()
