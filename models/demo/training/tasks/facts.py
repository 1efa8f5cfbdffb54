"""A few common facts: capitals, opposites, days and months. The model memorises them, so only wordings can be held out."""

# ruff: noqa: E501  (a wording is one line, however long: it reads as the sentence it is)

from random import Random

from .language import Conversation, Wordings, asked, words
from .names import DAYS, MONTHS

CAPITALS = dict(
    zip(
        words(
            "France England Germany Spain Italy Norway Austria Ireland Portugal Japan Egypt Peru India Russia China Canada "
            "Greece Poland Sweden Denmark Finland Belgium Hungary Turkey Cuba Kenya Australia Switzerland"
        ),
        words(
            "Paris London Berlin Madrid Rome Oslo Vienna Dublin Lisbon Tokyo Cairo Lima Delhi Moscow Beijing Ottawa "
            "Athens Warsaw Stockholm Copenhagen Helsinki Brussels Budapest Ankara Havana Nairobi Canberra Bern"
        ),
        strict=True,
    )
)
OPPOSITES = [
    tuple(pair.split("/"))
    for pair in words(
        "hot/cold big/small large/little tall/short long/short fast/slow up/down left/right day/night black/white old/young new/old happy/sad "
        "good/bad rich/poor hard/soft light/dark strong/weak wet/dry open/closed full/empty early/late high/low easy/difficult "
        "near/far clean/dirty loud/quiet true/false first/last heavy/light inside/outside summer/winter cheap/expensive"
    )
]
CAPITAL = Wordings(
    (
        "[What is|What's|Name|Tell me|Do you know] the capital [city |]of {x}[?|]",
        "Which city is the capital of {x}?",
        "{x}'s capital?",
        "capital of {x}[?|]",
        "[I need|I want to know|I'd like to know] the capital [city |]of {x}[.|]",
        "[What is|What's|How is] {x}'s capital[ city| called|]?",
        "[Can you|Could you|Please] [tell|give] me the capital [city |]of {x}[?|.|]",
        "[The capital of {x} is|{x} has which capital|Which capital does {x} have][?|]",
    ),
    ("What is the name of {x}'s capital?", "I forgot the capital of {x}. What is it?"),
)
OPPOSITE = Wordings(
    (
        "[What is|What's|Tell me|Name] the opposite of {x}[?|.|]",
        "opposite of {x}[?|]",
        "Which word is the opposite of {x}?",
        "[I need|I want to know|I'd like to know] the opposite of {x}[.|]",
        "[Can you|Could you|Please] [tell|give] me the opposite of {x}[?|.|]",
        "[The opposite of {x} is|Opposite word of {x}|Opposite word for {x}][?|]",
        "What is [not {x}, but the opposite|the opposite word of {x}]?",
    ),
    ("Do you know the opposite of {x}?", "What would be the opposite of {x}?"),
)
AFTER = Wordings(
    (
        "[What|Which] {u} [comes|is] after {x}?",
        "What comes after {x}?",
        "[Tell me|Name] the {u} after {x}[.|]",
        "[What|Which] is the {u} after {x}?",
        "[I want to know|I'd like to know] [the|which] {u} [comes |is |]after {x}[.|]",
        "[Can you|Could you|Please] [tell|give] me the {u} after {x}[?|.|]",
        "[After {x} comes which {u}|The {u} after {x} is|{x}, and then which {u}][?|]",
    ),
    ("Which {u} follows {x}?", "Do you know the {u} after {x}?"),
)
BEFORE = Wordings(
    (
        "[What|Which] {u} [comes|is] before {x}?",
        "What comes before {x}?",
        "[Tell me|Name] the {u} before {x}[.|]",
        "[What|Which] is the {u} before {x}?",
        "[I want to know|I'd like to know] [the|which] {u} [comes |is |]before {x}[.|]",
        "[Can you|Could you|Please] [tell|give] me the {u} before {x}[?|.|]",
        "[Before {x} comes which {u}|The {u} before {x} is][?|]",
    ),
    ("Do you know the {u} before {x}?", "I need the {u} before {x}."),
)


def facts(rng: Random, unseen: bool) -> Conversation:
    kind = rng.randrange(4)
    if kind == 0:
        country, capital = rng.choice(list(CAPITALS.items()))
        return asked(rng, CAPITAL.say(rng, unseen, x=country), f"The capital of {country} is {capital}.")
    if kind == 1:
        one, other = rng.choice(OPPOSITES)
        return asked(rng, OPPOSITE.say(rng, unseen, x=one), f"The opposite of {one} is {other}.", True)
    ring, unit = rng.choice(((DAYS, "day"), (MONTHS, "month")))
    place = rng.randrange(len(ring))
    wordings, step, relation = rng.choice(((AFTER, 1, "after"), (BEFORE, -1, "before")))
    answer = f"The {unit} {relation} {ring[place]} is {ring[(place + step) % len(ring)]}."
    return asked(rng, wordings.say(rng, unseen, u=unit, x=ring[place]), answer)
