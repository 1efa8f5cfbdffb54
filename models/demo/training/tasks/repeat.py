"""Repeat what was given: the plainest copying, from which the reading families profit."""

from random import Random

from .language import Conversation, Wordings, typed
from .names import city, different, name, word

REPEAT = Wordings(
    (
        "[Repeat|Please repeat|Can you repeat|Say|Write|Copy|Echo] [this|after me|the following|these words]: {s}",
        "[Repeat|Say|Copy] [the words|the following words]: {s}",
        "[Say|Repeat|Write] [exactly |]this: {s}",
        "[I would like|I'd like] you to [repeat|copy|echo|write] [this|these words]: {s}",
        "[Can you|Could you|Would you] [say|copy|write|echo] [this|the following|these words]: {s}",
    ),
    ("I want you to say this: {s}", "Could you repeat these words: {s}"),
)


def number(rng: Random) -> str:
    return str(rng.randrange(10 ** rng.randint(1, 3)))


def repeat(rng: Random, unseen: bool) -> Conversation:
    words = different(rng, lambda r: r.choice((name, city, word, number))(r), rng.randint(1, 7))
    if words[0].islower():
        # A lower-case word has other tokens at the start of an answer than after a space: no copying to learn there.
        words[0] = name(rng)
    s = rng.choice((" ", ", ")).join(words)
    return [("user", typed(rng, REPEAT.say(rng, unseen, s=s))), ("assistant", s)]
