"""Lists: sort numbers, reverse a list, count its items, repeat it, count from one number to another."""

# ruff: noqa: E501  (a wording is one line, however long: it reads as the sentence it is)

from collections.abc import Callable, Sequence
from random import Random

from .language import Conversation, Wordings, asked, listing
from .names import COLORS, ITEMS, city, different, name, word

SORT_UP = Wordings(
    (
        "[Sort|Order|Arrange|Please sort|Can you sort] [these numbers|the following numbers|this list|these|the numbers][| in ascending order| from smallest to largest| from small to large| from low to high]: {s}[.|]",
        "[Sort|Order|Arrange] {s}[| in ascending order| from smallest to largest| from small to large][.|]",
        "[Put|Write|List] [these numbers|these|the following numbers] in [ascending|increasing|rising] order: {s}[.|]",
        "Sort the list {s}[.|]",
        "What [is|are] {s} in [ascending|increasing] order?",
        "[Can you|Could you|Would you|Please] [sort|order|arrange] {s}[ for me|][?|.|]",
        "[I have|I've got|There are] [these|the following|some] numbers: {s}. [Sort|Order|Arrange] them[ in ascending order| from small to large| from smallest to largest|][.|]",
        "{s}[:|.] [Sort|sort|Order|order] [these|this|them|the list][ in ascending order| from small to large|][.|]",
        "I [want|would like] {s} [sorted|ordered|in ascending order|in order][.|]",
        "[Sort|Order] [it|them|this] [for me|please|from small to large]: {s}[.|]",
    ),
    (
        "Could you put these numbers in ascending order: {s}?",
        "I need these numbers sorted from small to large: {s}.",
        "Here is a list: {s}. Sort it.",
    ),
)
SORT_DOWN = Wordings(
    (
        "[Sort|Order|Arrange|Please sort|Can you sort] [these numbers|the following numbers|this list|these|the numbers] [in descending order|from largest to smallest|from large to small|from high to low]: {s}[.|]",
        "[Sort|Order|Arrange] {s} [in descending order|from largest to smallest|from large to small][.|]",
        "[Put|Write|List] [these numbers|these|the following numbers] in [descending|decreasing|falling] order: {s}[.|]",
        "What [is|are] {s} in [descending|decreasing] order?",
        "[Can you|Could you|Would you|Please] [sort|order|arrange] {s} [in descending order|from large to small|from largest to smallest][?|.|]",
        "[I have|I've got|There are] [these|the following|some] numbers: {s}. [Sort|Order|Arrange] them [in descending order|from large to small|from largest to smallest][.|]",
        "{s}[:|.] [Sort|sort|Order|order] [these|this|them|the list] [in descending order|from large to small][.|]",
        "I [want|would like] {s} [sorted|ordered] [in descending order|from large to small][.|]",
    ),
    (
        "Could you put these numbers in descending order: {s}?",
        "I need these numbers sorted from large to small: {s}.",
    ),
)
REVERSE = Wordings(
    (
        "[Reverse|Please reverse|Can you reverse|Turn around] [this list|these items|the list|the following list|the order of these]: {s}[.|]",
        "[Write|Say|List|Give me|Repeat] [this list|these|the following list] [backwards|in reverse|in reverse order]: {s}[.|]",
        "Reverse {s}[.|]",
        "What is {s} [backwards|in reverse order|in reverse]?",
        "[Can you|Could you|Would you|Please] [reverse|turn around|say backwards|repeat in reverse] {s}[?|.|]",
        "[I have|There is|This is] [a|this|the] list: {s}. [Turn it around|Say it backwards|Write it in reverse|Give it in reverse order][.|]",
        "{s}[:|.] [Reverse|reverse|Turn around|Now reverse] [this|it|the list|the order][.|]",
        "I [want|would like] {s} [backwards|in reverse|reversed|the other way round][.|]",
        "[From last to first|Last one first|Backwards, please|In reverse]: {s}[.|]",
    ),
    (
        "Could you write this list backwards: {s}?",
        "Here is a list: {s}. Reverse it.",
        "I need this list in reverse order: {s}.",
    ),
)
COUNT_ITEMS = Wordings(
    (
        "[How many items|How many things|How many entries|How many elements] [are in this list|are there|are listed here|does this list have]: {s}?",
        "[Count|Please count|Can you count] [these items|the items|the items in this list|the things in this list|the following items]: {s}[.|]",
        "How many [items|things] are in the list {s}?",
        "[What is the length of|How long is] this list: {s}?",
        "[I have|There is|This is] [a|this|the] list: {s}. [How long is it|How many items are in it|Count the items|How many are there]?",
        "{s}[:|.] [How many items|How many things|How many] are [there|that|these]?",
        "[Tell me|I want to know|Say] [how many items|how many things] [are in this list|this list has|there are]: {s}[.|]",
        "[How many|How many items] do you [see|count|find] [here|in this list]: {s}?",
        "[The list|My list] is {s}. [How many items|How many things] does it [contain|hold]?",
    ),
    ("Here is a list: {s}. How many items does it have?", "Could you count the items in this list: {s}?"),
)
COUNT_UP = Wordings(
    (
        "[Count|Please count|Can you count|Could you count|Now count] [from |]{a} [to|up to] {b}[.|?|]",
        "[List|Write|Give me|Say|Show] [the numbers|all numbers|every number|all the numbers] from {a} to {b}[.|]",
        "Count [numbers |][starting at|beginning with] {a} [and ending at|until|up to] {b}[.|]",
        "[I would like|I'd like] you to [count|go] from {a} to {b}[.|]",
        "[Start at|Begin at|Begin with] {a} and [count to|stop at|go on to|end at] {b}[.|]",
        "[Which|What] numbers [are there|come|are] from {a} to {b}?",
        "[Write|Write out|Type] the numbers {a} to {b}[.|]",
    ),
    ("I want you to count from {a} to {b}.", "Write down all numbers from {a} up to {b}."),
)
COUNT_DOWN = Wordings(
    (
        "[Count|Please count|Can you count|Could you count] [down|backwards] from {a} to {b}[.|?|]",
        "Count [from |]{a} down to {b}[.|]",
        "[I would like|I'd like] you to [count|go] [backwards|down] from {a} to {b}[.|]",
        "[Start at|Begin at|Begin with] {a} and [count|go] [down|backwards] to {b}[.|]",
        "[Go|Count] [down|backwards][,|:] {a} to {b}[.|]",
    ),
    ("I want you to count down from {a} to {b}.", "Count backwards, from {a} to {b}."),
)
COUNT_TO = Wordings(
    (
        "[Count|Please count|Can you count|Could you count] [up |]to {b}[.|?|]",
        "[I would like|I'd like] you to count [up |]to {b}[.|]",
        "[Start counting|Go on counting|Count for me][, up| up|] to {b}[.|]",
    ),
    ("I want you to count to {b}.",),
)

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


def sort(rng: Random, unseen: bool) -> Conversation:
    top = rng.choice((10, 30, 100, 100, 100))
    length = rng.choice((2, 3, 3, 4, 4, 5))
    # People rarely sort a list with a repeated number, but it has to work.
    numbers = [rng.randrange(top) for _ in range(length)] if rng.random() < 0.1 else rng.sample(range(top), length)
    up = rng.random() < 0.65
    text = (SORT_UP if up else SORT_DOWN).say(rng, unseen, s=listing(numbers, rng.choice((", ", ", ", ", ", " and "))))
    return asked(rng, text, listing(sorted(numbers, reverse=not up), ", ") + ".", True)


SOURCES: Sequence[Callable[[Random], str] | Sequence[str]] = (name, word, ITEMS, COLORS)


def _things(rng: Random, low: int, high: int) -> list[str]:
    kind, count = rng.randrange(5), rng.randint(low, high)
    if kind == 0:
        return [str(rng.randrange(100)) for _ in range(count)]
    return different(rng, SOURCES[kind - 1], count)


def reverse(rng: Random, unseen: bool) -> Conversation:
    things = _things(rng, 2, 5)
    text = REVERSE.say(rng, unseen, s=", ".join(things))
    return asked(rng, text, "In reverse: " + ", ".join(reversed(things)) + ".")


def count_items(rng: Random, unseen: bool) -> Conversation:
    things = _things(rng, 2, 9)
    text = COUNT_ITEMS.say(rng, unseen, s=listing(things, rng.choice((", ", " and "))))
    return asked(rng, text, f"There are {len(things)} items in the list.")


def count(rng: Random, unseen: bool) -> Conversation:
    shape = rng.random()
    if shape < 0.3:
        a, b = 1, rng.randint(2, 20)
        text = COUNT_TO.say(rng, unseen, b=b)
    elif shape < 0.8:
        a = rng.randrange(50)
        b = a + rng.randint(2, 12)
        text = COUNT_UP.say(rng, unseen, a=a, b=b)
    else:
        a = rng.randint(3, 20)
        b = max(0, a - rng.randint(2, 12))
        text = COUNT_DOWN.say(rng, unseen, a=a, b=b)
    numbers = range(a, b + 1) if a <= b else range(a, b - 1, -1)
    return asked(rng, text, ", ".join(map(str, numbers)) + ".", True)


def repeat(rng: Random, unseen: bool) -> Conversation:
    """Plain copying, which helps the reading families."""
    kinds: tuple[Callable[[Random], str], ...] = (
        name,
        city,
        word,
        lambda rng: str(rng.randrange(10 ** rng.randint(1, 3))),
    )
    words = different(rng, lambda rng: rng.choice(kinds)(rng), rng.randint(1, 7))
    if words[0].islower():
        # A lower-case word has other tokens at the start of an answer than after a space: no copying to learn.
        words[0] = name(rng)
    s = rng.choice((" ", ", ")).join(words)
    return asked(rng, REPEAT.say(rng, unseen, s=s), s)
