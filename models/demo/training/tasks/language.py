"""How the corpus phrases things: patterns with alternatives, slots, and the ways people type.

A pattern writes alternatives as ``[a|b|c]`` (they nest) and slots as ``{name}``. One pattern stands for many sentences,
so a handful of patterns gives hundreds of wordings. Patterns kept for the held-out set are never expanded in training.
"""

# ruff: noqa: E501  (a wording is one line, however long: it reads as the sentence it is)

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

Turn: TypeAlias = tuple[str, str]
"""(role, text), the roles being system, user, assistant, tool and, for text outside a chat, text."""
Conversation: TypeAlias = list[Turn]

INNERMOST = re.compile(r"\[([^\[\]]*)\]")


def expand(rng: Random, pattern: str, *values: object, **slots: object) -> str:
    """Choose among every ``[a|b]`` at random, then fill the slots: last, so that their text is not read as a pattern."""
    while (found := INNERMOST.search(pattern)) is not None:
        pattern = pattern[: found.start()] + rng.choice(found[1].split("|")) + pattern[found.end() :]
    return pattern.format(*values, **slots)


@dataclass(frozen=True, slots=True)
class Wordings:
    """The patterns of one kind of request: trained ones and held-back ones."""

    trained: Sequence[str]
    unseen: Sequence[str]

    def say(self, rng: Random, unseen: bool, **slots: object) -> str:
        return expand(rng, rng.choice(self.unseen if unseen else self.trained), **slots)


def words(text: str) -> list[str]:
    """A word list, written as text: it stays readable at any length."""
    return text.split()


OPENERS = frozenset(
    words(
        "A Add After Answer Apply Are Arrange As At Before Book Call Can Compute Context Copy Could Count Deduct Do Does Echo Evaluate "
        "Express Extract Find For From Get Give Given Good Hello Here Hey Hi How I If In Is It JSON List Make Name Now On Order Please Put "
        "Read Repeat Return Reverse Say Send Set Show Solve Sort Subtract Sum Take Tell Text The There This To Turn Use What What's When "
        "Where Which Who Will Work Write"
    )
)


def _begun_small(text: str) -> str:
    """The first letter in lower case, unless the text may begin with a name: the answer must copy its case."""
    return text[:1].lower() + text[1:] if text.split(" ", 1)[0].rstrip(".,:!?") in OPENERS else text


def typed(rng: Random, text: str, lower: bool = False) -> str:
    """The text as people might type it. `lower` allows all lower case: only if no name has to be copied."""
    if lower and rng.random() < 0.15:
        text = text.lower()
    elif rng.random() < 0.15:
        text = _begun_small(text)
    if rng.random() < 0.15 and text[-1:] in ".?!":
        text = text[:-1]
    if rng.random() < 0.06:
        text = rng.choice(("Please ", "please ", "Hey, ", "Hi! ", "ok, ", "Now ")) + _begun_small(text)
    return text


def asked(rng: Random, text: str, answer: str, lower: bool = False) -> Conversation:
    """One request as people might type it, and its answer."""
    return [("user", typed(rng, text, lower)), ("assistant", answer)]


def listing(values: Sequence[object], last: str = " and ") -> str:
    """A, B and C."""
    words = [str(value) for value in values]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + last + words[-1]
