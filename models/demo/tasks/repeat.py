"""Repeat what was given: the plainest copying, from which the reading families profit."""

from random import Random

from .language import Conversation, Wordings, typed
from .names import city, different, name, word

REPEAT = Wordings(
    (
        "[Repeat|Please repeat|Can you repeat|Say|Write|Copy|Echo] [this|after me|the following|these words]: {s}",
        "[Repeat|Say|Copy] [the words|the following words]: {s}",
        "[Say|Repeat|Write] [exactly |]this: {s}",
    ),
    ("I want you to say this: {s}", "Could you repeat these words: {s}"),
)


def repeat(rng: Random, unseen: bool) -> Conversation:
    words = different(rng, lambda r: r.choice((name, city, word))(r), rng.randint(1, 6))
    s = rng.choice((" ", ", ")).join(words)
    return [("user", typed(rng, REPEAT.say(rng, unseen, s=s))), ("assistant", s)]
