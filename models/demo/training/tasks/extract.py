"""Extract named fields from a sentence as JSON. The fields asked for, and their order, vary; the sentence may say more."""

# ruff: noqa: E501  (a wording is one line, however long: it reads as the sentence it is)

import json
from random import Random

from .language import Conversation, Wordings, asked, expand, listing
from .names import COLORS, DAYS, FOODS, ITEMS, JOBS, city, name, surname
from .paragraph import article

ASK = Wordings(
    (
        "[Extract|Get|Find|Read|Take|Pull out|Give me] [the fields |the |]{f} [as|in] JSON[:| from this text:| from:| from this sentence:] {t}",
        "[Extract|Get|Find|Give me] {f} from [this|the] [text|sentence] as JSON: {t}",
        "{t} [Extract|Give me|Return|Write] {f} as JSON[.|]",
        "{t}\n\n[Extract|Give me|Return] {f} as JSON[.|]",
        "[Write|Return|Make] [a JSON object|JSON|a JSON] with [the fields |the keys |]{f}[:| from this text:] {t}",
        "[JSON with|As JSON:|To JSON:] {f}. [Text: |]{t}",
        "[I want|I would like|I'd like] {f} [as|in] JSON: {t}",
        "[Change|Convert|Make] this [sentence |text |][to|into] JSON[,| with] the [keys|fields] {f}: {t}",
        "[Read|Take] this [text|sentence]: {t} [Give me|Return|Extract|Now give me|Now extract] {f} [as|in] JSON[.|]",
        "[Can you|Could you|Please] [extract|give me|return|find] {f} as [JSON|a JSON object|a JSON][:| from:] {t}",
    ),
    (
        "I need {f} as JSON from this sentence: {t}",
        "Turn this into JSON with the fields {f}: {t}",
        "Here is a text: {t} Please return {f} as a JSON object.",
    ),
)
AGAIN = "[Now |Now only |And |Please |][extract|give me|return] {f} [as JSON|in JSON][.|]"
PERSON = (
    "{name} is {age} years old, lives in {city} and works as {a_job}.",
    "{name}, {a_job} from {city}, is {age} years old.",
    "In {city} there is {a_job} called {name} who is {age} years old.",
    "{name} lives in {city}. [He|She] is {age} years old and works as {a_job}.",
    "My name is {name}, I am {age} years old and I work as {a_job} in {city}.",
    "{name} ({age}) is {a_job} in {city}.",
    "At the age of {age}, {name} became {a_job} and moved to {city}.",
)
ORDER = (
    "{name} ordered {quantity} {item} for {price} dollars on {day}.",
    "On {day}, {name} bought {quantity} {item} and paid {price} dollars.",
    "{quantity} {item} were sold to {name} for {price} dollars on {day}.",
    "{name} paid {price} dollars for {quantity} {item}. They will arrive on {day}.",
    "The order of {name}: {quantity} {item}, {price} dollars, delivery on {day}.",
)
EVENT = (
    "{name} meets {guest} in {city} on {day} at {hour}.",
    "On {day} at {hour}, {name} and {guest} will meet in {city}.",
    "The meeting of {name} and {guest} is on {day} at {hour} in {city}.",
    "{name} invited {guest} to {city} for {day} at {hour}.",
)
TASTE = (
    "{name} likes {food} and has a {color} car.",
    "{name} from {city} drives a {color} car and loves {food}.",
    "The favorite food of {name} is {food}, and the favorite color is {color}.",
    "{name} lives in {city}, eats {food} and wears a {color} hat.",
)


def extract(rng: Random, unseen: bool) -> Conversation:
    pattern = rng.choice(rng.choice((PERSON, PERSON, ORDER, EVENT, TASTE)))
    job = rng.choice(JOBS[:24])
    full_name = name(rng) + (" " + surname(rng) if rng.random() < 0.2 else "")
    values: dict[str, object] = {
        "name": full_name, "age": rng.randint(4, 99), "city": city(rng), "job": job, "quantity": rng.randint(2, 99),
        "item": rng.choice(ITEMS[:24]), "price": rng.randint(2, 999), "day": rng.choice(DAYS), "guest": name(rng),
        "hour": rng.randint(1, 12), "food": rng.choice(FOODS[:10]), "color": rng.choice(COLORS[:8]),
    }  # fmt: skip
    text = expand(rng, pattern, a_job=article(job), **values)
    present = ["job" if key == "a_job" else key for key in _slots(pattern)]
    fields, answer = _fields(rng, present, values)
    turns = asked(rng, ASK.say(rng, unseen, f=fields, t=text), answer)
    while not unseen and len(turns) < 6 and rng.random() < 0.5:
        fields, answer = _fields(rng, present, values)
        turns += asked(rng, expand(rng, AGAIN, f=fields), answer)
    return turns


def _fields(rng: Random, present: list[str], values: dict[str, object]) -> tuple[str, str]:
    """Some of the fields, as named in the request, and the JSON object of their values."""
    order = rng.sample(present, len(present)) if rng.random() < 0.5 else present
    wanted = order[: rng.randint(1, len(order))] if rng.random() < 0.7 else order
    answer = json.dumps({key: values[key] for key in wanted}, ensure_ascii=False)
    return listing(wanted, rng.choice((" and ", " and ", ", "))), answer


def _slots(pattern: str) -> list[str]:
    return [part.split("}")[0] for part in pattern.split("{")[1:]]
