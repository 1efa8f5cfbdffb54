"""Short stories from a grammar. The request names the hero, sometimes an animal and a thing; a regular expression checks."""

# ruff: noqa: E501  (a wording is one line, however long: it reads as the sentence it is)

import re
from random import Random

from .language import Conversation, Wordings, expand, typed, words
from .names import ANIMALS, COLORS, FOODS, ITEMS, name

PLACES = words("forest garden village river hill lake castle meadow island valley")
ASK_ALL = Wordings(
    (
        "[Tell me|Write|Write me|Give me|Make up|I want] a [short |little |]story about a {c} {a} called {n} who likes {i}[.|]",
        "[Tell me|Write|Write me|Make up] a [short |little |]story about {n}, a {c} {a}[,|] who likes {i}[.|]",
        "[Write|Tell] a story [with|about] a {c} {a} named {n} who likes {i}[.|]",
    ),
    (
        "Can you write a story about a {c} {a} named {n} who likes {i}?",
        "Please tell a little story. It is about {n}, a {c} {a} who likes {i}.",
    ),
)
ASK_ANIMAL = Wordings(
    (
        "[Tell me|Write|Write me|Give me|Make up] a [short |little |]story about a {a} [called|named] {n}[.|]",
        "[Tell me|Write] a [short |]story about {n} the {a}[.|]",
        "[Tell me|Write] a story about {n}, a {a}[.|]",
    ),
    ("Can you write a story about a {a} whose name is {n}?", "I would like a story about {n}, the {a}."),
)
ASK_NAME = Wordings(
    (
        "[Tell me|Write|Write me|Give me|Make up] a [short |little |]story about {n}[.|]",
        "[Can you tell me|Could you tell] a story about {n}?",
    ),
    ("I would like to hear a story about {n}.", "Do you know a story about {n}?"),
)
SENTENCES = (
    "Once upon a time there was a {c} {a} called {n} who lived near the {p}.",
    "[Every morning|Every day|Every evening] {n} looked for {i}, because {n} [loved|liked] {i} more than anything.",
    "One day {n} met a {b} who was [sad|hungry|lost|cold|tired].",
    "[{n} gave the {b} some {i}, and the {b} smiled.|{n} shared the {i} with the {b}.|{n} took the {b} to the {p}, and they ate {i} together.]",
    "[They became friends and were never lonely again.|From that day on they shared everything.|And they lived happily ever after.]",
)
THINGS = ITEMS + FOODS


def story(rng: Random, unseen: bool) -> Conversation:
    c, a, b, i, p, n = (rng.choice(kind) for kind in (COLORS, ANIMALS, ANIMALS, THINGS, PLACES, [name(rng)]))
    while b == a:
        b = rng.choice(ANIMALS)
    ask = rng.choice((ASK_ALL, ASK_ALL, ASK_ANIMAL, ASK_NAME))
    request = typed(rng, ask.say(rng, unseen, c=c, a=a, i=i, n=n))
    text = expand(rng, " ".join(SENTENCES), c=c, a=a, b=b, i=i, p=p, n=n)
    return [("user", request), ("assistant", text)]


def story_pattern(request: str) -> str:
    """Matches every story that answers this request: named words are fixed, the rest is any word of its kind."""
    parts: list[str] = []
    seen: set[str] = set()
    for piece in re.split(r"(\{\w\}|[\[\]|])", " ".join(SENTENCES)):
        if piece in ("[", "]", "|"):
            parts.append({"[": "(?:", "]": ")", "|": "|"}[piece])
        elif piece.startswith("{"):
            slot = piece[1]
            parts.append(f"(?P={slot})" if slot in seen else f"(?P<{slot}>{_slot_pattern(slot, request)})")
            seen.add(slot)
        else:
            parts.append(re.escape(piece))
    return "".join(parts)


def _slot_pattern(slot: str, request: str) -> str:
    if slot == "n":
        # The hero's name is the last capitalised word of every request.
        return str(re.findall(r"\b[A-Z][a-z]+\b", request[1:])[-1])
    kind = {"c": COLORS, "a": ANIMALS, "b": ANIMALS, "i": THINGS, "p": PLACES}[slot]
    if slot in ("c", "a", "i"):
        named = [word for word in kind if re.search(rf"\b{word}\b", request)]
        if named:
            return named[0]
    return "(?:" + "|".join(kind) + ")"
